"""Seconds of the computes of a step, and the sizes that they are of."""
