"""The program of a rank: its part of a plan, as instructions. No torch."""
