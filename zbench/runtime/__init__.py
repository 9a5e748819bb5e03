"""The torch executor: drives ranks, each a process, that run plans for real."""
