"""A run, from the configuration to its record."""
