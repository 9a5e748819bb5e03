"""A policy that generates and is trained by what it generated, on processes and in one process beside it."""
