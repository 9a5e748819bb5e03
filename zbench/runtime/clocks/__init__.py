"""Clocks and notes of ranks: what they wait for and note of a step's time."""
