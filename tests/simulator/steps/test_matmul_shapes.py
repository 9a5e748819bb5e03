"""Matmuls of whole steps have the rate of their shape: what is cut by columns, by inner size, and by tokens."""
