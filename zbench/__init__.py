"""One benchmark for training on sequences of very different lengths: systems plan, zbench verifies, simulates, runs,
compares."""

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zbench.api.functions import bound as bound
    from zbench.api.functions import compare_runs as compare_runs
    from zbench.api.functions import load as load
    from zbench.api.functions import plan as plan
    from zbench.api.functions import simulate as simulate
    from zbench.api.functions import verify as verify
    from zbench.api.schedules import plan_schedule as plan_schedule
    from zbench.planned.step import StepPlans as StepPlans
    from zbench.planned.step import load_plan as load_plan
    from zbench.planned.step import save_plan as save_plan

__version__ = "0.1.0"
CONF = Path(__file__).resolve().parent / "conf"
# Before numba is imported, which reads it: compiled functions are of the state of all that they call
# (zbench.run.stale).
_LOCATORS = ",".join(f"zbench.run.stale.{name}" for name in ("Provided", "InTree", "UserWide"))
os.environ.setdefault("NUMBA_CACHE_LOCATOR_CLASSES", _LOCATORS)
# The library's names and where each is: imported on use, so that commands answer at once.
_HOMES = {
    "plan": "zbench.api.functions",
    "verify": "zbench.api.functions",
    "simulate": "zbench.api.functions",
    "bound": "zbench.api.functions",
    "load": "zbench.api.functions",
    "compare_runs": "zbench.api.functions",
    "plan_schedule": "zbench.api.schedules",
    "StepPlans": "zbench.planned.step",
    "load_plan": "zbench.planned.step",
    "save_plan": "zbench.planned.step",
}


def __getattr__(name: str) -> Any:
    if name == "torch":  # the room: import zbench is enough for zbench.torch
        return import_module("zbench.torch")
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(_HOMES[name]), name))


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
