"""executor=torch on processes: it trains as executor=torch_attention does, and every step passes both checks."""

import os
import signal
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from tests.helpers.processes import all_gone
from tests.runtime.test_conformance import DEVICE, MODEL
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.degrees import NODE, WORLD, ShardDegrees, TransferBits
from zbench.describe.expert_schedule import Experts
from zbench.interfaces.dealt import Dealt
from zbench.interfaces.protocols import Executor, System
from zbench.interfaces.result import StepResult
from zbench.runtime import step_executor
from zbench.runtime.attention_executor import TorchAttention
from zbench.runtime.driver import CheckFailed, Diverged
from zbench.runtime.job.step_job import StepReport
from zbench.runtime.processes.fleet import RankFailed
from zbench.runtime.processes.launch import LocalFleet
from zbench.runtime.step_executor import Torch
from zbench.simulated.executor import Simulated
from zbench.step.text import step_text
from zbench.systems.local_packing import LocalPacking
from zbench.systems.ring import Ring
from zbench.systems.zeppelin.planner import Zeppelin
from zbench.workloads.fixed import Fixed

pytestmark = pytest.mark.usefixtures("one_thread")

STEPS = 3
WORKLOAD = Fixed(seed=0, tokens=120, length=50)
EXPERTS = replace(MODEL, ffn_hidden=16, num_experts=4, experts_per_token=2, tied_embeddings=True)
CHECKS = ("exact", "bytes")


def cost_of(nodes: int = 2, gpus: int = 1, model: Any = MODEL, **strategy: Any) -> Cost:
    cluster = Cluster("test", nodes, gpus, 1, 1e9, 0.9, 1e-5, 1e10, 0.9, 1e-6, DEVICE)
    return make_cost(cluster, replace(model, **strategy), pipelines=False)


def trained(executor: Executor, system: System, steps: int = STEPS) -> list[StepResult]:
    try:
        executor.start()
        batches = [WORKLOAD.batch(step) for step in range(steps)]
        return [executor.step(batch, system.plan(batch)) for batch in batches]
    finally:
        executor.stop()


@cache
def losses_of_torch() -> list[float | None]:
    cost = cost_of()
    return [one.loss for one in trained(TorchAttention(cost, WORKLOAD, seed=3, warmup=0), Zeppelin(cost))]


def systems(cost: Cost) -> System:
    return Zeppelin(cost) if cost.pp == 1 else Dealt(Zeppelin(cost), 2)


CASES = {
    "replicated": cost_of(),
    "ZeRO-1, groups": cost_of(2, 2, sharding="zero1", tensor_parallel=2),
    "ZeRO-2, the feed-forward again": cost_of(sharding="zero2", recompute="selective"),
    "ZeRO-3, all again": cost_of(sharding="zero3", recompute="full"),
    "ZeRO-1, stages": cost_of(2, 2, sharding="zero1", pipeline_parallel=2, micro_batches=2),
    "ZeRO-2, stages": cost_of(2, 2, sharding="zero2", pipeline_parallel=2, micro_batches=2),
    "ZeRO-3, stages": cost_of(2, 2, sharding="zero3", pipeline_parallel=2, micro_batches=2),
    "no sharding, stages of a node": cost_of(1, 4, sharding="none", pipeline_parallel=2, micro_batches=2),
    "ZeRO-3, stages of a node": cost_of(1, 4, sharding="zero3", pipeline_parallel=2, micro_batches=2),
    "what stays is whole, stages": cost_of(
        2, 2, sharding=ShardDegrees(WORLD, 1, WORLD, WORLD), pipeline_parallel=2, micro_batches=2
    ),
}


