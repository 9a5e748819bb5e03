"""Memory that the C library keeps while a process runs."""

import platform
import subprocess
import sys

import pytest

_FAULTS = """
import sys
from resource import RUSAGE_SELF, getrusage

import numpy as np

from zbench.console.command import loading
from zbench.console.heap import keep_freed_memory

size, most = map(int, sys.argv[1:3])
with loading("__main__" if sys.argv[3:] == ["command"] else ""):
    pass
if most:
    keep_freed_memory(most)
for number in range(11):
    if number == 1:
        begin = getrusage(RUSAGE_SELF).ru_minflt
    np.ones(size // 8)
print(getrusage(RUSAGE_SELF).ru_minflt - begin)
"""


def faults(size: int, most: int, *more: str) -> int:
    """Returns the pages that ten arrays of `size` bytes, one after another, have filled in anew. most: bytes of a block
    that is kept; 0: nothing is asked for. more: "command": in the frame of a command."""
    words = [sys.executable, "-c", _FAULTS, str(size), str(most), *more]
    return int(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_large_arrays_are_made_of_memory_that_was_freed() -> None:
    kept, given_back = faults(48_000_000, 2**30), faults(48_000_000, 0)
    assert kept < given_back / 10


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_a_command_keeps_what_its_arrays_free() -> None:
    kept, given_back = faults(8_000_000, 0, "command"), faults(8_000_000, 0)
    assert kept < given_back / 10
