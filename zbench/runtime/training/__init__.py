"""Training on one rank: the network, its attention, parameters and steps."""
