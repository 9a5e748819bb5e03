"""The simulated executor: every message and kernel call of a step on a described cluster's clock."""
