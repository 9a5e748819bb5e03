"""Training by whole steps: a process that runs them, what it begins with, and the dense model that it is held to."""
