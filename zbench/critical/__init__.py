"""python -m zbench.critical: the critical path of a recorded whole step, which operation waited for which."""
