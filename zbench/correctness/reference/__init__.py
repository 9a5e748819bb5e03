"""A second, plain reading of what a plan means, which the verifier is judged by."""
