"""zbench: one benchmark for training on sequences of very different lengths."""

from pathlib import Path

__version__ = "0.1.0"
CONF = Path(__file__).resolve().parent.parent / "conf"
