"""Planned steps as files that any language reads: plans, their lengths, and the cluster and model they are for."""
