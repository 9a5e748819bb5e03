"""The event loop of whole steps, in which pieces of a collective's leg are played as one train. Pure: no torch."""
