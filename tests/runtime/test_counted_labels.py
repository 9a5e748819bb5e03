"""Labels that do not count, trained with on processes: loss and gradients are those of one dense process that ignores
them, over the labels of the whole batch that count, wherever those lie; every byte is what the step says."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.helpers.examples import examples
from tests.runtime.test_conformance import MODEL
from tests.runtime.test_rounds import ADAMW, Worker, begun
from tests.runtime.test_step_executor import CHECKS, EXPERTS, cost_of
from tests.step.test_optimizer_on_hosts import HOST
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost, worker_cost
from zbench.describe.batch import Batch
from zbench.describe.expert_schedule import Experts
from zbench.describe.sync import SLOWMO, RoundSync
from zbench.interfaces.dealt import Dealt, WorkerPlans
from zbench.interfaces.protocols import Executor, System
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan
from zbench.plans.workers import plans_of_worker
from zbench.runtime.attention_executor import TorchAttention
from zbench.runtime.step_executor import Torch
from zbench.runtime.stepping.dense import dense_gradients
from zbench.runtime.training.text import sequences
from zbench.step.outer_update import outer_update
from zbench.systems.local_packing import LocalPacking
from zbench.systems.ring import Ring
from zbench.systems.zeppelin.planner import Zeppelin
from zbench.workloads.fixed import Fixed

pytestmark = pytest.mark.usefixtures("one_thread")

WORKLOAD = Fixed(seed=0, tokens=101, length=101)  # its tokens alone are looked at, which are made
LENGTHS = (50, 1, 13, 23, 7, 7)  # odd, and no chunk of any case divides them
Planner = Callable[[Cost], System]


def batch_of(step: int, counts: Sequence[bool] | None = None, lengths: Sequence[int] = LENGTHS) -> Batch:
    """A batch with labels that count; None: about half of them, none of the fourth sequence, in runs as prompts and
    responses are."""
    batch = Batch(np.array(lengths, np.int64), 0, step)
    if counts is None:
        rng, parts = np.random.default_rng([9, step]), []
        for number, length in enumerate(lengths):
            prompt = length if number == 3 else rng.integers(0, length)
            parts.append(np.arange(length) >= prompt)
        counts = np.concatenate(parts)
    return replace(batch, counts=np.array(counts, bool))


def trained(
    executor: Executor, system: System, steps: Sequence[int] = range(3), make: Callable[[int], Batch] = batch_of
) -> list[StepResult]:
    try:
        executor.start()
        return [executor.step(batch, system.plan(batch)) for batch in map(make, steps)]
    finally:
        executor.stop()


@cache
def losses_of_attention() -> list[float | None]:
    """Losses by executor=torch_attention, whose head is not that of whole steps."""
    cost = cost_of()
    found = trained(TorchAttention(cost, WORKLOAD, seed=3, warmup=1, check=("exact",)), Zeppelin(cost))
    assert max(one.checks["exact"] for one in found) < 1e-12
    return [one.loss for one in found]


def test_padding_and_labels_that_do_not_count() -> None:
    """Neither padding's labels nor those that do not count are in the loss of plans that pad."""
    cost = cost_of()
    padded = Ring(cost, padding="published")
    assert padded.plan(batch_of(0))[0].padding is not None
    found = trained(TorchAttention(cost, WORKLOAD, seed=3, warmup=0, check=("exact",)), padded)
    assert max(one.checks["exact"] for one in found) < 1e-12
    assert [one.loss for one in found] == pytest.approx(losses_of_attention(), rel=1e-12)


def dealt(cost: Cost) -> System:
    return Dealt(Zeppelin(cost), 2)


