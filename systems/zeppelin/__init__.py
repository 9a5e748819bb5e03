"""Zeppelin."""
