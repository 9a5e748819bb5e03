"""The strategy of every layer by itself, found by search over arithmetic: Galvatron-BMW's (docs/layers.md)."""
