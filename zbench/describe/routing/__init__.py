"""How tokens choose experts: laws by which routing is drawn, and the room that experts have."""
