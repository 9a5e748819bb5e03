"""Checks a measured record of somebody's own cluster, and says how to send it."""
