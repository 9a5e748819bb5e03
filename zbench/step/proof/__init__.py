"""Proves that a step computes every contribution of every formula once, and uses nothing before it is there."""
