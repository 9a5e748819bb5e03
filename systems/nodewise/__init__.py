"""Nodewise, zbench's own planner: docs/planner.md."""
