"""What ranks wait for and note of a step's time."""
