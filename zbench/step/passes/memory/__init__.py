"""The memory that a step takes, as chunks of tokens and what waits in host memory make it."""
