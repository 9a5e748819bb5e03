"""Nested degrees on the clock: what leaves a node and how often, and what GPUs hold."""

from dataclasses import replace

import numpy as np
import pytest

from tests.simulator.steps.test_play import planned
from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.job import make_cost
from zbench.describe.degrees import WORLD, ShardDegrees, TransferBits
from zbench.simulator.steps.computes.sizes import Sizes
from zbench.simulator.steps.lower import encoding_seconds
from zbench.simulator.steps.play import PlayedStep, play_step
from zbench.step.byte_law import stated_bytes
from zbench.step.layout import StepLayout
from zbench.step.lists import ListTable
from zbench.step.operations import GATHER, QUEUES, REDUCE, operation_row
from zbench.step.passes.build import whole_step
from zbench.step.proof.prove import prove_step
from zbench.step.template import Encoding, Items, Step

LEVELS = ShardDegrees(2, 2, 8, WORLD, 8)  # pairs, nodes, the world


def played(degrees: ShardDegrees, micro_batches: int, stages: int = 1, **device: float) -> PlayedStep:
    """A step of few layers whose micro-batches are alike. stages: of two nodes each; device: what else is another."""
    found, cost = planned("zeppelin")
    model, plan = replace(found.model, num_layers=4, sharding=degrees), found.plans[0]
    numbers = [plan.sequences + at * len(plan.sequences) for at in range(micro_batches)]
    plans = [plan.with_(sequences=one) for one in numbers]
    step = whole_step(model, plans, 1, degrees, stages=stages)
    prove_step(step)
    device_of = replace(cost.cluster.device, **device)
    cluster = replace(cost.cluster, num_nodes=stages * cost.cluster.num_nodes, device=device_of)
    return play_step(step, plans, make_cost(cluster, model))


def test_what_leaves_a_node_goes_once_a_step() -> None:
    """Two nodes, of four NICs each: half of all parameters and of all gradients through them, however many
    micro-batches; with ZeRO-3 both are in each, parameters of layers twice."""
    model = replace(planned("zeppelin")[0].model, num_layers=4)
    one, three = (played(LEVELS, count) for count in (1, 3))
    for name, size in (("parameters", model.element_bytes), ("gradients", GRADIENT_BYTES)):
        assert three.nic_tx[name] == pytest.approx(np.full(8, model.total_params * size / 2 / 4), rel=1e-3)
        assert (one.nic_tx[name] == three.nic_tx[name]).all()
    everywhere = played(ShardDegrees(WORLD, WORLD, WORLD, WORLD), 3)
    layers = model.total_params - 2 * model.head_params
    twice = 3 * (model.total_params + layers) * model.element_bytes / 2 / 4
    assert everywhere.nic_tx["parameters"] == pytest.approx(np.full(8, twice), rel=1e-3)
    alone = played(ShardDegrees(8, 8, 8, 8), 3)
    assert not alone.nic_tx["parameters"].any()
    assert alone.nic_tx["gradients"] == pytest.approx(2 * three.nic_tx["gradients"], rel=1e-3)


@pytest.mark.parametrize("count", [1, 3])
def test_stages_gather_between_their_nodes_once_where_a_copy_is_in_each(count: int) -> None:
    """Two stages of two nodes, of four NICs each: with parameters cut over all GPUs of a stage and what stays for
    backwards over a node, layers leave a node in the first forward alone, the table and the head in every micro-batch;
    with ZeRO-3 layers leave it twice in each. Gradients leave it in every micro-batch, in both."""
    model = replace(planned("zeppelin")[0].model, num_layers=4)
    layers, half = (model.total_params - 2 * model.head_params) / 2, model.element_bytes / 2 / 4
    node, world = (played(ShardDegrees(WORLD, degree, WORLD, WORLD), count, 2) for degree in (8, WORLD))
    outer = count * model.head_params
    assert node.nic_tx["parameters"] == pytest.approx(np.full(16, (layers + outer) * half), rel=1e-3)
    assert world.nic_tx["parameters"] == pytest.approx(np.full(16, (2 * count * layers + outer) * half), rel=1e-3)
    assert (node.nic_tx["gradients"] == world.nic_tx["gradients"]).all()


