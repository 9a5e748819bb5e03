"""What a third party's system and executor may have besides their method, and get wrong."""

from pathlib import Path
from typing import Any

import pytest

from tests.run.test_run import STRATEGY, Measured, recorded, request
from zbench.describe.batch import Batch
from zbench.plans.plan import Plan
from zbench.run.checks.contract import PlugInError
from zbench.run.run import run_with_baseline
from zbench.systems.ring import Ring


class Sized(Ring):
    """A system that gives a number for a Size."""

    def size(self, lengths: Any, count: int) -> Any:
        return 5


class Unsized(Ring):
    """A system whose size() fails."""

    def size(self, lengths: Any, count: int) -> Any:
        return [][count]


class Packed(Ring):
    """A system that gives a text for a tuple."""

    packages: Any = "numpy"


class Numbered(Ring):
    """A system that gives a number for a tuple."""

    packages: Any = 5


class Idle(Measured):
    """An executor that is not ready."""

    def start(self) -> Any:
        return None


class Busy(Measured):
    """An executor that gives no result."""

    def step(self, batch: Batch, plans: tuple[Plan, ...]) -> Any:
        return 0.5


def target(kind: type) -> dict[str, Any]:
    return {"_target_": f"tests.project.test_hooks.{kind.__name__}"}


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Sized, r"Sized\.size gave an int; it has to give a zbench\.interfaces\.protocols\.Size$"),
        (Unsized, r"Unsized\.size failed with IndexError: list index out of range \(.*test_hooks\.py line "),
        (Packed, r"Packed\.packages is 'numpy'; it has to be a tuple of names of distributions, as in"),
        (Numbered, r"Numbered\.packages is 5; it has to be a tuple"),
    ],
)
def test_a_system_is_refused_before_anything_is_written(kind: type, told: str, stages: int, tmp_path: Path) -> None:
    """Also in a job with pipeline stages, where the batch is dealt to it in parts."""
    asked = request(tmp_path / "r.jsonl", target(kind), parallel=STRATEGY["parallel"] | {"pipeline_parallel": stages})
    with pytest.raises(PlugInError, match=rf"^tests\.project\.test_hooks\.{told}"):
        run_with_baseline(asked)
    assert not (tmp_path / "r.jsonl").exists()


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (Idle, r"Idle\.start gave None; it has to give a zbench\.interfaces\.protocols\.Ready$"),
        (Busy, r"Busy\.step gave a float; it has to give a zbench\.interfaces\.result\.StepResult$"),
    ],
)
def test_an_executor_gives_what_its_protocol_says(kind: type, told: str, tmp_path: Path) -> None:
    with pytest.raises(PlugInError, match=rf"^tests\.project\.test_hooks\.{told}"):
        run_with_baseline(request(tmp_path / "r.jsonl", executor=target(kind)))
    (failed,) = recorded(tmp_path / "r.jsonl")
    assert (failed.status, failed.steps) == ("failed", [])
