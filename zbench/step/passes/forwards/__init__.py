"""Forwards by themselves, as models that score sequences have them."""
