"""MagiAttention: its dispatch of chunks to ranks, and its stages of communication."""
