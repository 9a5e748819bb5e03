"""MagiAttention's dispatch of chunks."""
