"""Training in rounds on processes against one process that plays all workers: losses of every step, and every byte.

The simulation knows the network, each worker's sequences, AdamW, and the arithmetic of outer updates alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.runtime.test_conformance import MODEL
from tests.runtime.test_step_executor import cost_of
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost, worker_cost
from zbench.describe.batch import Batch
from zbench.describe.exchanges import UNCUT
from zbench.describe.expert_schedule import DRAWN, USUAL_EXPERTS, Experts
from zbench.describe.model import Model
from zbench.describe.sync import CO2, DILOCO, LOCAL_SGD, SLOWMO, STREAMING_DILOCO, RoundSync
from zbench.interfaces.dealt import WorkerPlans
from zbench.interfaces.result import StepResult
from zbench.plans.workers import plans_of_worker
from zbench.runtime.handlers.optimizer import AdamWUpdate
from zbench.runtime.job.job import AdamW
from zbench.runtime.processes.launch import LocalFleet
from zbench.runtime.step_executor import Torch
from zbench.runtime.stepping.dense import DenseGradients, dense_gradients
from zbench.runtime.stepping.weights import OUTSIDE, InitialWeights, layer_names
from zbench.runtime.steps.tokens import routes_of, tokens_of
from zbench.runtime.training.text import sequences
from zbench.step.outer_update import outer_update
from zbench.step.passes.own_plans import parts_of_layouts
from zbench.step.passes.parameters.weights import weights_of_kinds
from zbench.step.passes.proven import ProvenSteps
from zbench.step.passes.rounds.order import round_ends
from zbench.step.passes.rounds.outer_step import ARRIVED
from zbench.step.passes.routing import ExpertParallel
from zbench.step.tensor import FOLLOWING, LEADING
from zbench.systems.ring import Ring
from zbench.systems.zeppelin.planner import Zeppelin
from zbench.workloads.fixed import Fixed
from zbench.workloads.longtail import Longtail

pytestmark = pytest.mark.usefixtures("one_thread")

WORKLOAD = Longtail(1, 120, 2.0, 1.0, 0.3, 16, 0.5, 64, 64)
ADAMW = {"lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1}
# Of which every step is that of SGD with the learning rate RATE: epsilon is far above every gradient.
RATE = 0.5
SGD = {"lr": RATE * 1e15, "beta1": 0.0, "beta2": 0.0, "epsilon": 1e15, "weight_decay": 0.0}
Weights = dict[str, Tensor]


def begun(model: Model = MODEL) -> Weights:
    """The weights that a run begins with; those of a kind of layers are 0 in layers of the other kind."""
    draw, found, kinds = InitialWeights(model, 3), dict[str, Tensor](), weights_of_kinds(model)
    first, others = range(model.dense_layers), range(model.dense_layers, model.num_layers)
    for name in (*OUTSIDE, *layer_names(model)):
        if name in OUTSIDE:
            found[name] = draw(name, 0).double()
            continue
        of = {LEADING: first, FOLLOWING: others}.get(kinds[name], range(model.num_layers))
        some = draw(name, of[0])
        every = [draw(name, layer) if layer in of else some * 0 for layer in range(model.num_layers)]
        found[name] = torch.stack(every).double()
    return found


class Worker:
    """A worker of the simulation: whole parameters, and its optimizer's moments."""

    def __init__(self, weights: Weights, optimizer: Mapping[str, float], model: Model = MODEL) -> None:
        self.weights, self.optimizer, self.steps, self.tokens = dict(weights), AdamW(**optimizer), 0, 0
        self.moments, self.model = {name: (value * 0, value * 0) for name, value in weights.items()}, model

    def step(
        self, text: Sequence[Any], routes: Sequence[Any] | None = (), counts: Sequence[Any] | None = None
    ) -> float:
        """Trains on sequences; returns the sum of their labels' losses. routes: the experts of their tokens, None where
        routers choose them; counts: which labels of each count, None: all."""
        routes = routed(self.model, self.weights, text) if routes is None else routes
        self.steps, count = self.steps + 1, int(sum(map(len if counts is None else np.sum, counts or text)))
        none = DenseGradients(0.0, {name: value * 0 for name, value in self.weights.items()})
        found = dense_gradients(self.model, self.weights, text, routes, counts=counts) if count else none
        update = AdamWUpdate(self.optimizer, self.steps, count or 1)
        for name, value in self.weights.items():
            state = update((name, 0), (value, *self.moments[name]), found.gradients[name])
            self.weights[name], self.moments[name] = state[0], (state[1], state[2])
        self.tokens += count
        return found.loss


