"""The language of a whole training step, and its proof (docs/step.md). Pure; nothing outside this room uses it yet."""
