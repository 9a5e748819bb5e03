"""The proof that a plan is correct, before anything runs it."""
