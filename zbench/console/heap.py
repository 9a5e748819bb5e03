"""Memory that the C library keeps while a process runs. An edge.

Arrays of tens of megabytes come and go with every layer of a rank and every step that is played. glibc returns much of
it to the system in between, and each page then costs a fault and its zeros when it is touched next.
"""

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3  # of mallopt(3), malloc.h
_NEVER, _SMALL, _AT_ONCE = 2**31 - 1, 2**25, 2**26  # bytes


def keep_freed_memory(most: int = _SMALL) -> None:
    """Makes this process use memory again that it frees, from now on, instead of giving it back: no trimming, blocks of
    up to so many bytes from the heap as well, and a heap that grows by many at once. With another C library than glibc
    nothing happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_TRIM_THRESHOLD, _NEVER)
        mallopt(_TOP_PAD, _AT_ONCE)
        mallopt(_MMAP_THRESHOLD, most)
