"""What a job with rollouts consists of: plain data."""
