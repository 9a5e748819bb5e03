"""Asks the kernel for how long a thread is run before others that wait for the processor get their turn.

Linux (6.12 and later) runs the thread first that asked for the shorter slice. Earlier kernels, and processors whose
number of the system call is not known here, go on as they did. It takes no rights. No torch.
"""

import ctypes
import os
import platform
import struct

_SET, _GET = {"x86_64": (314, 315), "aarch64": (274, 275)}.get(platform.machine(), (None, None))
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # struct sched_attr: size, policy, flags, nice, priority, runtime, ...
_KEEP_POLICY = 0x08
_TIMED = (os.SCHED_OTHER, os.SCHED_BATCH)  # policies that have slices

_libc = ctypes.CDLL(None, use_errno=True)


def ask(seconds: float) -> None:
    """Asks for the slice of the calling thread, and those that it starts from now on; between 0.1 and 100 ms.

    Raises:
        OSError: the kernel refused.
    """
    if _SET is None or os.sched_getscheduler(0) not in _TIMED:
        return
    nice, nanoseconds = os.getpriority(os.PRIO_PROCESS, 0), round(seconds * 1e9)
    wish = _ATTRIBUTES.pack(_ATTRIBUTES.size, 0, _KEEP_POLICY, nice, 0, nanoseconds, 0, 0)
    if _libc.syscall(_SET, 0, ctypes.c_char_p(wish), 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def asked(thread: int = 0) -> float | None:
    """Returns the seconds of the slice that a thread of this process has (0: the calling one); None where that cannot
    be asked for."""
    if _GET is None:
        return None
    told = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if _libc.syscall(_GET, thread, told, _ATTRIBUTES.size, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    seconds = 1e-9 * int(_ATTRIBUTES.unpack(told.raw)[5])
    return seconds or None  # earlier kernels tell nothing
