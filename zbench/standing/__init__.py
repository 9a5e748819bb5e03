"""python -m zbench.standing: recorded systems by how near the bound they are, and what worlds leave of their order."""