def routed(model: Model, weights: Weights, text: Sequence[Any]) -> list[Any]:
    """The experts that routers choose for the tokens of sequences, layer after layer, as a layer's experts change the
    logits of those behind it."""
    found = [np.zeros((model.num_layers, len(one), model.experts_per_token), np.int64) for one in text]
    for layer in range(model.dense_layers, model.num_layers):
        logits = dense_gradients(model, weights, text, found).router_logits
        for routes, one in zip(found, logits, strict=True):
            routes[layer] = one[layer].topk(model.experts_per_token).indices
    return found


def chosen(batch: Batch, model: Model, experts: Experts, which: Sequence[int]) -> list[Any] | None:
    """The experts of the tokens of some of a batch's sequences, as one GPU with all of it draws them; None where
    routers choose."""
    if model.num_experts == 1:
        return []
    if experts.routing != DRAWN:
        return None
    plans = Ring(cost_of(1, 1, model)).plan(batch)
    law = ExpertParallel.chosen(1, 1, experts, 1).of(batch)
    routes = routes_of(tokens_of(parts_of_layouts(plans, model, 1, law, UNCUT)))
    return [routes[one] for one in which]


def simulated(
    sync: RoundSync,
    optimizer: Mapping[str, float],
    parts: list[list[list[int]]],
    model: Model = MODEL,
    experts: Experts = USUAL_EXPERTS,
) -> list[float]:
    """The losses of all steps. parts: of every step, each worker's sequences."""
    outer, momentum = begun(model), {name: value * 0 for name, value in begun(model).items()}
    workers, averages, losses = [Worker(outer, optimizer, model) for _ in parts[0]], list[Weights](), []
    for number, step in enumerate(parts):
        batch, total = WORKLOAD.batch(number), 0.0
        for worker, mine in zip(workers, step, strict=True):
            if mine:
                routes = chosen(batch, model, experts, mine)
                total += worker.step(sequences(WORKLOAD, batch, np.array(mine), MODEL.vocab), routes)
        losses.append(total / batch.num_tokens)
        if not sync.is_last(number):
            continue
        count = sum(worker.tokens for worker in workers)
        averages.append(
            {name: sum(one.weights[name] * (one.tokens / count) for one in workers) for name in outer}  # type: ignore[misc]
        )
        if len(averages) > sync.age:
            average = averages[-1 - sync.age]
            for name in outer:
                outer[name], momentum[name] = outer_update(sync, outer[name], momentum[name], average[name])
        for worker in workers:
            worker.weights, worker.tokens = dict(outer), 0
    return losses


