"""Systems: from a batch to a plan, one class a file."""

import zbench  # noqa: F401  # before numba, which asks it where compiled functions are (zbench.run.stale)