def test_with_routers_that_choose_losses_are_those_of_the_torch_executor() -> None:
    """With seats for all tokens, so that none is dropped; with fewer, what was dropped is told; with as many rows as
    are chosen, whose bytes are fewer. Routers are X-MoE's."""
    model = replace(EXPERTS, gate="sigmoid", router="cosine", router_dim=6, router_temperature=0.3)
    cost = cost_of(model=model, sharding="zero1")
    wanted = [one.loss for one in trained(TorchAttention(cost, WORKLOAD, seed=3, warmup=0), Zeppelin(cost), 2)]
    all_, few = (Experts(capacity=factor, padded=True, routing="token_choice") for factor in (4.0, 0.75))
    counted = Experts(routing="token_choice")
    given: dict[str, Any] = {"seed": 3, "warmup": 0, "check": CHECKS, "expert_parallel": 2}
    found = trained(Torch(cost, WORKLOAD, experts=all_, **given), Zeppelin(cost), 2)
    (less,) = trained(Torch(cost, WORKLOAD, experts=few, **given), Zeppelin(cost), 1)
    chosen = trained(Torch(cost, WORKLOAD, experts=counted, **given), Zeppelin(cost), 2)
    assert [one.loss for one in found] == pytest.approx(wanted, rel=1e-12)
    assert [one.loss for one in chosen] == pytest.approx(wanted, rel=1e-12)
    assert max(one.checks["exact"] for one in (*found, less, *chosen)) < 1e-12
    assert [one.checks["swapped_choices"] for one in (*found, less, *chosen)] == [0] * 5
    assert [one.expert_rows for one in chosen] == [{"dropped": 0, "taken": 0.5}] * 2  # two of four experts a token
    assert max(one.checks["bytes"] for one in chosen) < min(one.checks["bytes"] for one in found)
    assert [one.expert_rows for one in found] == [{"dropped": 0, "padded": 0.75}] * 2
    assert 1 - 2 * 4 * 23 / (120 * 2) <= less.expert_rows["dropped"] < 1  # 23 seats for 60 tokens with two experts


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_of_the_torch_executor_and_both_checks_hold(case: str) -> None:
    cost = CASES[case]
    found = trained(Torch(cost, WORKLOAD, seed=3, warmup=1, check=CHECKS), systems(cost))
    assert [one.loss for one in found] == pytest.approx(losses_of_torch(), rel=1e-12)
    assert found[0].loss != found[-1].loss
    for one in found:
        assert one.checks["exact"] < 1e-12
        assert_account_closes(one, cost)
    played = Simulated(cost).step(WORKLOAD.batch(0), systems(cost).plan(WORKLOAD.batch(0)))
    for queue in ("attention", "tensor_parallel", "stages"):
        assert found[0].nic_tx_for.get(queue) == played.nic_tx_for.get(queue)


def test_gradients_in_fewer_bits_are_within_what_their_transfers_may_lose() -> None:
    """Of 4 bits, in two hops: the first step's loss is a dense model's, later ones are of other parameters, and no
    gradient is beyond its bound; twice the same to the bit."""
    degrees = ShardDegrees(WORLD, WORLD, WORLD, WORLD, hop=NODE, bits=TransferBits(gradients=4, block=16))
    cost = cost_of(2, 2, sharding=degrees)
    found, again = (trained(Torch(cost, WORKLOAD, seed=3, warmup=0, check=CHECKS), Ring(cost)) for _ in "12")
    dense = losses_of_torch()
    assert found[0].loss == pytest.approx(dense[0], rel=1e-12)
    assert found[1].loss != pytest.approx(dense[1], rel=1e-6)
    assert all(one.checks["exact"] < 1e-12 for one in found)
    assert [one.loss for one in found] == [one.loss for one in again]


@pytest.mark.parametrize("sharding", ["zero1", "zero3"])
def test_gradients_reduced_in_the_end_and_parameters_gathered_first(sharding: str) -> None:
    """As Megatron-LM's distributed optimizer has it by default; losses and bytes are those of every other overlap."""
    cost = cost_of(sharding=sharding)
    ahead = {"window": "all" if sharding == "zero1" else 1, "gradient_bucket": "end"}
    found = trained(Torch(cost, WORKLOAD, seed=3, warmup=0, check=CHECKS, **ahead), Zeppelin(cost))
    assert [one.loss for one in found] == pytest.approx(losses_of_torch(), rel=1e-12)
    played = [
        Simulated(cost, **how).step(WORKLOAD.batch(0), Zeppelin(cost).plan(WORKLOAD.batch(0))) for how in ({}, ahead)
    ]
    for queue in ("parameters", "gradients"):
        sums = {sum(one.nic_tx_for[queue]) for one in (*played, found[0])}
        assert len(sums) == 1, queue


