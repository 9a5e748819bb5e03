"""python -m zbench.compare: tables of recorded runs, and a gate against a baseline of them."""
