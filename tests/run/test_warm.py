"""Warming up compiles what a run, and what its ranks, use first."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from zbench.systems.ring import Ring
from tests.run.test_warm import cost
from zbench.plans import segments
from zbench.runtime.program import phases
from zbench.run.warm import warm

warm(Ring(cost()), trains=sys.argv[1] == "True")
print(len(segments._list.signatures) > 0, len(phases._phases.signatures) > 0)
"""


def cost() -> object:
    from zbench.cost.cost import Cost
    from zbench.describe.cluster import Cluster
    from zbench.describe.device import Device
    from zbench.describe.model import Model

    device = Device("d", 3e14, 8e10, 1.6e12, 2e11, 2e14, 2e14, 1.7e14, 5e-6, 6e-5)
    return Cost(Cluster("c", 2, 2, 1, 2.5e10, 0.8, 1e-5, 2e11, 0.6, 1e-5, device), Model("m", 1, 64, 4, 2, 16, 64, 9))


def test_what_ranks_compile_is_compiled_before_they_start() -> None:
    """In processes of their own: others of this one may have compiled it already."""
    for trains in ("True", "False"):
        run = subprocess.run(
            [sys.executable, "-c", SCRIPT, trains],
            cwd=ROOT / "tests",
            env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        assert run.stdout.split() == [trains, trains]