def streamed(
    sync: RoundSync,
    optimizer: Mapping[str, float],
    parts: list[list[list[int]]],
    model: Model = MODEL,
    experts: Experts = USUAL_EXPERTS,
) -> list[float]:
    """As `simulated`, of Streaming DiLoCo: fragment f has every layer number f, f + fragments, ..., the first what is
    outside layers. An average is of the parameters as they were `delay` steps before workers take it up."""
    outer, momentum = begun(model), {name: value * 0 for name, value in begun(model).items()}
    workers, losses = [Worker(outer, optimizer, model) for _ in parts[0]], list[float]()
    averages: list[tuple[int, int, Weights]] = []  # when it is there, the fragment, the average
    tokens = [[0] * len(workers) for _ in range(sync.fragments)]

    def rows(name: str, fragment: int) -> Any:
        if name in OUTSIDE:
            return slice(None) if fragment == 0 else slice(0, 0)
        return slice(fragment, None, sync.fragments)

    for number, step in enumerate(parts):
        batch, total, done = WORKLOAD.batch(number), 0.0, number + 1
        for at, (worker, mine) in enumerate(zip(workers, step, strict=True)):
            if mine:
                routes = chosen(batch, model, experts, mine)
                total += worker.step(sequences(WORKLOAD, batch, np.array(mine), MODEL.vocab), routes)
            for counts in tokens:
                counts[at] += sum(int(batch.lengths[one]) for one in mine)
        losses.append(total / batch.num_tokens)
        for fragment, counts in enumerate(tokens):
            if (done - fragment * sync.steps // sync.fragments) % sync.steps == 0:
                shares = [count / sum(counts) for count in counts]
                average = {
                    name: sum(
                        one.weights[name][rows(name, fragment)] * share
                        for one, share in zip(workers, shares, strict=True)
                    )
                    for name in outer
                }
                averages.append((done + sync.delay, fragment, average))  # type: ignore[arg-type]
                counts[:] = [0] * len(workers)
        for _, fragment, average in (one for one in averages if one[0] == done):
            for name, value in outer.items():
                some = rows(name, fragment)
                x, m = outer_update(sync, value[some], momentum[name][some], average[name])
                outer[name], momentum[name] = value.clone(), momentum[name].clone()
                outer[name][some], momentum[name][some] = x, m
                for worker in workers:
                    own = worker.weights[name].clone()
                    own[some] = sync.mixing * own[some] + (1 - sync.mixing) * x
                    worker.weights[name] = own
    return losses


def trained(
    cost: Cost, sync: RoundSync, optimizer: Mapping[str, float], planner: Any, steps: int, **strategy: Any
) -> Any:
    """(results, each worker's sequences) of all steps on processes."""
    gpus, each = cost.cluster.num_ranks, worker_cost(cost, sync).cluster.num_ranks
    system = WorkerPlans(planner(worker_cost(cost, sync)), gpus // each)
    settings = {"check": ("bytes",), "sync": sync, "optimizer": dict(optimizer)} | strategy
    executor = Torch(cost, WORKLOAD, seed=3, warmup=0, **settings)
    found, parts = list[StepResult](), list[list[list[int]]]()
    try:
        executor.start()
        for step in range(steps):
            batch = WORKLOAD.batch(step)
            plans = system.plan(batch)
            found.append(executor.step(batch, plans))
            own = [plans_of_worker(plans, worker, each) for worker in range(gpus // each)]
            parts.append([[int(n) for plan in one for n in plan.sequences] for one in own])
    finally:
        executor.stop()
    return found, parts


def check_resumed(
    cost: Cost, sync: RoundSync, planner: Any, folder: str, steps: tuple[int, int], **strategy: Any
) -> None:
    """A run of two workers that goes on from a checkpoint has the losses, to the bit, of one that is not stopped.
    steps: before the checkpoint, and in all."""
    system, (before, every) = WorkerPlans(planner(worker_cost(cost, sync)), 2), steps

    def losses(numbers: range, **settings: Any) -> list[float | None]:
        of = {"sync": sync, "optimizer": dict(ADAMW)} | strategy
        executor = Torch(cost, WORKLOAD, seed=3, warmup=1, **of | settings)
        try:
            assert executor.start().first_step == numbers.start
            batches = [WORKLOAD.batch(number) for number in numbers]
            return [executor.step(one, system.plan(one)).loss for one in batches]
        finally:
            executor.stop()

    whole = losses(range(every), checkpoint_every=before, checkpoint=folder)
    assert losses(range(before, every), resume=folder) == whole[before:]


CASES = {
    "slowmo, nodes of two, ZeRO-3, uneven tokens": (
        cost_of(2, 2, sharding="zero3"),
        RoundSync(SLOWMO, 3, "node", lr=0.8, momentum=0.5),
        ADAMW,
        Zeppelin,
        6,
    ),
    "co2, four ranks": (
        cost_of(2, 2, sharding="none"),
        RoundSync(CO2, 2, "rank", momentum=0.4, penalty="gap_aware", clip=0.02),
        ADAMW,
        Ring,
        8,
    ),
    "streaming, an average a step late": (
        cost_of(2, 2, sharding="zero1"),
        RoundSync(STREAMING_DILOCO, 4, "node", lr=0.6, momentum=0.7, fragments=2, delay=1, mixing=0.3),
        ADAMW,
        Zeppelin,
        8,
    ),
    "streaming, two averages under way": (
        cost_of(2, 1),
        RoundSync(STREAMING_DILOCO, 3, "rank", lr=0.6, momentum=0.7, fragments=2, delay=2),
        ADAMW,
        Ring,
        9,
    ),
    "co2 in every step, SGD": (cost_of(2, 1), RoundSync(CO2, 1, "rank", penalty="constant"), SGD, Ring, 4),
}


@pytest.mark.parametrize("case", CASES)
def test_losses_are_those_of_workers_in_one_process(case: str) -> None:
    cost, sync, optimizer, planner, steps = CASES[case]
    found, parts = trained(cost, sync, optimizer, planner, steps)
    played = streamed if sync.method == STREAMING_DILOCO else simulated
    assert [one.loss for one in found] == pytest.approx(played(sync, optimizer, parts), rel=1e-12)
    tokens = [len(one) for step in parts for one in step]
    assert len(set(tokens)) > 1  # workers differ
    ends = [at for at, one in enumerate(found) if "round_end" in one.phases]
    leaving = [{end.kind for end in round_ends(sync, at)} - {ARRIVED} for at in range(steps)]
    assert ends == [at for at in range(steps) if round_ends(sync, at)]
    for one, kinds in zip(found, leaving, strict=True):
        assert one.checks["bytes"] >= 0
        assert ("gradients" in one.nic_tx_for) == bool(kinds)  # no reduction between nodes but a round's


MOE = replace(MODEL, ffn_hidden=16, num_experts=4, experts_per_token=2)
SHARED = replace(MOE, shared_experts=1)
DENSE_FIRST = replace(SHARED, num_layers=3, dense_layers=1, dense_ffn_hidden=20)
# (cost, rounds, planner, steps, how experts are laid out and chosen); workers are nodes of two GPUs
EXPERTS: dict[str, Any] = {
    "slowmo, experts on two GPUs, ZeRO-3, unevenly popular": (
        cost_of(2, 2, MOE, sharding="zero3"),
        RoundSync(SLOWMO, 3, "node", lr=0.8, momentum=0.5),
        Zeppelin,
        6,
        {"expert_parallel": 2, "experts": Experts(skew=2.0)},
    ),
    "co2, experts cut over two GPUs, in chunks": (
        cost_of(2, 2, MOE, sharding="none", recompute="full"),
        RoundSync(CO2, 2, "node", momentum=0.4, penalty="gap_aware", clip=0.02),
        Ring,
        6,
        {"expert_tensor_parallel": 2, "experts": Experts("tutel", 2)},
    ),
    "diloco, shared experts, ZeRO-1": (
        cost_of(2, 2, SHARED, sharding="zero1"),
        RoundSync(DILOCO, 2, "node", lr=0.7, momentum=0.9),
        Zeppelin,
        4,
        {"expert_parallel": 2, "experts": Experts(skew=0.5)},
    ),
    "streaming, an average a step late, ZeRO-2, chunks of memory": (
        cost_of(2, 2, MOE, sharding="zero2", mlp_chunk_tokens=16),
        RoundSync(STREAMING_DILOCO, 4, "node", lr=0.6, momentum=0.7, fragments=2, delay=1, mixing=0.3),
        Zeppelin,
        8,
        {"expert_parallel": 2},
    ),
    "slowmo, a dense layer before others, ZeRO-3": (
        cost_of(2, 2, DENSE_FIRST, sharding="zero3"),
        RoundSync(SLOWMO, 2, "node", lr=0.8, momentum=0.5),
        Zeppelin,
        4,
        {"expert_parallel": 2, "experts": Experts(skew=1.0)},
    ),
    "streaming, a fragment of dense layers alone, ZeRO-1": (
        cost_of(2, 2, replace(DENSE_FIRST, num_layers=3, dense_layers=2), sharding="zero1"),
        RoundSync(STREAMING_DILOCO, 4, "node", lr=0.6, momentum=0.7, fragments=3, delay=1, mixing=0.3),
        Zeppelin,
        8,
        {"expert_parallel": 2},
    ),
    "diloco, chunks that are chosen for each worker": (
        cost_of(2, 2, MOE, sharding="zero1"),
        RoundSync(DILOCO, 2, "node", lr=0.7, momentum=0.9),
        Zeppelin,
        4,
        {"expert_parallel": 2, "experts": Experts("tutel", "auto", skew=1.0)},
    ),
    "slowmo, shares of gradients between experts' messages, ZeRO-3": (
        cost_of(2, 2, DENSE_FIRST, sharding="zero3"),
        RoundSync(SLOWMO, 2, "node", lr=0.8, momentum=0.5),
        Zeppelin,
        4,
        {"expert_parallel": 2, "experts": Experts("fsmoe", "auto", gradients="between", skew=1.0)},
    ),
    "streaming, two averages under way, shares that are played, ZeRO-1": (
        cost_of(2, 2, MOE, sharding="zero1"),
        RoundSync(STREAMING_DILOCO, 3, "node", lr=0.6, momentum=0.7, fragments=2, delay=2),
        Zeppelin,
        6,
        {"expert_parallel": 2, "experts": Experts("clock", "auto", gradients="between")},
    ),
    "local_sgd, experts at home, unevenly popular": (
        cost_of(2, 1, MOE),
        RoundSync(LOCAL_SGD, 2, "rank"),
        Ring,
        4,
        {"experts": Experts(skew=1.0)},
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", EXPERTS)
def test_experts_over_a_worker_s_gpus(case: str) -> None:
    """Losses of every step are those of workers in one process, whose tokens choose as on one GPU; an average moves
    bytes between nodes, experts' rows do not."""
    cost, sync, planner, steps, strategy = EXPERTS[case]
    found, parts = trained(cost, sync, ADAMW, planner, steps, **strategy)
    played = streamed if sync.method == STREAMING_DILOCO else simulated
    experts = strategy.get("experts", USUAL_EXPERTS)
    wanted = played(sync, ADAMW, parts, cost.model, experts)
    assert [one.loss for one in found] == pytest.approx(wanted, rel=1e-12)
    assert wanted[0] != wanted[-1]
    assert all(one.checks["bytes"] >= 0 for one in found)
    assert not any("experts" in one.nic_tx_for for one in found)
    assert any("gradients" in one.nic_tx_for for one in found)


HOST = {"host_bandwidth": 25e9, "host_efficiency": 0.8, "host_latency": 1e-5, "host_memory": 2.0**36}
# (cost, rounds, planner); what layers keep waits in the host memory of a worker's node, or of its part of one
ON_HOSTS: dict[str, Any] = {
    "slowmo, activations of a node's two ranks, ZeRO-3": (
        cost_of(2, 2, sharding="zero3", recompute="selective", offload="activations"),
        RoundSync(SLOWMO, 2, "node", lr=0.8, momentum=0.5),
        Zeppelin,
    ),
    "co2, inputs of half of the tokens, four ranks": (
        cost_of(2, 2, sharding="none", recompute="full", offload="inputs", offload_tokens=0.5),
        RoundSync(CO2, 2, "rank", momentum=0.4, penalty="gap_aware"),
        Ring,
    ),
    "local_sgd, as few layers' inputs as fit": (
        cost_of(2, 2, sharding="zero1", recompute="full", offload="inputs", offload_layers="auto"),
        RoundSync(LOCAL_SGD, 2, "node"),
        Zeppelin,
    ),
}


@pytest.mark.parametrize("case", ON_HOSTS)
def test_what_layers_keep_waits_in_host_memory_of_each_worker(case: str) -> None:
    cost, sync, planner = ON_HOSTS[case]
    cost = make_cost(replace(cost.cluster, **HOST), cost.model)
    found, parts = trained(cost, sync, ADAMW, planner, 4)
    assert [one.loss for one in found] == pytest.approx(simulated(sync, ADAMW, parts), rel=1e-12)
    assert all(one.checks["bytes"] >= 0 for one in found)
    assert any("offloaded_layers" in one.recompute for one in found) == (cost.model.offload_layers == "auto")


def test_pieces_of_one_size_between_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lina's, in three pieces: of two workers, a cell is a half of one."""
    size = ProvenSteps("test", MOE, 4, experts=ExpertParallel(2)).parameters.layer_elements * MOE.element_bytes
    monkeypatch.setattr("zbench.simulated.gradient_order.LINA_PIECE_BYTES", size / 3 + 1)
    cost, sync = cost_of(2, 2, MOE, sharding="zero2"), RoundSync(SLOWMO, 2, "node", lr=0.8, momentum=0.5)
    experts = Experts("lina", 2, gradients="between")
    found, parts = trained(cost, sync, ADAMW, Zeppelin, 4, expert_parallel=2, experts=experts)
    assert [one.loss for one in found] == pytest.approx(simulated(sync, ADAMW, parts, MOE, experts), rel=1e-12)
    assert {one["gradients"]["count"] for step in found for one in step.expert_chunks["workers"]} == {3}


def test_all_experts_are_inside_a_worker() -> None:
    cost, sync = cost_of(2, 2, MOE), RoundSync(SLOWMO, 2, "rank")
    told = r"^all experts are on 2 GPUs .*; with sync=slowmo each worker has all of them, so .* the 1 GPU of a worker"
    with pytest.raises(ValueError, match=told):
        Torch(cost, WORKLOAD, sync=sync, expert_parallel=2)


def test_local_sgd_is_torch_s_post_local_sgd(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's PostLocalSGDOptimizer with its PeriodicModelAverager, on two processes of as many tokens: losses of every
    step and all parameters after two rounds and a step."""
    workload, cost, sync = Fixed(5, 96, 16), cost_of(2, 1, sharding="none"), RoundSync(LOCAL_SGD, 3, "rank")
    batches = [workload.batch(step) for step in range(7)]
    system = WorkerPlans(Ring(worker_cost(cost, sync)), 2)
    every = [[plans_of_worker(system.plan(batch), worker, 1) for worker in range(2)] for batch in batches]
    parts = [
        [
            [one.tolist() for plan in plans for one in sequences(workload, batch, plan.sequences, MODEL.vocab)]
            for plans in step
        ]
        for batch, step in zip(batches, every, strict=True)
    ]
    assert [[len(one) for one in step] for step in parts] == [[3, 3]] * 7
    monkeypatch.setattr("zbench.runtime.step_executor.ROUND_RANK", "tests.runtime.averaging:TellingRank")
    executor = Torch(cost, workload, seed=3, warmup=0, check=("bytes",), sync=sync, optimizer=dict(ADAMW))
    try:
        executor.start()
        losses = [executor.step(batch, system.plan(batch)).loss for batch in batches]
        assert executor._fleet is not None
        pieces = executor._fleet.call("pieces")
    finally:
        executor.stop()
    job = (MODEL, begun(), ADAMW, sync.steps, parts)
    with LocalFleet(2, "tests.runtime.averaging:PostLocalRank", job, timeout=120) as fleet:
        found = fleet.call("train")
    assert losses == pytest.approx([sum(step) / 96 for step in zip(*(one for one, _ in found), strict=True)], rel=1e-12)
    for rank, (_, weights) in enumerate(found):
        assert len(pieces[rank]) == 3 + 7 * MODEL.num_layers
        for name, layer, _, _, value in pieces[rank]:
            wanted = weights[name] if name in OUTSIDE else weights[name][layer]
            assert torch.allclose(value.reshape(-1), wanted.reshape(-1), rtol=0, atol=1e-12 * float(wanted.abs().max()))
    assert not torch.equal(found[0][1]["wq"], found[1][1]["wq"])  # they are a step apart from the average


@pytest.mark.parametrize("age", [0, 1])
def test_one_step_a_round_is_data_parallel_sgd_or_sgd_on_gradients_a_step_old(age: int) -> None:
    """The averages of x - rate g are x - rate times the mean gradient, by tokens; of the simulation, which processes
    are held to above."""
    sync = RoundSync(CO2, 1, "rank", penalty="constant") if age else RoundSync(LOCAL_SGD, 1, "rank")
    batches, losses = [WORKLOAD.batch(number) for number in range(5)], []
    parts = [[np.arange(at, len(one.lengths), 3).tolist() for at in range(3)] for one in batches]
    weights, gradients = begun(), list[Weights]()
    for batch in batches:
        text = sequences(WORKLOAD, batch, np.arange(len(batch.lengths)), MODEL.vocab)
        dense = dense_gradients(MODEL, weights, text, ())
        losses.append(dense.loss / batch.num_tokens)
        gradients.append({name: value / batch.num_tokens for name, value in dense.gradients.items()})
        if len(gradients) > age:
            weights = {name: value - RATE * gradients[-1 - age][name] for name, value in weights.items()}
    assert simulated(sync, SGD, parts) == pytest.approx(losses, rel=1e-11)
    assert losses[0] != losses[-1]


def test_one_fragment_at_once_is_diloco() -> None:
    batches = [WORKLOAD.batch(number) for number in range(4)]
    parts = [[np.arange(at, len(one.lengths), 2).tolist() for at in range(2)] for one in batches]
    keys = {"steps": 2, "worker": "rank", "lr": 0.6, "momentum": 0.7}
    diloco = simulated(RoundSync(DILOCO, **keys), ADAMW, parts)  # type: ignore[arg-type]
    assert streamed(RoundSync(STREAMING_DILOCO, **keys), ADAMW, parts) == pytest.approx(diloco, rel=1e-13)  # type: ignore[arg-type]


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("sync", "experts"),
    [
        (RoundSync(CO2, 3, "rank", momentum=0.4, penalty="gap_aware"), 1),
        (RoundSync(STREAMING_DILOCO, 3, "rank", momentum=0.4, fragments=2, delay=2, mixing=0.5), 1),
        (RoundSync(STREAMING_DILOCO, 3, "node", momentum=0.4, fragments=2, delay=2, mixing=0.5), 2),
    ],
    ids=lambda one: getattr(one, "method", one),
)
def test_a_run_goes_on_in_the_midst_of_a_round_to_the_bit(sync: RoundSync, experts: int, tmp_path: Path) -> None:
    """Averages are under way, of streaming_diloco two of different rounds, and wait in the checkpoint; so do slices of
    experts."""
    cost = cost_of(2, experts, MOE if experts > 1 else MODEL)
    folder = str(tmp_path / "checkpoint")
    check_resumed(cost, sync, Ring, folder, (5, 9), expert_parallel=experts)
    other = replace(sync, steps=4)
    with pytest.raises(ValueError, match=r"its run had sync.steps 3, and this one has 4$"):
        Torch(cost, WORKLOAD, seed=3, sync=other, optimizer=ADAMW, expert_parallel=experts, resume=folder)
    if experts > 1:
        with pytest.raises(ValueError, match=r"its run had parallel.expert_parallel 2, and this one has 1$"):
            Torch(cost, WORKLOAD, seed=3, sync=sync, optimizer=ADAMW, resume=folder)


def test_what_has_no_dense_model_is_not_checked_against_one() -> None:
    with pytest.raises(ValueError, match=r"^check is exact; with sync=slowmo workers train apart"):
        Torch(cost_of(), WORKLOAD, check=("exact",), sync=RoundSync(SLOWMO, 2, "rank"))
    with pytest.raises(ValueError, match=r"^sync.worker is node, and the cluster has one; sync=slowmo takes several"):
        Torch(cost_of(1, 2), WORKLOAD, sync=RoundSync(SLOWMO, 2, "node"))
