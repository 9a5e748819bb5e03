"""Zeppelin: hierarchical partitioning, three queues, routing and remapping."""
