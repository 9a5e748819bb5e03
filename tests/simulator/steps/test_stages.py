"""Stages on the clock: each on its own places, one forward, one backward; layers left out add what they would have."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.helpers.steps import EXPERTS, MODEL, plan_of
from zbench.cost.cost import Cost
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.model import Model
from zbench.plans.plan import Plan
from zbench.simulator.steps.play import LAYERS, PlayedStep, play_some_layers, play_step
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.routing import ExpertParallel
from zbench.step.proof.prove import prove_step
from zbench.step.template import Step

SLOW = Device("d", 1e15, 8e10, 1e12, 1e12, 1e14, 1e13, 1e13, 1e-6, 1e-6)


def cluster(nodes: int, gpus: int = 1, nic: float = 25e9, latency: float = 1e-6) -> Cluster:
    return Cluster("c", nodes, gpus, gpus, nic, 1.0, latency, 8 * nic, 1.0, latency, SLOW)


@cache
def plans_of(count: int, ranks: int, size: int = 96) -> list[Plan]:
    """Micro-batches of sequences of several lengths, none like another."""
    return [plan_of([size + 8 * n, size // 2, 40 - 8 * (n % 3)], ranks, 4, first=3 * n) for n in range(count)]


def alike(count: int) -> list[Plan]:
    return [plan_of([96], 1, 4, first=n) for n in range(count)]


def staged(model: Model, plans: list[Plan], zero: str, stages: int, experts: int = 1) -> Step:
    step = whole_step(model, plans, 1, zero, 1, "none", ExpertParallel(experts, 1, 1.0), stages)
    prove_step(step)
    return step


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 3), (4, 6), (4, 2)])
def test_equal_micro_batches_take_the_time_of_one_forward_one_backward(stages: int, micro_batches: int) -> None:
    """Links cost nothing, stages have two layers each: (micro-batches + stages - 1) turns of a forward and a backward
    of them; before the first is the embedding's, and with each the head's of the last stage."""
    model = replace(MODEL, num_layers=2 * stages, vocab=12, hidden=64)
    quick = Cost(cluster(stages, nic=1e18, latency=0.0), model)
    played = play_step(staged(model, alike(micro_batches), "none", stages), alike(micro_batches), quick)
    alone = play_step(staged(replace(model, num_layers=2), alike(1), "none", 1), alike(1), Cost(cluster(1), model))
    ends = dict(alone.ends)
    layers = ends["forward"] - ends["embedding"] + ends["backward"] - ends["head"]
    head = ends["head"] - ends["forward"]
    optimizer = alone.seconds - ends["embedding_backward"]
    wanted = ends["embedding"] + (micro_batches + stages - 1) * layers + micro_batches * head
    wanted += ends["embedding_backward"] - ends["backward"]
    assert played.seconds == pytest.approx(wanted + optimizer, rel=0.05)
    assert played.seconds > (micro_batches + stages - 1) * layers + micro_batches * head


@pytest.mark.parametrize(
    ("model", "ranks", "zero"),
    [(MODEL, 2, "none"), (EXPERTS, 2, "1"), (MODEL, 2, "2"), (MODEL, 2, "3"), (MODEL, 1, "3")],
)
def test_bytes_of_stages_are_those_that_the_step_states(model: Model, ranks: int, zero: str) -> None:
    """To the byte, of every GPU, each on a node of its own."""
    of, plans = replace(model, num_layers=5), plans_of(3, ranks)
    step = staged(of, plans, zero, 2, 2 if model is EXPERTS else 1)
    played, stated = play_step(step, plans, Cost(cluster(2 * ranks), of)), stated_bytes(step)
    for queue in ("stages", "experts", "attention"):
        for way, found in enumerate((played.nic_tx, played.nic_rx)):
            assert found[queue].tolist() == [one.get(queue, (0, 0))[way] for one in stated]
    assert played.nic_tx["stages"].all()
    assert (played.nic_tx["gradients"] > 0).all() == (ranks > 1)


@pytest.mark.parametrize(
    ("zero", "stages", "layers", "off"),
    [("none", 2, 40, 1e-9), ("1", 4, 72, 0.005), ("2", 2, 40, 0.01), ("3", 2, 40, 0.01)],
)
def test_layers_left_out_add_what_they_take(zero: str, stages: int, layers: int, off: float) -> None:
    """As many layers of each stage as are played at first against all of them, micro-batches none like another."""
    model, plans = replace(MODEL, num_layers=layers, hidden=64), plans_of(4, 2)
    step, cost = staged(model, plans, zero, stages), Cost(cluster(stages, 2), model)
    some, every = (play_some_layers(step, plans, cost, kept) for kept in (LAYERS[0], layers))
    assert some.seconds == pytest.approx(every.seconds, rel=off)
    assert [name for name, _ in some.ends] == [name for name, _ in every.ends]
    ends = np.array([[one[1] for one in found.ends] for found in (some, every)])
    assert np.abs(ends[0] - ends[1]).max() < 2 * off * every.seconds
    assert some.memory.peak.tolist() == every.memory.peak.tolist()
    for name in ("stages", "attention", "parameters"):
        assert some.nic_tx[name].tolist() == every.nic_tx[name].tolist()


def test_the_first_stage_holds_most_micro_batches() -> None:
    """Of four stages with two layers each: x of its borders of as many micro-batches as are under way."""
    model, plans = replace(MODEL, num_layers=8), [plan_of([960], 1, 4, first=n) for n in range(6)]
    memory = play_step(staged(model, plans, "none", 4), plans, Cost(cluster(4), model)).memory
    assert (np.diff(memory.peak[:3]) < 0).all()
    layer = memory.held["z"] / (960 * 2 * model.element_bytes * model.ffn_hidden)
    assert layer.tolist() == [8, 6, 4, 2]


def test_every_micro_batch_gathers_and_reduces_for_itself() -> None:
    """Alike micro-batches on two GPUs of each of two stages: with ZeRO-3 each gathers a stage's parameters twice, and
    with ZeRO-2 they come once a step; both reduce each one's gradients. ZeRO-1 has both once. Beside gradients are
    four bytes of each one's loss."""
    model, sent = replace(MODEL, num_layers=4), dict[tuple[str, int], tuple[int, int]]()
    for zero, count in ((one, number) for one in "123" for number in (2, 5)):
        plans = [plan_of([96, 96], 2, 4, first=2 * number) for number in range(count)]
        step = staged(model, plans, zero, 2)
        played = play_step(step, plans, Cost(cluster(4), model))
        parameters, gradients = (int(played.nic_tx[name].sum()) for name in ("parameters", "gradients"))
        sent[zero, count] = parameters, gradients - 4 * count
    assert sent["1", 2] == sent["1", 5]
    assert sent["2", 2][0] == sent["2", 5][0] == sent["1", 5][0]
    assert [sent[zero, 5][1] / sent[zero, 2][1] for zero in "23"] == [2.5, 2.5]
    assert sent["3", 5][0] / sent["3", 2][0] == 2.5
    assert sent["2", 2][1] == 2 * sent["1", 2][1]


