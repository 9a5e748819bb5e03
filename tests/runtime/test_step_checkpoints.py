"""Checkpoints of executor=torch where workers come together in every step."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.test_step_executor import CHECKS, EXPERTS, WORKLOAD, cost_of
from tests.runtime.test_step_pipelines import CHANGING, MODEL, Shapes, plans_of
from tests.runtime.test_step_pipelines import WORKLOAD as OF_PIPELINES
from zbench.cost.cost import Cost
from zbench.runtime.checkpoints.folder import META
from zbench.runtime.checkpoints.manifest import FILES, sealed
from zbench.runtime.step_executor import Torch
from zbench.systems.zeppelin.planner import Zeppelin
from zbench.workloads.fixed import Fixed

pytestmark = pytest.mark.usefixtures("one_thread")


def losses(cost: Cost, steps: range, shapes: dict[int, Shapes], **settings: Any) -> list[float | None]:
    """The losses of steps. shapes: by step, the pipelines of its plans; of others there are none."""
    of: Fixed = OF_PIPELINES if shapes else WORKLOAD
    executor = Torch(cost, of, seed=3, check=CHECKS, timeout=60.0, **settings)
    try:
        assert executor.start().first_step == steps.start
        found = []
        for step in steps:
            batch = of.batch(step)
            plans = plans_of(cost, batch, shapes[step]) if shapes else Zeppelin(cost).plan(batch)
            found.append(executor.step(batch, plans).loss)
        return found
    finally:
        executor.stop()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ({"sharding": "none"}, {}),
        ({"sharding": "zero3", "tensor_parallel": 2}, {}),
        ({"sharding": "zero1", "model": EXPERTS}, {"expert_parallel": 2}),
    ],
)
def test_a_run_goes_on_to_the_bit(strategy: dict[str, Any], settings: dict[str, Any], tmp_path: Path) -> None:
    cost, folder = cost_of(2, 1 if settings else 2, **strategy), str(tmp_path / "checkpoint")
    whole = losses(cost, range(4), {}, warmup=1, checkpoint_every=2, checkpoint=folder, **settings)
    assert losses(cost, range(4, 4), {}, resume=folder, **settings) == []
    losses(cost, range(3), {}, warmup=0, checkpoint_every=3, checkpoint=folder, **settings)
    assert losses(cost, range(3, 4), {}, warmup=1, resume=folder, **settings) == whole[3:]


def test_it_goes_on_with_other_pipelines_than_those_that_it_was_taken_with(tmp_path: Path) -> None:
    """A checkpoint says what lies where, and what the next step wants elsewhere moves before it."""
    cost, folder = cost_of(4, 1, MODEL, sharding="zero1"), str(tmp_path / "checkpoint")
    shapes = dict(enumerate(CHANGING[:4]))
    whole = losses(cost, range(4), shapes, warmup=0, checkpoint_every=3, checkpoint=folder)
    assert losses(cost, range(3, 4), shapes, warmup=0, resume=folder) == whole[3:]
    assert losses(cost, range(3, 4), shapes, warmup=1, resume=folder) == whole[3:]


def test_others_are_refused_in_a_sentence(tmp_path: Path) -> None:
    cost, folder = cost_of(2, 2, sharding="zero1"), tmp_path / "checkpoint"
    losses(cost, range(1), {}, warmup=0, checkpoint_every=1, checkpoint=str(folder))

    def refused(words: str, of: Cost = cost, **settings: Any) -> None:
        with pytest.raises(ValueError, match=words):
            Torch(of, WORKLOAD, seed=3, resume=str(folder), **settings)

    for strategy, words in (
        ({"tensor_parallel": 2, "sharding": "zero1"}, "its run had parallel.tensor_parallel 1, and this one has 2$"),
        (
            {"pipeline_parallel": 2, "micro_batches": 2, "sharding": "zero1"},
            "its run had parallel.pipeline_parallel 1, and this one",
        ),
        ({"sharding": "zero2"}, "its run had sharding zero1, and this one has zero2$"),
    ):
        refused(words, cost_of(2, 2, **strategy))
    refused("its run had executor.optimizer.lr .* and this one has 0.5$", optimizer={"lr": 0.5})
    meta = json.loads((folder / META).read_text())
    files = meta.pop(FILES)
    told = {name: value for name, value in meta.items() if name != "sha256"}
    for changed, words in (
        ({"rests": None}, r"with sync=every_step \(it does not say what rests where\)$"),
        ({"tokens_of_last_step": 0}, r"with sync=every_step \(it does not say what rests where\)$"),
        ({"rests": "step of no layers"}, "it takes the checkpoint of a run of executor=torch"),
    ):
        (folder / META).write_text(sealed({**told, **changed}, files))
        refused(words)
