"""Rounds of local steps: workers' own steps, what a round ends with, and the order of rounds with its ages."""
