"""Plain data of stages: parts of a model's layers on parts of the nodes."""
