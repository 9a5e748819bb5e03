"""FlexSP."""
