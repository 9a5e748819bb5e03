"""Records of runs: what is kept of a step, how it is read again, and the figures derived from it."""
