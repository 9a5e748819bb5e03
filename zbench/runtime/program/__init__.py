"""A plan as one rank's instructions. No torch."""
