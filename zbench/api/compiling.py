"""Says on stderr that functions are being compiled, so that nobody takes the first minutes after an install for a hang.

numba tells of every function that it compiles and that was not on disk (numba.core.event).
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

from numba.core import event

# "1 to 1.5 minutes of a core" for all systems (docs/performance.md), twice that on a slow one.
_TOLD = (
    "zbench: compiling numerical functions, once after an install or a change of the sources; all of them take one to "
    "three minutes of a core (python -m zbench.warm compiles them ahead)"
)


class _Heard(event.Listener):
    """Hears that a function begins to be compiled."""

    def on_start(self, _: event.Event) -> None:
        tell_of_compiling()

    def on_end(self, _: event.Event) -> None:
        return


@contextmanager
def compiling_told() -> Iterator[None]:
    """Frames work in which functions may be compiled: if one is, that is said once in a process."""
    with event.install_listener("numba:compile", _Heard()):
        yield


@cache
def tell_of_compiling() -> None:
    """Says it; of several ranks the first one does."""
    if os.environ.get("RANK", "0") == "0":
        print(_TOLD, file=sys.stderr, flush=True)


def has_compiled() -> bool:
    """Returns whether this process had to compile a function in such a frame."""
    return tell_of_compiling.cache_info().currsize > 0
