"""ByteScale."""
