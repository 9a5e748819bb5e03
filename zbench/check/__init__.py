"""zbench check: whether other people's pieces are exact: a loss, an attention, a schedule (docs/check.md)."""
