"""Checks before a run: what others give is as agreed, quantities have units, this machine has what a job needs."""
