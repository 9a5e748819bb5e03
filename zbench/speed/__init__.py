"""Measures how fast one device trains: python -m zbench.speed."""