@pytest.mark.parametrize("sharding", ["none", "zero1", "zero3"])
def test_collectives_in_two_levels(sharding: str) -> None:
    """Both checks hold, losses are those of every other run, and a shard leaves its node once for each other node: of
    two nodes, half of what a flat collective of four GPUs sends, as the clock says."""
    cost, ways = cost_of(2, 2, sharding=sharding), ("flat", "hierarchical")
    given: dict[str, Any] = {"seed": 3, "warmup": 0, "check": CHECKS}
    flat, both = (trained(Torch(cost, WORKLOAD, collectives=how, **given), Ring(cost), 2) for how in ways)
    for one in (flat, both):
        assert [step.loss for step in one] == pytest.approx(losses_of_torch()[:2], rel=1e-12)
        assert max(step.checks["exact"] for step in one) < 1e-12
    plans = Ring(cost).plan(WORKLOAD.batch(0))
    played = Simulated(cost, collectives="hierarchical").step(WORKLOAD.batch(0), plans)
    for queue in ("parameters", "gradients"):
        sent = sum(both[0].nic_tx_for.get(queue, [0]))
        assert sent == pytest.approx(sum(played.nic_tx_for.get(queue, [0])), rel=0.01), queue
        assert 2 * sent == pytest.approx(sum(flat[0].nic_tx_for.get(queue, [0])), rel=0.05), queue


@pytest.mark.parametrize("degree", [1, 2])
def test_transfers_over_several_nics_go_as_the_clock_has_them(degree: int) -> None:
    """Each share is passed on by the GPUs tied to its NIC: both checks hold, each NIC sends for attention what the
    clock says, and losses are those of transfers that go straight. Groups of two GPUs, and groups of one."""
    cluster = Cluster("slow", 2, 2 * degree, 2, 1e6, 0.9, 1e-5, 1e10, 0.9, 1e-6, DEVICE)
    cost = make_cost(cluster, replace(MODEL, sharding="none", tensor_parallel=degree), pipelines=False)
    given: dict[str, Any] = {"seed": 3, "warmup": 0, "check": CHECKS}
    batch, sent, losses = WORKLOAD.batch(0), [], []
    for route in (True, False):
        system = Zeppelin(cost, partition=False, route=route)
        played = Simulated(cost).step(batch, system.plan(batch))
        (found,) = trained(Torch(cost, WORKLOAD, **given), system, 1)
        assert found.checks["exact"] < 1e-12
        assert found.nic_tx_for["attention"] == played.nic_tx_for["attention"]
        sent.append(found.checks["bytes"])
        losses.append(found.loss)
    assert sent[0] > sent[1], "shares are sent to the GPUs that pass them on"
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)


def test_bfloat16_sends_what_the_step_says() -> None:
    """Gradients are computed in two bytes a number, summed and sent in four; losses are as near as its 8 bits are."""
    cost = cost_of(sharding="zero1", element_bytes=2, lse_bytes=4)
    found = trained(Torch(cost, WORKLOAD, seed=3, warmup=0, check=("bytes",)), Zeppelin(cost))
    assert [one.loss for one in found] == pytest.approx(losses_of_torch(), rel=2**-8)
    assert found[0].loss != losses_of_torch()[0]


def assert_account_closes(one: StepResult, cost: Cost) -> None:
    ranks = cost.gpus.cluster.num_ranks
    spent = {name: np.array(values) for name, values in one.seconds_for.items()}
    assert {len(values) for values in spent.values()} == {ranks}
    assert sum(spent.values()) == pytest.approx(np.full(ranks, one.seconds), rel=1e-6)
    assert min(values.min() for values in spent.values()) >= 0
    assert min(spent["attention"]) > 0
    assert spent["attention"].tolist() == one.attention_seconds
    assert ("recomputation" in spent) == (cost.model.recompute != "none")
    assert (np.array(one.exposed_seconds) <= np.array(one.communication_seconds)).all()
    none = np.zeros(len(one.nic_tx_bytes), np.int64)  # as on one node
    assert sum(map(np.array, one.nic_tx_for.values()), none).tolist() == one.nic_tx_bytes
    assert sum(one.nic_tx_bytes) == sum(one.nic_rx_bytes)
    assert len(one.peak_bytes) == ranks
    assert min(one.peak_bytes) > 0


def test_experts_on_several_processes_some_of_which_have_no_token() -> None:
    """The dense model is told the experts that the step draws. A short sequence leaves a rank without a token. The head
    has the embedding's table. Tokens go to experts in two chunks."""
    cost = cost_of(model=EXPERTS, sharding="zero1")
    experts = Experts("tutel", 2, 1.0)
    executor = Torch(cost, WORKLOAD, warmup=0, check=CHECKS, expert_parallel=2, experts=experts)
    short = Batch(np.array([9]), seed=0, step=1)
    try:
        executor.start()
        found = [executor.step(one, LocalPacking(cost).plan(one)) for one in (WORKLOAD.batch(0), short)]
    finally:
        executor.stop()
    assert max(one.checks["exact"] for one in found) < 1e-12
    assert sum(found[0].nic_tx_for["experts"]) > 0
    assert found[0].expert_chunks == {"forward": 2, "backward": 2, "weights": "chunk", "seconds": {}}


