"""Tokens of experts on the clock: matmuls, bytes and memory are of those that go to a slice of the experts."""
