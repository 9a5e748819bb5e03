"""The plan of a batch's attention, and what it means: blocks, operations, the schemes that make them, work and data
flow."""