CHUNKS = {"loss_chunk_tokens": 5, "mlp_chunk_tokens": 7, "recompute": "chunked"}
CASES: dict[str, tuple[Cost, Planner]] = {
    "two ranks": (cost_of(), Zeppelin),
    "chunks that do not divide": (cost_of(2, 2, sharding="zero1", **CHUNKS), Ring),
    "chunks of one token": (cost_of(sharding="zero2", loss_chunk_tokens=1), LocalPacking),
    "groups, a vocabulary in slices, chunks": (
        cost_of(2, 2, sharding="zero3", tensor_parallel=2, loss_chunk_tokens=3),
        Zeppelin,
    ),
    "one group": (cost_of(1, 2, tensor_parallel=2, loss_chunk_tokens="auto"), Ring),
    "micro-batches": (cost_of(2, 2, sharding="zero2", **CHUNKS), dealt),
    "stages": (cost_of(2, 2, sharding="zero1", pipeline_parallel=2, micro_batches=2, loss_chunk_tokens=4), dealt),
    "stages of groups": (
        cost_of(2, 2, sharding="zero1", tensor_parallel=2, pipeline_parallel=2, micro_batches=2),
        dealt,
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_of_the_torch_executor_and_both_checks_hold(case: str) -> None:
    cost, planner = CASES[case]
    found = trained(Torch(cost, WORKLOAD, seed=3, warmup=1, check=CHECKS), planner(cost))
    assert [one.loss for one in found] == pytest.approx(losses_of_attention(), rel=1e-12)
    assert max(one.checks["exact"] for one in found) < 1e-12
    every = trained(Torch(cost, WORKLOAD, seed=3, warmup=0), planner(cost), [0], lambda step: all_of(batch_of(step)))
    assert every[0].loss != pytest.approx(found[0].loss, rel=1e-4)
    for name in ("nic_tx_bytes", "nic_rx_bytes", "nvlink_bytes"):  # what counts is data, and no part of a step
        assert getattr(every[0], name) == getattr(found[0], name)


def all_of(batch: Batch) -> Batch:
    return replace(batch, counts=None)


def test_all_labels_counted_one_by_one_are_all_labels() -> None:
    cost = cost_of(sharding="zero1", loss_chunk_tokens=5)
    runs = [
        trained(Torch(cost, WORKLOAD, seed=3, warmup=0, check=CHECKS), Ring(cost), range(2), make)
        for make in (lambda step: batch_of(step, [True] * 101), lambda step: all_of(batch_of(step)))
    ]
    assert [one.loss for one in runs[0]] == [one.loss for one in runs[1]]


@pytest.mark.parametrize(
    ("model", "experts"),
    [
        (EXPERTS, {"expert_parallel": 2, "experts": Experts(skew=1.0)}),
        (EXPERTS, {"expert_parallel": 2, "experts": Experts(routing="token_choice")}),
        (replace(EXPERTS, mlp_chunk_tokens=7, loss_chunk_tokens=3), {"expert_tensor_parallel": 2}),
    ],
    ids=["drawn", "routers choose", "chunks"],
)
def test_with_experts(model: Any, experts: dict[str, Any]) -> None:
    cost = cost_of(model=model, sharding="zero1")
    found = trained(Torch(cost, WORKLOAD, seed=3, warmup=0, check=CHECKS, **experts), Zeppelin(cost), range(2))
    assert max(one.checks["exact"] for one in found) < 1e-12


def homes(plans: Sequence[Plan], length: int) -> np.ndarray:
    """The rank that every token of a batch is at home on, int64 [tokens]; sequences have `length` tokens each."""
    found = np.full(sum(int(plan.lengths.sum()) for plan in plans), -1)
    for plan in plans:
        of = plan.blocks
        for seq, start, stop, block in zip(of.seq, of.start, of.stop, of.block, strict=True):
            first = int(plan.sequences[seq]) * length
            found[first + start : first + stop] = of.home[block]
    return found


@pytest.mark.parametrize("planner", [LocalPacking, Ring])
@pytest.mark.parametrize("silent", [(0,), (3,), (0, 1, 2)])
def test_ranks_whose_labels_do_not_count(planner: Planner, silent: tuple[int, ...]) -> None:
    cost = cost_of(2, 2, sharding="zero3", loss_chunk_tokens=5)
    whole = Batch(np.array([11] * 8, np.int64), 0, 0)
    plans = planner(cost).plan(whole)
    home = homes(plans, 11)
    assert set(home.tolist()) == {0, 1, 2, 3}
    batch = replace(whole, counts=~np.isin(home, silent))
    executor = Torch(cost, WORKLOAD, seed=3, warmup=0, check=CHECKS)
    (found,) = trained(executor, planner(cost), [0], lambda step: batch)
    assert found.checks["exact"] < 1e-12


def test_one_label_in_all() -> None:
    """The loss is that label's, whichever rank has it, and also the last one of a sequence."""
    cost = cost_of(2, 2, sharding="zero2", tensor_parallel=2, loss_chunk_tokens=5)
    where = [0, 49, 50, 100]
    with running(cost) as executor:
        losses = []
        for at in where:
            batch = batch_of(0, np.arange(101) == at)
            result = executor.step(batch, Ring(cost).plan(batch))
            assert result.checks["exact"] < 1e-12
            losses.append(result.loss)
    assert len(set(losses)) == 4


@contextmanager
def running(cost: Cost) -> Iterator[Torch]:
    executor = Torch(cost, WORKLOAD, seed=3, warmup=0, check=CHECKS, timeout=60.0)
    executor.start()
    try:
        yield executor
    finally:
        executor.stop()


@pytest.fixture(scope="module")
def groups() -> Iterator[Torch]:
    """Two groups of two ranks with the loss by chunks of 3 tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        with running(cost_of(2, 2, sharding="zero1", tensor_parallel=2, loss_chunk_tokens=3)) as executor:
            yield executor


@settings(examples(6), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(1, 12), min_size=1, max_size=6), data=st.data())
def test_any_labels(groups: Torch, lengths: list[int], data: st.DataObject) -> None:
    count = sum(lengths)
    counts = data.draw(st.lists(st.booleans(), min_size=count, max_size=count).filter(any))
    batch = batch_of(1, counts, lengths)
    result = groups.step(batch, data.draw(st.sampled_from([Ring, dealt]))(groups.cost).plan(batch))
    assert result.checks["exact"] < 1e-12


@settings(deadline=None, max_examples=6)
@given(data=st.data())
@pytest.mark.parametrize("model", [MODEL, replace(EXPERTS, tied_embeddings=False)], ids=["dense", "experts"])
def test_the_dense_reference_adds_up(model: Any, data: st.DataObject) -> None:
    """Of some labels and of the others, losses and gradients add up to those of all."""
    lengths = data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4))
    rng = np.random.default_rng(sum(lengths))
    text = [rng.integers(0, model.vocab, length) for length in lengths]
    routes = [np.sort(np.argsort(rng.random((length, 4)))[:, :2]) for length in lengths]
    counts = [np.array(data.draw(st.lists(st.booleans(), min_size=n, max_size=n))) for n in lengths]
    weights = begun(model)
    given = (model, weights, text, routes if model.num_experts > 1 else [])
    whole = dense_gradients(*given)
    some = [one for one in (counts, [~one for one in counts]) if any(map(np.any, one))]
    parts = [dense_gradients(*given, counts=one) for one in some]
    assert sum(one.loss for one in parts) == pytest.approx(whole.loss, rel=1e-12)
    for name, value in whole.gradients.items():
        found = torch.stack([one.gradients[name] for one in parts]).sum(0)
        torch.testing.assert_close(found, value, rtol=1e-10, atol=1e-12 * float(value.abs().max()) + 1e-300)


def across_steps(cost: Cost, steps: range, **given: Any) -> list[float | None]:
    executor = Torch(cost, WORKLOAD, seed=3, check=CHECKS, timeout=60.0, **given)
    try:
        assert executor.start().first_step == steps.start
        found = []
        for step in steps:
            batch = batch_of(step)
            found.append(executor.step(batch, Zeppelin(cost).plan(batch)).loss)
        executor.finish()
        return found
    finally:
        executor.stop()


def test_gradients_of_the_step_before_are_over_its_own_labels(tmp_path: Path) -> None:
    """Where CPUs update with gradients of the step before, whose labels are others, also behind a checkpoint."""
    assert len({batch_of(step).counted_labels for step in range(4)}) == 4
    strategy = {"sharding": "zero1", "offload": "optimizer"}
    cluster = replace(cost_of(2, 1).gpus.cluster, **HOST)
    late, usual = (
        make_cost(cluster, replace(MODEL, **strategy, **more), pipelines=False)
        for more in ({"host_updates": "across_steps", "carried_layers": 1}, {"host_updates": "as_gradients_come"})
    )
    folder = str(tmp_path / "checkpoint")
    whole = across_steps(late, range(4), warmup=0, checkpoint_every=3, checkpoint=folder)
    assert whole == across_steps(usual, range(4), warmup=0)
    assert whole == pytest.approx(losses_of_attention() + whole[3:], rel=1e-12)
    assert across_steps(late, range(3, 4), warmup=0, resume=folder) == whole[3:]


def test_workers_in_rounds_weigh_by_labels_and_may_have_none() -> None:
    """Each divides by its own labels that count, and averages weigh workers by those of their round; a worker without
    any in a step has gradients of 0. Losses are those of one process that plays all workers."""
    cost, sync = cost_of(2, 1), RoundSync(SLOWMO, 2, "rank", lr=0.8, momentum=0.5)
    system = WorkerPlans(Ring(worker_cost(cost, sync)), 2)
    executor = Torch(cost, WORKLOAD, seed=3, warmup=0, check=("bytes",), sync=sync, optimizer=dict(ADAMW))
    played, outer, momentum = list[float](), begun(), {name: 0 * value for name, value in begun().items()}
    workers, found, silent = [Worker(outer, ADAMW) for _ in "12"], list[float | None](), 0
    try:
        executor.start()
        for step in range(6):
            batch = batch_of(step)
            plans = system.plan(batch)
            own = [[int(n) for plan in plans_of_worker(plans, at, 1) for n in plan.sequences] for at in range(2)]
            counts = batch.counts_of_sequences
            assert counts is not None
            if step in (1, 2):  # the worker of the fewest labels, or the other one, has none
                for number in own[step - 1]:
                    counts[number][:] = False  # views of the batch's
            silent += sum(batch.of_sequences(np.array(mine, np.int64)).counted_labels == 0 for mine in own)
            found.append(executor.step(batch, plans).loss)
            total = 0.0
            for worker, mine in zip(workers, own, strict=True):
                text = sequences(WORKLOAD, batch, np.array(mine), MODEL.vocab)
                total += worker.step(text, counts=[counts[number] for number in mine])
            played.append(total / batch.counted_labels)
            if sync.is_last(step):
                labels = sum(worker.tokens for worker in workers)
                for name in outer:
                    average = sum((one.weights[name] * (one.tokens / labels) for one in workers), 0 * outer[name])
                    outer[name], momentum[name] = outer_update(sync, outer[name], momentum[name], average)
                for worker in workers:
                    worker.weights, worker.tokens = dict(outer), 0
    finally:
        executor.stop()
    assert silent == 2
    assert found == pytest.approx(played, rel=1e-12)