def test_gpus_hold_what_degrees_say() -> None:
    """Of 12 bytes a parameter for the optimizer 1/16, of its gradient 1/8 in the second of two micro-batches, of itself
    1/2; after a forward a half of a layer stays of what was gathered from all, but of the last one, which is whole for
    its backward at the fullest moment."""
    model = replace(planned("zeppelin")[0].model, num_layers=4)
    held = played(LEVELS, 2).memory.held
    share = model.layer_params * model.num_layers
    state = sum(size for name, size in held.items() if name in ("swq", "swkv", "swo", "swz", "swd"))
    assert state == pytest.approx(np.full(16, 12 * share / 16), rel=0.01)
    kept, world = (played(ShardDegrees(WORLD, degree, WORLD, WORLD), 1).memory.peak for degree in (2, WORLD))
    assert kept - world == pytest.approx(np.full(16, 3 / 4 * share * 2 * (1 / 2 - 1 / 16)), rel=1e-3)


def test_fewer_bits_leave_a_node_and_take_their_time() -> None:
    """Between two nodes ZeRO++ has half of ZeRO-3's parameters in one gather instead of two, and an eighth of its
    gradients, with scales; encoding and decoding go through memory."""
    world = ShardDegrees(WORLD, WORLD, WORLD, WORLD)
    plain, few = played(replace(world, hop=8), 2), TransferBits(8, 8, 4)
    zeropp = played(replace(world, secondary=8, hop=8, bits=few), 2)
    model = replace(planned("zeppelin")[0].model, num_layers=4)
    scale = 4 / few.block  # of a value
    gathered = 2 * model.total_params * (1 + scale) / 2 / 4
    assert zeropp.nic_tx["parameters"] == pytest.approx(np.full(8, gathered), rel=2e-3)
    assert zeropp.nic_tx["gradients"] == pytest.approx(plain.nic_tx["gradients"] * (1 / 2 + scale) / 4, rel=2e-3)
    free = played(replace(world, secondary=8, hop=8, bits=few), 2, copy_bandwidth=1e18)
    still = played(replace(world, secondary=8, hop=8), 2, copy_bandwidth=1e18)
    assert free.seconds < min(zeropp.seconds, still.seconds)


@pytest.mark.parametrize(("kind", "moved"), [(GATHER, 1 + 2.0 + 3.0 / 4), (REDUCE, 2 * 1 + 2.0 + 2.0 / 4)])
def test_seconds_of_encoding(kind: int, moved: float) -> None:
    """Of a collective of four with 1 GB of codes of values of 2 GB: who gathers encodes a quarter and decodes all, who
    reduces encodes all and adds what arrives to a quarter."""
    cost, lists = planned("zeppelin")[1], ListTable({"place": 16})
    every = lists.number("place", range(4))
    layout = StepLayout((), (), (), (), (), (), lists.lists())
    step = Step(16, 0, 1, (Encoding("a", 8, True, 2),), (layout,), (), (), Items.of([]), Items.of([]))
    ops = np.array([operation_row(kind, 0, (-1, every), [], "parameters") for _ in range(2)])
    ops[0, 10] = 0
    found = encoding_seconds(step, (layout, np.arange(16)), ops, np.array([10**9, 10**9]), cost)
    assert found == pytest.approx([moved * 1e9 / cost.cluster.device.copy_bandwidth, 0])


def test_the_clock_s_bytes_are_the_law_s() -> None:
    """Of every gather and reduction what it says times the members but one, which is what they send together."""
    degrees = ShardDegrees(WORLD, 8, WORLD, WORLD, WORLD, 8, TransferBits(8, 8, 4, block=100))
    found = planned("zeppelin")[0]
    step = whole_step(replace(found.model, num_layers=3), found.plans, 1, degrees)
    told = {"parameters": 0, "gradients": 0}
    for one in step.order:
        template, layout = step.templates[one.template], step.layouts[step.templates[one.template].layout]
        moved = Sizes(layout, (template,)).moved(step.encodings)
        for op, size in zip(template.operations.table.tolist(), moved.tolist(), strict=True):
            of_layers = layout.tensors[op[1]].layers == "layer"
            there = [layer for layer in one.layers if not of_layers or 0 <= layer + op[7] < step.num_layers]
            if op[0] in (GATHER, REDUCE):
                told[QUEUES[op[8]]] += size * (len(layout.lists[op[3]]) - 1) * len(there)
    stated = stated_bytes(step)
    assert told == {name: sum(of[name][0] for of in stated) for name in told}
