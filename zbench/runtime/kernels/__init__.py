"""Kernels that a rank computes with: attention, elementwise work, rows and partial sums."""
