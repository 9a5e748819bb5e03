"""Builds steps: attention's plans, matmuls, tensor parallelism, recomputation, parameters' shards, the optimizer."""
