"""Training on real processes: faults, checkpoints, the same bits twice. That it is exact: test_conformance."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.processes import all_gone
from tests.runtime.test_conformance import DEVICE, MODEL
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.interfaces.protocols import System
from zbench.interfaces.result import SECONDS_FOR
from zbench.runtime.attention_executor import TorchAttention
from zbench.runtime.checkpoints.folder import META, checkpoint_description
from zbench.runtime.checkpoints.manifest import FILES, entries, sealed
from zbench.runtime.driver import CheckFailed, Diverged
from zbench.runtime.job.job import AdamW, Job, Report
from zbench.runtime.processes.fleet import RankFailed
from zbench.runtime.processes.launch import LocalFleet
from zbench.systems.zeppelin.planner import Zeppelin
from zbench.workloads.fixed import Fixed

pytestmark = pytest.mark.usefixtures("one_thread")

COST = Cost(
    Cluster("test", 2, 1, 1, 1e9, 0.9, 1e-5, 1e10, 0.9, 1e-6, DEVICE), replace(MODEL, element_bytes=4, lse_bytes=4)
)
TWO_BY_TWO = replace(COST, cluster=replace(COST.cluster, gpus_per_node=2))
WORKLOAD = Fixed(seed=0, tokens=120, length=50)
SYSTEM = Zeppelin(COST)


def train(executor: TorchAttention, steps: int, system: System = SYSTEM) -> list[float]:
    """Losses of the steps that are left; the executor is stopped."""
    try:
        first = executor.start().first_step
        batches = [WORKLOAD.batch(step) for step in range(first, steps)]
        return [float(executor.step(batch, system.plan(batch)).loss or 0) for batch in batches]
    finally:
        executor.stop()


PLACES = ("forward attention", "backward attention", "gradient reduction", "checkpoint")


@pytest.mark.parametrize(
    ("cost", "rank", "place"),
    [
        *((COST, rank, place) for rank, place in zip((0, 1, 1, 0), PLACES, strict=True)),
        *((TWO_BY_TWO, rank, place) for rank, place in zip((3, 0, 2, 1), PLACES, strict=True)),
    ],
)
def test_a_killed_rank_ends_the_run_and_is_named(cost: Cost, rank: int, place: str, tmp_path: Path) -> None:
    job = Job(cost, WORKLOAD, 0, "auto", "replicated", AdamW(), False)
    batch = WORKLOAD.batch(0)
    told = rf"rank {rank} was killed by signal 9.*{place}"
    with LocalFleet(cost.cluster.num_ranks, "tests.runtime.dying:Dying", (job, rank, place), timeout=60) as fleet:
        pids = [fleet.launcher_pid, *fleet.pids]
        calls = [("step", (batch, Zeppelin(cost).plan(batch), True)), ("save", (str(tmp_path / "point"), 1))]
        with pytest.raises(RankFailed, match=told):  # noqa: PT012 - whichever call comes to that place
            for method, arguments in calls:
                fleet.call(method, *arguments)
    assert all_gone(pids)
    assert not (tmp_path / "point").exists()


def test_a_rank_killed_while_it_saves_again_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    folder = str(tmp_path / "point")
    train(TorchAttention(COST, WORKLOAD, checkpoint_every=1, checkpoint=folder), 1)
    job = Job(COST, WORKLOAD, 0, "auto", "replicated", AdamW(), False)
    with (
        LocalFleet(2, "tests.runtime.dying:Dying", (job, 1, "checkpoint"), timeout=60) as fleet,
        pytest.raises(RankFailed),
    ):
        fleet.call("save", folder, 2)
    assert TorchAttention(COST, WORKLOAD, resume=folder).first_step == 1


def opened_as_data(folder: Path, marker: Path) -> None:
    """Lets torch's pickle in a checkpoint run something when it is opened, as its manifest then says, too."""
    (folder / ".metadata").write_bytes(b"cos\nmkdir\n(V" + str(marker).encode() + b"\ntR.")
    with pytest.raises(ValueError, match=r"^resume is .*; its checkpoint has .metadata with \d+ bytes, and \d+ were "):
        TorchAttention(COST, WORKLOAD, resume=str(folder))
    meta = checkpoint_description(str(folder))
    files = entries(folder, meta.pop(FILES))
    (folder / META).write_text(sealed(meta, files))


@pytest.mark.parametrize("parameters", ["replicated", "sharded"])
def test_a_resumed_run_goes_on_as_if_it_had_not_stopped(parameters: str, tmp_path: Path) -> None:
    folder = str(tmp_path / "point")
    whole = train(TorchAttention(COST, WORKLOAD, parameters=parameters), 5)
    first = train(TorchAttention(COST, WORKLOAD, parameters=parameters, checkpoint_every=2, checkpoint=folder), 3)
    opened_as_data(tmp_path / "point", tmp_path / "PWNED")
    rest = train(TorchAttention(COST, WORKLOAD, parameters=parameters, resume=folder), 5)
    assert not (tmp_path / "PWNED").exists()
    assert first == whole[:3]
    assert rest == whole[2:]  # the same bits: checkpoint after two steps, and so after warming up
    assert len(set(whole)) == 5


