"""What a run has in common with the checkpoint that it goes on from, in sentences by users' keys."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.oracles import small
from tests.runtime.checkpoints.test_folder import checkpoint
from zbench.describe.degrees import ShardDegrees
from zbench.runtime.checkpoints.same_run import check_same
from zbench.runtime.job.job import AdamW
from zbench.runtime.job.step_job import StepJob
from zbench.workloads.fixed import Fixed


def test_another_run_s_checkpoint_is_refused(tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "point", 2, seed=0, hidden=64)
    check_same(path, {"seed": 0, "hidden": 64})
    with pytest.raises(ValueError, match=r"^resume is '.*point'; its run had model.hidden 64, and this one has 128$"):
        check_same(path, {"seed": 0, "hidden": 128})


def job(**of: Any) -> StepJob:
    """A job whose sharding is by nested degrees and whose stages have numbers of layers of their own."""
    given = small(2, 2)
    layers = (2, given.model.num_layers - 2)
    model = replace(given.model, sharding=ShardDegrees(1, 1, 2, 4), pipeline_parallel=2, stage_layers=layers)
    cost = replace(given, model=replace(model, **of.pop("model", {})), cluster=of.pop("cluster", given.cluster))
    workload = Fixed(**{"seed": 0, "tokens": 120, "length": 25, **of.pop("workload", {})})
    return StepJob(cost, workload, 0, "auto", of.get("optimizer", AdamW()), exact=False)


@pytest.mark.parametrize(
    ("of", "told"),
    [
        ({"cluster": small(4, 2).cluster}, "cluster.num_nodes*cluster.gpus_per_node 4, and this one has 8"),
        ({"model": {"offload": "optimizer"}}, "memory.offload none, and this one has optimizer"),
        ({"model": {"stage_layers": (1, 3)}}, "parallel.stage_layers [2, 2], and this one has [1, 3]"),
        ({"model": {"micro_batches": 4}}, "model.micro_batches 1, and this one has 4"),
        ({"optimizer": AdamW(beta2=0.9)}, "executor.optimizer.beta2 0.95, and this one has 0.9"),
        ({"workload": {"length": 9}}, "workload ...length=25, context_limit=131072"),
    ],
)
def test_facts_are_named_by_the_keys_that_set_them(of: dict[str, Any], told: str, tmp_path: Path) -> None:
    path = checkpoint(tmp_path / "point", 2, **job().told())
    check_same(path, job().told())
    with pytest.raises(ValueError, match="its run had ") as error:
        check_same(path, job(**of).told())
    assert told in str(error.value)


def test_of_long_values_what_differs_is_told(tmp_path: Path) -> None:
    """A cut at the same letter would leave two texts that are alike."""
    names = ", ".join(f"path{number}='somewhere'" for number in range(9))
    path = checkpoint(tmp_path / "point", 2, workload=f"Files({names}, length=25)")
    with pytest.raises(ValueError, match=r"had workload \.\.\.length=25\), and this one has \.\.\.length=30\)$"):
        check_same(path, {"workload": f"Files({names}, length=30)"})
