"""The figures of jobs with rollouts."""
