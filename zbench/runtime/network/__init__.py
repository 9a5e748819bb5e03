"""Nodes that one machine plays, and the NICs of real and of emulated nodes. Linux; no torch."""
