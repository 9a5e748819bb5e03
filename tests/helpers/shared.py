"""What one process of tests makes and the others read."""

import fcntl
import os
import pickle
from collections.abc import Callable
from typing import TypeVar

import pytest

Made = TypeVar("Made")


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[], Made]) -> Made:
    """Returns what `make` returns, called by the first of a run's workers that asks for it; others wait and read.

    name: one word, no other's. For what takes longer than waiting for it; it has to be pickled.
    """
    folder = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    kept = folder / f"{name}.pickle"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # until the file is closed
        if not kept.exists():
            made = make()
            kept.write_bytes(pickle.dumps(made))
            return made
    found: Made = pickle.loads(kept.read_bytes())
    return found
