"""Plain data of a job with rollouts, which a step of a run is an iteration of."""
