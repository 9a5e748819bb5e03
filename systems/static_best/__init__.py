"""The static configuration that a careful user would choose."""
