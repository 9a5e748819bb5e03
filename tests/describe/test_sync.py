"""Rounds as a run chooses them: what cannot be is one sentence, and what each method is."""

from typing import Any

import pytest

from zbench.describe.sync import CO2, DILOCO, EVERY, LOCAL_SGD, SLOWMO, STREAMING_DILOCO, RoundSync


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        ({"method": "gossip"}, "sync.method is 'gossip'; it takes every_step, local_sgd, slowmo, co2, diloco or "),
        ({"method": SLOWMO, "steps": 0}, "sync.steps is 0; it takes a whole number from 1 to 10000"),
        ({"method": SLOWMO, "steps": 1.5}, "sync.steps is 1.5; it takes a whole number"),
        ({"method": SLOWMO, "worker": "gpu"}, "sync.worker is 'gpu'; it takes rank or node"),
        ({"method": SLOWMO, "momentum": 1.0}, "sync.momentum is 1.0; it takes a number of at least 0 and below 1"),
        ({"method": SLOWMO, "lr": 0}, "sync.lr is 0; it takes a number above 0 and below 10"),
        ({"method": SLOWMO, "penalty": "constant"}, "sync.penalty is constant; sync=slowmo takes none"),
        ({"method": LOCAL_SGD, "momentum": 0.5}, r"sync.momentum is 0.5; sync=local_sgd takes 0.0"),
        ({"method": DILOCO, "clip": 1.0}, "sync.clip is 1.0; sync=diloco takes null"),
        ({"method": CO2}, "sync.penalty is none; sync=co2 takes constant or gap_aware"),
        ({"method": CO2, "penalty": "constant", "clip": 0}, "sync.clip is 0; it takes a number above 0, or null"),
        ({"method": CO2, "penalty": "gap_aware", "penalty_constant": 2.0}, "sync.penalty_constant is 2.0; with"),
        ({"steps": 4}, "sync.steps is 4; sync=every_step takes 1"),
        ({"method": CO2, "penalty": "constant", "delay": 1}, "sync.delay is 1; sync=co2 takes 0"),
        ({"method": DILOCO, "steps": 4, "fragments": 2}, "sync.fragments is 2; sync=diloco takes 1"),
        ({"method": SLOWMO, "mixing": 0.5}, "sync.mixing is 0.5; sync=slowmo takes 0.0"),
        (
            {"method": STREAMING_DILOCO, "steps": 4, "fragments": 5},
            "sync.fragments is 5; it takes a whole number from 1 to 4",
        ),
        ({"method": STREAMING_DILOCO, "steps": 4, "delay": 4}, "sync.delay is 4; it takes a whole number from 0 to 3"),
        (
            {"method": STREAMING_DILOCO, "mixing": 1.0},
            "sync.mixing is 1.0; it takes a number of at least 0 and below 1",
        ),
        ({"method": STREAMING_DILOCO, "clip": 1.0}, "sync.clip is 1.0; sync=streaming_diloco takes null"),
    ],
)
def test_what_cannot_be_is_one_sentence(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        RoundSync(**keys)


def test_runs_end_with_a_round() -> None:
    sync = RoundSync(SLOWMO, 4)
    sync.check_run(8)
    EVERY.check_run(7)
    with pytest.raises(ValueError, match=r"^sync.steps is 4, a round that is longer than the run; with steps=3"):
        sync.check_run(3)
    with pytest.raises(ValueError, match=r"^sync.steps is 4, a round that does not divide it; with steps=6"):
        sync.check_run(6)
    assert [step for step in range(9) if sync.is_last(step)] == [3, 7]


def test_workers_are_ranks_or_nodes() -> None:
    assert [RoundSync(SLOWMO, worker=name).worker_gpus(8) for name in ("rank", "node")] == [1, 8]
