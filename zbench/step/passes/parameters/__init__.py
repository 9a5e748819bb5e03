"""Parameters of a step: how they and their gradients are cut, gathered, reduced and updated."""
