"""How the C library keeps memory while a command runs. An edge.

Arrays of tens of megabytes that come and go, as of steps on many GPUs, are given back to the system each time, which
then fills each page with zeros again: a third of a long command's processor time.
"""

import ctypes

_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1  # of glibc's mallopt
_MOST = 2**30  # bytes: blocks of fewer come from the heap, which keeps as many free ones


def keep_freed_memory() -> bool:
    """Has the C library keep freed memory for what is allocated next; returns whether it does, as glibc alone can."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):  # no such function, or on Windows no such library
        return False
    return all(mallopt(option, _MOST) == 1 for option in (_MMAP_THRESHOLD, _TRIM_THRESHOLD))
