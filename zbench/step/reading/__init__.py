"""Reads steps of texts."""
