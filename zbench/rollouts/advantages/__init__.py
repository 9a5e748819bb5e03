"""Advantages of tokens by algorithm of reinforcement learning. Pure: no torch."""
