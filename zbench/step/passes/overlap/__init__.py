"""Overlap of a tensor-parallel group's exchanges with its matmuls, one method a file, each a pass over a built step."""