def test_two_runs_give_the_same_bits() -> None:
    assert train(TorchAttention(COST, WORKLOAD), 3) == train(TorchAttention(COST, WORKLOAD, warmup=0), 3)


def test_a_loss_that_is_no_number_stops_the_run() -> None:
    with pytest.raises(Diverged, match=r"the loss is (nan|inf) in step \d; the run stops"):
        train(TorchAttention(COST, WORKLOAD, optimizer={"lr": 1e38}), 6)


def test_what_a_step_measures() -> None:
    executor = TorchAttention(COST, WORKLOAD, recompute="auto")
    ready = executor.start()
    try:
        batch = WORKLOAD.batch(0)
        result = executor.step(batch, SYSTEM.plan(batch))
    finally:
        executor.stop()
    assert ready.about["ranks"][0]["backend"] == "gloo"
    assert ready.about["ranks"][0]["kernel"] == "torch-flash-cpu"
    assert set(ready.about["ranks"][0]["packages"]) == {"deepspeed"}
    assert ready.about["optimizer_state"].startswith("whole on every rank")
    assert ready.about["ranks"][0]["elementwise"] == "uncompiled"
    assert result.recompute["level"] == "none"
    assert 0 < result.recompute["predicted_bytes"] < result.recompute["capacity_bytes"] == DEVICE.memory_bytes
    assert result.seconds > 0
    assert all(a + b <= result.seconds for a, b in zip(result.attention_seconds, result.linear_seconds, strict=True))
    assert np.sum(list(result.seconds_for.values()), axis=0) == pytest.approx(result.seconds, rel=1e-9)
    assert result.seconds_for["attention"] == result.attention_seconds
    assert {"linear", "optimizer", "waiting_gradients"} < set(result.seconds_for) < set(SECONDS_FOR)
    assert all(a <= b for a, b in zip(result.exposed_seconds, result.communication_seconds, strict=True))
    assert min(result.peak_bytes) > 1e6
    assert len(result.nic_tx_bytes) == 2


def test_a_failed_check_says_what_differs() -> None:
    executor = TorchAttention(COST, WORKLOAD, check=("exact",))
    report = Report(1.0, 1.0, 0.1, 0.1, 0.1, 0.1, (0, 0), (0, 0), 1, 1, worst=(2e-12, "the gradient of head"))
    with pytest.raises(CheckFailed, match=r"check=exact failed in step 0: the gradient of head differs .* by 2e-12"):
        executor.checked(Batch(np.array([3]), 0, 0), (), [report, report], "none")
    assert executor.checked(Batch(np.array([3]), 0, 0), (), [replace(report, worst=(9e-13, "x"))], "none") == {
        "exact": 9e-13
    }


def test_a_byte_too_many_fails_the_check() -> None:
    executor = TorchAttention(COST, WORKLOAD, check=("bytes",))
    batch = Batch(np.array([40]), 0, 0)
    report = Report(1.0, 1.0, 0.1, 0.1, 0.1, 0.1, (0, 0), (12, 12), 1, 1)
    with pytest.raises(CheckFailed, match=r"check=bytes failed in step 0: rank 0 sent 12 bytes, and the simulator"):
        executor.checked(batch, SYSTEM.plan(batch), [report, report], "none")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"kernel": "fast"}, "executor.kernel is 'fast'; it takes auto, matmul"),
        ({"parameters": "zero3"}, "executor.parameters is 'zero3'; it takes replicated, sharded"),
        ({"compile": "yes"}, "executor.compile is 'yes'; it takes true, false or null"),
        ({"recompute": "some"}, "executor.recompute is 'some'; it takes auto, none, selective, linear, full"),
        ({"timeout": 0}, "executor.timeout is 0; it takes a number of at least 1"),
        ({"warmup": 1.5}, "executor.warmup is 1.5; it takes a whole number of at least 0"),
        ({"checkpoint_every": 0}, "executor.checkpoint_every is 0"),
        ({"optimizer": {"lr": -1}}, "executor.optimizer.lr is -1; it takes a number of at least 0 and finite"),
        ({"optimizer": {"rate": 1}}, "executor.optimizer.rate is no key; there are lr, beta1"),
        ({"resume": "/nowhere"}, "resume is '/nowhere'; it takes the folder of a checkpoint"),
    ],
)
def test_bad_settings_are_told_in_a_sentence(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told.replace("(", r"\(")):
        TorchAttention(COST, WORKLOAD, **settings)
