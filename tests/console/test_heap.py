"""How the C library keeps memory while a command runs."""

import platform
import subprocess
import sys

import pytest

_FAULTS = """
import sys
from resource import RUSAGE_SELF, getrusage

import numpy as np

from zbench.console.heap import keep_freed_memory

if sys.argv[1] == "kept":
    assert keep_freed_memory()
for number in range(11):
    if number == 1:
        begin = getrusage(RUSAGE_SELF).ru_minflt
    np.ones(6_000_000)
print(getrusage(RUSAGE_SELF).ru_minflt - begin)
"""


def faults(how: str) -> int:
    """Returns the pages that ten arrays of 46 MiB, one after another, have filled in anew."""
    done = subprocess.run([sys.executable, "-c", _FAULTS, how], capture_output=True, text=True, check=True)
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_large_arrays_are_made_of_memory_that_was_freed() -> None:
    kept, given_back = faults("kept"), faults("given back")
    assert kept < given_back / 10
