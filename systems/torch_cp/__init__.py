"""PyTorch's context parallelism."""
