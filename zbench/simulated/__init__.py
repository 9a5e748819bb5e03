"""The simulated executor of whole steps (docs/step.md)."""