@pytest.mark.parametrize("case", CASES)
def test_the_step_is_the_one_that_is_played(case: str) -> None:
    """What executor=simulated plays of the same plans is what ranks are sent, word by word."""
    cost = CASES[case]
    batch = WORKLOAD.batch(0)
    plans = systems(cost).plan(batch)
    sent, played = Torch(cost, WORKLOAD).steps.of(batch, plans), Simulated(cost).built(batch, plans)
    assert step_text(sent) == step_text(played)


def report(worst: tuple[float, str], sent: int) -> StepReport:
    return StepReport(1.0, 1.0, {}, 0.0, {}, {"attention": (sent, sent)}, 1, 1, 0.0, worst)


@pytest.mark.parametrize(
    ("reports", "told"),
    [
        (
            [report((2e-12, "the gradient of wq in layer 1"), 8)],
            r"^check=exact failed in step 0: the gradient of wq",
        ),
        ([report((float("nan"), "the loss"), 8)], r"^check=exact failed in step 0: the loss differs from .* by nan of"),
        (
            [report((1e-16, "the loss"), 9)],
            r"^check=bytes failed in step 0: rank 0 has \(sent, received\) \{'att",
        ),
    ],
)
def test_what_a_check_finds_ends_the_run(reports: list[StepReport], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_executor, "stated_bytes", lambda step, rows, lanes: [{"attention": (8, 8)}])
    cost = cost_of(1, 1)
    executor = Torch(cost, WORKLOAD, check=CHECKS)
    step = executor.steps.of(WORKLOAD.batch(0), Zeppelin(cost).plan(WORKLOAD.batch(0)))
    with pytest.raises(CheckFailed, match=told):
        executor.checked(WORKLOAD.batch(0), step, reports)


def test_a_loss_that_is_no_number_and_a_killed_rank_end_the_run() -> None:
    cost = cost_of()
    executor = Torch(cost, WORKLOAD, warmup=0, optimizer={"lr": 1e308}, timeout=60)
    batches = [WORKLOAD.batch(step) for step in range(3)]
    executor.start()
    try:
        fleet = executor._fleet
        assert isinstance(fleet, LocalFleet)
        pids = [fleet.launcher_pid, *fleet.pids]
        executor.step(batches[0], Zeppelin(cost).plan(batches[0]))
        with pytest.raises(Diverged, match=r"^the loss is nan in step 1; the run stops$"):
            executor.step(batches[1], Zeppelin(cost).plan(batches[1]))
        os.kill(fleet.pids[1], signal.SIGKILL)
        with pytest.raises(RankFailed, match=r"^rank 1 was killed by signal 9"):
            executor.step(batches[2], Zeppelin(cost).plan(batches[2]))
    finally:
        executor.stop()
    assert all_gone(pids)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"resume": "x"}, "resume is 'x'; it takes the folder of a checkpoint"),
        ({"warmup": -1}, "executor.warmup is -1; it takes a whole number of at least 0"),
        ({"timeout": 0}, "executor.timeout is 0; it takes a number of at least 1"),
        ({"kernel": "x"}, "executor.kernel is 'x'; it takes auto"),
        ({"optimizer": {"lr": -1}}, "executor.optimizer.lr is -1; it takes"),
        ({"expert_parallel": 2}, "parallel.expert_parallel is 2; mini has no experts, so it takes 1"),
        ({"experts": Experts(skew=1.0)}, "experts.skew is 1.0; mini has no experts, so it takes 0"),
    ],
)
def test_a_setting_that_cannot_be_is_a_sentence(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        Torch(cost_of(), WORKLOAD, **settings)


def test_plans_that_do_not_run_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = cost_of()
    (plan,) = Zeppelin(cost).plan(WORKLOAD.batch(0))
    executor = Torch(cost, WORKLOAD)
    monkeypatch.setattr(executor, "_fleet", object())
    with pytest.raises(ValueError, match=r"^system has deepspeed compute attention in place of its plans; executor="):
        executor.step(WORKLOAD.batch(0), (replace(plan, attention="deepspeed"),))


def test_plans_that_pad_sequences_are_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    cost = cost_of()
    executor, batch = Torch(cost, WORKLOAD), Batch(np.array([5, 3]), 0, 0)
    monkeypatch.setattr(executor, "_fleet", object())
    with pytest.raises(ValueError, match=r"^plans pad sequences, as with system.padding=published; executor=torch "):
        executor.step(batch, Ring(cost, padding="published").plan(batch))
