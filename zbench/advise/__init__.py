"""One answer for lengths and a cluster: the fastest system, what of it a framework can run today, and how sure that is.

Nothing is planned or timed here by other means than in a run: systems of short lists are played on the simulated clock,
on batches drawn from the lengths, and every figure is derived as a record's is.
"""
