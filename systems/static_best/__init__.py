"""A static configuration, chosen once before a run as a careful user would."""
