"""What was planned, as files that any language reads: a step's plans with its lengths, cluster and model."""