def test_gathers_of_a_turn_are_ahead_of_it() -> None:
    """Stages wait for each other, not for parameters: those of a stage's first layers are gathered while it waits, or
    while the turn before is at work, so on a quick network ZeRO-3 takes hardly longer than without sharding."""
    model = replace(MODEL, num_layers=8, hidden=64)
    plans = [plan_of([960, 960], 2, 4, first=2 * number) for number in range(6)]
    times = [play_step(staged(model, plans, zero, 2), plans, Cost(cluster(4, nic=1e11), model)) for zero in ("1", "3")]
    assert times[1].seconds < 1.02 * times[0].seconds


def played_in_parts(nodes: int, gpus: int, stages: int, cost: Cost, **of: int) -> tuple[Step, PlayedStep]:
    """A step with ZeRO-3 of stages that are parts of a node, each with two layers. of: of micro-batches."""
    model, plans = replace(MODEL, num_layers=2 * stages, hidden=64), plans_of(ranks=nodes * gpus // stages, **of)
    step = staged(model, plans, "3", stages)
    return step, play_step(step, plans, replace(cost, model=model))


def test_stages_of_a_node_send_over_its_links() -> None:
    """Four stages of two GPUs on two nodes: only between the second and the third are NICs, as wide as the step says,
    and of what stages gather and attend to nothing is on them."""
    step, played = played_in_parts(2, 4, 4, Cost(cluster(2, 4), MODEL), count=6)
    stated = np.array([one["stages"] for one in stated_bytes(step)])
    across = np.array([0, 0, 1, 1, 1, 1, 0, 0])  # of both ways, the second and the third stage have one each on NICs
    for at, found in enumerate((played.nic_tx, played.nic_rx)):
        assert found["stages"].tolist() == (across * stated[:, at] // 2).tolist()
        assert not any(sizes.any() for queue, sizes in found.items() if queue != "stages")
    assert played.inside["stages"] == stated[:, 0].sum() - played.nic_tx["stages"].sum()
    assert played.inside["parameters"] > 0


def test_stages_of_a_node_share_its_nic() -> None:
    """Six stages of a GPU on three nodes, whose network is all that counts. The middle node's third stage sends
    gradients and its fourth activations to other nodes: over a NIC of each GPU at the same time, over one that is both
    GPUs' one after the other, which takes twice as long but for the first and the last turns."""
    seconds = []
    for nics in (2, 1):
        slow = replace(cluster(3, 2, nic=1e7), nics_per_node=nics)
        _, played = played_in_parts(3, 2, 6, Cost(slow, MODEL), count=24, size=960)
        sent = played.nic_tx["stages"].reshape(3, nics)
        assert sent[1].sum() == 2 * sent[0].sum()
        seconds.append(played.seconds)
        assert played.seconds > sent.max() / 1e7
    assert seconds[1] == pytest.approx(sent.max() / 1e7, rel=0.06)
    assert seconds[0] < 0.62 * seconds[1]
