"""The seconds of a whole step that no plan can beat: the bound, and the ceiling (docs/metrics.md)."""
