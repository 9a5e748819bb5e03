"""A step that is played with fewer layers than it has. Pure: no torch."""
