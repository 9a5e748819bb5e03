"""Placements of a job with rollouts: which of its models share GPUs, and how many GPUs each set of them has."""
