"""Nodewise is zbench's own planner; docs/planner.md describes it, and planner.py is where to begin."""
