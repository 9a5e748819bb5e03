"""Figures of strategies on whole steps: exchanges beside matmuls, degrees of sharding, rounds of local steps."""
