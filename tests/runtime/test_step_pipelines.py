"""executor=torch on processes with pipelines that differ, and with others in the next step."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.processes import all_gone
from tests.helpers.steps import pipeline_plans
from tests.runtime.test_conformance import MODEL as MINI
from tests.runtime.test_step_executor import CHECKS, assert_account_closes, cost_of
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.model import Model
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan
from zbench.runtime import step_executor
from zbench.runtime.handlers.formats import WHOLE
from zbench.runtime.handlers.parameters import ParameterSlices
from zbench.runtime.processes.fleet import RankFailed
from zbench.runtime.processes.launch import LocalFleet
from zbench.runtime.step_executor import Torch
from zbench.simulated.executor import Simulated
from zbench.systems.zeppelin.planner import Zeppelin
from zbench.workloads.fixed import Fixed

MODEL = replace(MINI, hidden=36)  # norms' gains are gathered in three parts, alike in bytes
TIED = replace(MODEL, tied_embeddings=True)
WORKLOAD = Fixed(seed=0, tokens=120, length=25)
Shapes = Sequence[tuple[int, int]]
ORDINARY: Shapes = ()
# Of every step: pipelines that differ, none, single GPUs, one, the same again, one GPU in none, single GPUs.
CHANGING: Sequence[Shapes] = (
    [(2, 1), (1, 2)],
    ORDINARY,
    [(1, 1)] * 4,
    [(2, 2)],
    [(2, 2)],
    [(1, 1), (1, 2)],
    [(1, 1)] * 4,
)
Rests = Mapping[str, list[Tensor]]  # by parameter: whole, of all layers, and its moments


@pytest.fixture(autouse=True)
def resting_ranks(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_executor, "RANK", "tests.runtime.resting:RestingRank")


def plans_of(cost: Cost, batch: Batch, shapes: Shapes) -> tuple[Plan, ...]:
    """Plans of two micro-batches, whose sequences go to pipelines in turn; without shapes, ordinary ones."""
    if not shapes:
        return Zeppelin(cost).plan(batch)
    dealt = [(int(length), at % len(shapes)) for at, length in enumerate(batch.lengths)]
    half = len(dealt) // 2
    return tuple(pipeline_plans(list(shapes), [dealt[:half], dealt[half:]], cost.cluster.num_ranks))


def trained(cost: Cost, strategies: Sequence[Shapes], **settings: Any) -> tuple[list[StepResult], Rests]:
    """The results of a step with each of some pipelines, and what rests after them."""
    executor = Torch(cost, WORKLOAD, seed=3, **settings)
    try:
        executor.start()
        assert executor._fleet is not None
        found = []
        for number, shapes in enumerate(strategies):
            batch = WORKLOAD.batch(number)
            found.append(executor.step(batch, plans_of(cost, batch, shapes)))
        every = executor._fleet.call("rests")
        assert executor._left is not None
        return found, whole(executor._left.layouts[0], cost.model, [one for rank in every for one in rank])
    finally:
        executor.stop()


def whole(layout: Any, model: Model, every: Sequence[tuple[str, int, Any, Any, list[Tensor]]]) -> Rests:
    """Puts pieces of optimizer state together; every copy of a parameter has to be as that says."""
    dims = {"h": model.num_heads, "g": model.num_kv_heads, "d": model.head_dim, "f": model.common_ffn}
    dims |= {"e": model.num_experts, "i": model.ffn_hidden, "w": model.dense_ffn_hidden}
    slices = ParameterSlices(layout, dims | {"v": model.vocab, "c": model.hidden, "k": 2})
    pieces: dict[tuple[str, int], list[Any]] = {}
    for name, layer, first, second, fields in every:
        if name not in WHOLE:
            pieces.setdefault((name[1:], layer), []).append((first, second, fields))
    found = {
        key: [slices.whole(key[0], [(*cells, fields[at]) for *cells, fields in some]) for at in range(3)]
        for key, some in pieces.items()
    }
    for name, layer, first, second, fields in every:
        if name in WHOLE:
            wanted = slices.cells(name, found[name, layer][0], first, second).to(fields[0].dtype)
            assert torch.equal(fields[0], wanted), (name, layer)
    names = sorted({name for name, _ in found})
    return {
        one: [torch.stack([found[key][at] for key in sorted(found) if key[0] == one]) for at in (0, 1, 2)]
        for one in names
    }


@cache
def alone(steps: int, model: Model = MODEL) -> tuple[list[StepResult], Rests]:
    """Trains the same batches on one process, which has all parameters in every step."""
    return trained(cost_of(1, 1, model), [ORDINARY] * steps, warmup=0)


def assert_rests(found: Rests, wanted: Rests) -> None:
    assert list(found) == list(wanted)
    for name, fields in wanted.items():
        for mine, one in zip(found[name], fields, strict=True):
            assert float(one.abs().max()) > 0
            assert float((mine - one).abs().max() / one.abs().max()) < 1e-12, name


def changed(cost: Cost) -> list[tuple[StepResult, StepResult]]:
    """Trains a step with each of CHANGING, and plays the same on the simulated clock; returns both results of every
    step. They train what one process does, and what moves between two steps is what the clock sends."""
    found, rests = trained(cost, CHANGING, warmup=1, check=CHECKS)
    model = TIED if cost.model.tied_embeddings else MODEL
    wanted, wanted_rests = alone(len(CHANGING), model)
    assert [one.loss for one in found] == pytest.approx([one.loss for one in wanted], rel=1e-12)
    assert_rests(rests, wanted_rests)
    assert max(one.checks["exact"] for one in found) < 1e-12
    assert ["switch" in one.phases for one in found] == [False, True, True, True, False, True, True]
    simulated, pairs = Simulated(cost), []
    for number, (one, shapes) in enumerate(zip(found, CHANGING, strict=True)):
        batch = WORKLOAD.batch(number)
        played = simulated.step(batch, plans_of(cost, batch, shapes))
        assert one.nic_tx_for.get("switch") == played.nic_tx_for.get("switch")
        pairs.append((one, played))
    return pairs


@pytest.mark.parametrize("strategy", [{"sharding": "zero1"}, {"sharding": "zero3", "recompute": "full"}])
def test_pipelines_that_differ_are_exact_and_send_what_is_played(strategy: dict[str, str]) -> None:
    """On a node for each GPU all bytes go through NICs; reductions and gathers take other ways there, and as many."""
    cost, shapes = cost_of(4, 1, MODEL, **strategy), [(2, 1), (1, 2)]
    found, rests = trained(cost, [shapes] * 2, warmup=1, check=CHECKS)
    wanted, wanted_rests = alone(2)
    assert [one.loss for one in found] == pytest.approx([one.loss for one in wanted], rel=1e-12)
    assert_rests(rests, wanted_rests)
    for number, one in enumerate(found):
        assert one.checks["exact"] < 1e-12
        assert "switch" not in one.phases
        assert_account_closes(one, cost)
        batch = WORKLOAD.batch(number)
        played = Simulated(cost).step(batch, plans_of(cost, batch, shapes))
        assert one.nic_tx_for["stages"] == played.nic_tx_for["stages"]
        sums = [{queue: sum(sizes) for queue, sizes in some.nic_tx_for.items()} for some in (one, played)]
        assert sums[0] == sums[1]
        assert set(sums[0]) >= {"tensor_parallel", "gradients", "stages"}


@pytest.mark.parametrize("sharding", ["none", "zero1"])
def test_parameters_and_their_state_go_where_the_next_steps_pipelines_want_them(sharding: str) -> None:
    """check=bytes has what moved beside zbench.step.switch_law, of every rank; the simulated clock sends the same."""
    cost = cost_of(2, 2, MODEL, sharding=sharding)
    pairs = changed(cost)
    assert sum(pairs[1][0].nic_tx_for["switch"]) > 0  # a pipeline on each node had all, a GPU of it half of a layer's
    for (one, played), shapes in zip(pairs, CHANGING, strict=True):
        assert "switch" in one.phases or "switch" not in played.phases  # to forget something takes no simulated time
        assert one.phases.get("switch", 0.0) < one.seconds
        if shapes != [(1, 1), (1, 2)]:  # there a GPU computes no attention
            assert_account_closes(one, cost)


@pytest.mark.parametrize("sharding", ["none", "zero1"])
def test_a_tied_table_comes_and_goes_with_the_stages_of_pipelines(sharding: str) -> None:
    """A pipeline of two stages has two of them, whose numbers come from the one that others have."""
    changed(cost_of(2, 2, TIED, sharding=sharding))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("nodes", "gpus", "sharding", "layers"),
    [
        (2, 2, "zero1", "all"),
        (4, 1, "zero1", "all"),
        (1, 4, "zero1", "all"),
        (2, 2, "zero3", "all"),
        (2, 2, "zero2", 1),
    ],
)
def test_state_on_hosts_goes_where_the_next_steps_pipelines_want_it(
    nodes: int, gpus: int, sharding: str, layers: int | str
) -> None:
    """Ordinary steps have a host memory for each node, others a part of it for each GPU; of the last layer alone, what
    is on hosts and on GPUs moves beside each other."""
    changed(with_hosts(cost_of(nodes, gpus, MODEL, sharding=sharding, offload="optimizer", optimizer_layers=layers)))


def with_hosts(cost: Cost) -> Cost:
    """A cost model of nodes that have host memory."""
    link = {"host_bandwidth": 2e10, "host_efficiency": 0.9, "host_latency": 1e-5}
    return replace(cost, cluster=replace(cost.cluster, **link, host_memory=2.0**36, host_adam_bandwidth=1e11))


def test_in_bfloat16_twelve_bytes_of_state_move_with_two_of_a_parameter() -> None:
    """From a group of two GPUs, each with half, to single ones: each sends its half of a parameter, and no state."""
    cost = cost_of(2, 1, MODEL, sharding="none", element_bytes=2, lse_bytes=4)
    found, _ = trained(cost, [[(2, 1)], [(1, 1)] * 2], warmup=0, check=("bytes",))
    # Norms' gains are whole on both GPUs already.
    cut = cost.model.total_params - cost.model.hidden * (2 * cost.model.num_layers + 1)
    assert found[1].nic_tx_for["switch"] == [14 * cut / 2] * 2


def test_a_rank_that_is_killed_while_parameters_move_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_executor, "RANK", "tests.runtime.resting:LeavingRank")
    cost = cost_of(2, 1, MODEL)
    executor = Torch(cost, WORKLOAD, warmup=0, timeout=60)
    executor.start()
    try:
        fleet = executor._fleet
        assert isinstance(fleet, LocalFleet)
        pids = [fleet.launcher_pid, *fleet.pids]
        executor.step(WORKLOAD.batch(0), plans_of(cost, WORKLOAD.batch(0), [(2, 1)]))
        with pytest.raises(RankFailed, match=r"^rank 1 was killed by signal 9 .* in step 1, moving parameters and opt"):
            executor.step(WORKLOAD.batch(1), plans_of(cost, WORKLOAD.batch(1), [(1, 1)] * 2))
    finally:
        executor.stop()
    assert all_gone(pids)
