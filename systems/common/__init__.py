"""What several systems use."""
