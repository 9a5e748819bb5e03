"""What is loaded before ranks are forked is what they use: a rank that compiles a plan loads no other version."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from tests.helpers.steps import plan_of
from tests.runtime.test_conformance import cost_of
from zbench.plans import segments as cutting
from zbench.runtime.program.compiler import Compiler
from zbench.runtime.program.preload import preload
from zbench.simulator import hops as moving


def compile_after_loading() -> None:
    """In a process that has loaded nothing else."""
    preload()
    loaded = set(moving._expand.signatures), set(cutting._list.signatures)
    assert all(map(len, loaded))
    for rank in range(4):
        Compiler(plan_of([40, 9], 4, 4), rank, cost_of("2x2"), np.asarray, lambda *cut: cut).compile()
    assert (set(moving._expand.signatures), set(cutting._list.signatures)) == loaded


def test_ranks_use_what_was_loaded() -> None:
    line = "from tests.runtime.program.test_preload import compile_after_loading; compile_after_loading()"
    root = Path(__file__).parents[3]
    done = subprocess.run([sys.executable, "-c", line], cwd=root, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr
