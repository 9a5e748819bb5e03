"""zbench: one benchmark for training on sequences of very different lengths."""

__version__ = "0.1.0"
