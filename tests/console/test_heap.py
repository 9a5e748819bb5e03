"""Memory that the C library keeps while a process runs."""

import platform
import subprocess
import sys

import pytest

_FAULTS = """
import sys
from resource import RUSAGE_SELF, getrusage

import numpy as np

from zbench.console.heap import keep_freed_memory

if int(sys.argv[1]):
    keep_freed_memory(int(sys.argv[1]))
for number in range(11):
    if number == 1:
        begin = getrusage(RUSAGE_SELF).ru_minflt
    np.ones(6_000_000)
print(getrusage(RUSAGE_SELF).ru_minflt - begin)
"""


def faults(most: int) -> int:
    """Returns the pages that ten arrays of 46 MiB, one after another, have filled in anew. most: bytes of a block that
    is kept; 0: nothing is asked for."""
    done = subprocess.run([sys.executable, "-c", _FAULTS, str(most)], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_large_arrays_are_made_of_memory_that_was_freed() -> None:
    kept, given_back = faults(2**30), faults(0)
    assert kept < given_back / 10
