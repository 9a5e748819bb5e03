"""Wrong accounts of a correct step are found: of seconds, of bytes on NICs and inside nodes, of memory."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from zbench.correctness.reference import judge as judging
from zbench.correctness.reference.judge import CorrectStep, judge
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.simulator.steps.play import PlayedStep
from zbench.systems.ring import Ring


def other(by: Mapping[str, Any], name: str, change: Any) -> dict[str, Any]:
    return {**by, name: by[name] + change}


def one_more(played: PlayedStep) -> np.ndarray:
    return np.eye(len(played.nic_tx["attention"]), dtype=np.int64)[0]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda one: {"nic_tx": other(one.nic_tx, "attention", one_more(one))}, "NICs send"),
        (lambda one: {"nic_rx": other(one.nic_rx, "attention", one_more(one))}, "NICs send"),
        (
            lambda one: {side: other(getattr(one, side), "attention", one_more(one)) for side in ("nic_tx", "nic_rx")},
            "of attention's bytes NICs send",
        ),
        (lambda one: {"inside": other(one.inside, "attention", 1)}, "of attention's bytes ports inside nodes send"),
        (
            lambda one: {side: other(getattr(one, side), "gradients", one_more(one)) for side in ("nic_tx", "nic_rx")},
            "NICs have other shares than each other",
        ),
        (lambda one: {"seconds": one.seconds / 1000}, "no plan"),
        (lambda one: {"busy": other(one.busy, "attend", one.seconds)}, "rank 0 computes"),
        (lambda one: {"exposed": one.exposed + one.seconds}, "rank 0 shows"),
        (lambda one: {"memory": replace(one.memory, peak=-one.memory.peak)}, "peak_bytes is not a number"),
    ],
)
def test_a_wrong_account_of_a_right_step_is_found(
    uneven: Cost, change: Callable[[PlayedStep], dict[str, Any]], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = Batch(np.array([400, 30]), 0, 0)
    case = CorrectStep("ring", uneven, batch, Ring(uneven).plan(batch))
    right = judge(case, case.plans)
    assert (right.wrong, right.rejected) == ("", "")
    play = judging.play_step

    def wrong(*given: Any) -> PlayedStep:
        played = play(*given)
        return replace(played, **change(played))

    monkeypatch.setattr(judging, "play_step", wrong)
    assert told in judge(case, case.plans).wrong
