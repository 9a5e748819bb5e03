"""PyTorch's context parallelism, with its load balancers."""
