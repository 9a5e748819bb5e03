"""Ways to break a step's plans: functions of (random generator, plan, cost) to another plan, or of a whole step.

`KINDS` in zbench.correctness.mutations.kinds has them all by name. Pure: no torch.
"""
