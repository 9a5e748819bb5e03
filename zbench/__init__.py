"""One benchmark for training on sequences of very different lengths: systems plan, zbench verifies, simulates, runs,
compares."""

import os
from pathlib import Path

__version__ = "0.1.0"
CONF = Path(__file__).resolve().parent / "conf"
# Before numba is imported, which reads it: compiled functions are of the state of all that they call
# (zbench.run.stale).
_LOCATORS = ",".join(f"zbench.run.stale.{name}" for name in ("Provided", "InTree", "UserWide"))
os.environ.setdefault("NUMBA_CACHE_LOCATOR_CLASSES", _LOCATORS)
