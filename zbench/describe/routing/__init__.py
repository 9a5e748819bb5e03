"""The choice of experts by tokens: laws by which routing is drawn, and the room that experts have."""
