"""Sentences below a run's table on what it asks for and does not get."""
