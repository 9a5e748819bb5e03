"""Inputs or activations of layers in host memory: proven, exact, one layer ahead, and refused where there is no
room."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests.helpers.oracles import small
from tests.helpers.step_text import is_read_as_written
from tests.helpers.steps import MODEL, execute, fault, plan_of, rejected_mutants
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.cost.recompute import again_activation_bytes, layer_activation_bytes
from zbench.passes.reverse import Mode
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.expand import OP
from zbench.simulator.steps.hop_by_hop import HopByHop
from zbench.simulator.steps.play import play_layers, play_step
from zbench.simulator.steps.program import StepParts
from zbench.step.byte_law import stated_bytes
from zbench.step.operations import COMPUTE, QUEUES
from zbench.step.passes.build import whole_step
from zbench.step.passes.memory.host_memory import check_host, check_host_room, sent_to_hosts, with_host_memory
from zbench.step.passes.memory.kept_on_hosts import with_kept_on_hosts
from zbench.step.template import Step

FIVE = replace(MODEL, num_layers=5, num_kv_heads=4, offload="inputs")
KEEPING = replace(FIVE, offload="activations")
HOST = {"host_bandwidth": 1e10, "host_efficiency": 1.0, "host_latency": 1e-5, "host_memory": 1e9}
HOST_QUEUE = QUEUES.index("host")


@pytest.mark.parametrize(
    ("lengths", "ranks", "degree", "gpus_per_node", "chunk", "layers"),
    [  # GPUs, and a node, without a token
        ([9, 2], 2, 2, 2, "whole", (5,)),
        ([9, 2], 4, 1, 2, 3, (5, 5)),
        ([1], 4, 1, 4, 1, (5,)),
        ([9, 2], 4, 1, 2, "whole", (2, 0)),  # some layers, and of each micro-batch others
        ([9, 2], 2, 2, 2, 3, (1, 4)),
        ([9, 2], 4, 1, 4, "whole", (4, 5, 3)),
    ],
)
def test_exact(
    lengths: list[int], ranks: int, degree: int, gpus_per_node: int, chunk: int | str, layers: tuple[int, ...]
) -> None:
    model = replace(FIVE, mlp_chunk_tokens=chunk)
    plans = [plan_of(lengths, ranks, 4 // degree, first=at * len(lengths)) for at in range(len(layers))]
    step = with_kept_on_hosts(whole_step(model, plans, degree, "1", 1, "full"), gpus_per_node, layers)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, degree, model) < 1e-12
    assert is_read_as_written(step)
    there_and_back = 2 * sum(lengths) * sum(layers) * model.hidden * model.element_bytes
    assert sum(sent for one in stated_bytes(step) for sent, _ in [one.get("host", (0, 0))]) == there_and_back


def test_a_gpu_has_two_layers_inputs_and_a_host_all() -> None:
    """And no more time than without, where copies are behind what is computed."""
    plans, found = [plan_of([400], 4, 4)], {}
    cluster = replace(small(2, 2).cluster, **HOST)
    plain = whole_step(FIVE, plans, 1, "3", 1, "full")
    cost = replace(small(2, 2), cluster=cluster, model=FIVE)
    for name, step in (("plain", plain), ("hosts", with_kept_on_hosts(plain, 2, [5]))):
        found[name] = step_memory(StepParts(step, plans, cost))
    each = 100 * FIVE.hidden * FIVE.element_bytes
    assert found["plain"].held["x"][:4].tolist() == [5 * each] * 4
    assert (found["hosts"].held["x"][:4] <= 2 * each).all()
    assert found["hosts"].peak[4:].tolist() == [2 * 5 * each] * 2
    played = play_step(with_kept_on_hosts(plain, 2, [5]), plans, cost)
    assert played.seconds > play_step(plain, plans, cost).seconds - 1e-9


def test_of_some_layers_the_first_are_on_hosts() -> None:
    """A layer's input goes when it is first read, and comes back while the layer above is in its backward."""
    plans = [plan_of([8], 2, 4)]
    step = with_kept_on_hosts(whole_step(FIVE, plans, 1, "none", 1, "full"), 2, [2])
    order = [(step.templates[one.template].name, layer) for one in step.order for layer in one.layers]
    wanted = [("offloaded_forward", 0), ("offloaded_forward", 1), ("forward", 2), ("forward", 3), ("forward", 4)]
    wanted += [("head", 5), ("backward", 4), ("backward", 3), ("offloaded_backward", 2), ("offloaded_backward", 1)]
    assert order[1:12] == [*wanted, ("offloaded_backward", 0)]
    sends = {one.name: (one.operations.queue == HOST_QUEUE).any() for one in step.templates}
    assert [name for name, has in sends.items() if has] == ["offloaded_forward", "offloaded_backward"]


@pytest.mark.parametrize("layers", range(6))
def test_a_gpu_has_the_others_inputs(layers: int) -> None:
    plans = [plan_of([400], 4, 4)]
    cost = replace(small(2, 2), cluster=replace(small(2, 2).cluster, **HOST), model=FIVE)
    step = with_kept_on_hosts(whole_step(FIVE, plans, 1, "3", 1, "full"), 2, [layers])
    found, each = step_memory(StepParts(step, plans, cost)), 100 * FIVE.hidden * FIVE.element_bytes
    assert (found.held["x"][:4] <= max(5 - layers, 2) * each).all()
    assert (found.held["x"][:4] >= min(5 - layers, 1) * each).all()
    assert found.peak[4:].tolist() == [2 * layers * each] * 2
    assert play_step(step, plans, cost).seconds > 0


def test_the_input_before_comes_while_a_layer_goes_backward() -> None:
    step = with_kept_on_hosts(whole_step(FIVE, [plan_of([8], 2, 4)], 1, "none", 1, "full"), 2, [5])
    layers = {}
    for one in step.templates:
        ops = one.operations
        layers[one.name] = sorted(set(ops.layer[ops.queue == HOST_QUEUE].tolist()))
    assert layers == {name: [] for name in layers} | {"forward": [0], "head": [-1], "backward": [-1]}
    for name, ends in (("forward", [-2, -1]), ("backward", [0, 1])):
        (ops,) = [one.operations for one in step.templates if one.name == name]
        assert np.flatnonzero(ops.queue == HOST_QUEUE).tolist() == [at % len(ops) for at in ends]


def test_what_has_no_room_is_one_sentence() -> None:
    plans, cluster = [plan_of([400], 4, 4)], replace(small(2, 2).cluster, **HOST)
    plain = whole_step(FIVE, plans, 1, "3", 1, "full")
    step, need = with_host_memory(plain, FIVE, 2, [5]), 5 * 200 * FIVE.hidden * FIVE.element_bytes
    assert [one.tolist() for one in sent_to_hosts(step, 2)] == [[[need, need]], [[5, 5]]]
    check_host_room(step, FIVE, replace(cluster, host_memory=float(need)))
    with pytest.raises(
        ValueError, match=r"^cluster.host_memory is [0-9.]+ (KiB|bytes); .* the inputs of 5 layers of a micro-batch"
    ):
        check_host_room(step, FIVE, replace(cluster, host_memory=need - 1.0))
    check_host_room(with_host_memory(plain, FIVE, 2, [0]), FIVE, replace(cluster, host_memory=1000.0))
    with pytest.raises(ValueError, match=r"^cluster.host_bandwidth is not given; memory.offload is inputs"):
        check_host(FIVE, small(2, 2).cluster)


@pytest.mark.parametrize("level", ["none", "selective", "chunked"])
@pytest.mark.parametrize(
    ("lengths", "ranks", "degree", "gpus_per_node", "layers", "zero", "mode"),
    [  # GPUs, and a node, without a token
        ([9, 2], 2, 2, 2, (5,), "1", "carry"),
        ([1], 4, 1, 4, (5,), "2", "carry"),
        ([9, 2], 4, 1, 2, (2, 0), "none", "keep"),  # GPUs of a node have the same keys and values
        ([9, 2], 2, 2, 4, (4, 3, 1), "3", "keep"),
    ],
)
def test_activations_are_exact(
    level: str,
    lengths: list[int],
    ranks: int,
    degree: int,
    gpus_per_node: int,
    layers: tuple[int, ...],
    zero: str,
    mode: Mode,
) -> None:
    model, heads = replace(KEEPING, mlp_chunk_tokens="whole" if level == "none" else 3), 4 // degree
    plans = [plan_of(lengths, ranks, heads, mode, first=at * len(lengths)) for at in range(len(layers))]
    step = with_kept_on_hosts(whole_step(model, plans, degree, zero, 1, level), gpus_per_node, layers, True)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, degree, model) < 1e-12
    assert is_read_as_written(step)
    there = [one.get("host", (0, 0)) for one in stated_bytes(step)]
    sizes, counts = sent_to_hosts(step, gpus_per_node)
    assert counts.tolist() == [[min(count, 4)] * counts.shape[1] for count in layers]  # the last layer's stay
    assert sum(sent for sent, _ in there) == sum(received for _, received in there) >= 2 * sizes.sum() > 0
    if lengths == [1]:  # no plan keeps what it received
        tokens = sum(lengths) * layer_activation_bytes(model)
        tokens -= level != "none" and sum(lengths) * again_activation_bytes(model)
        assert sizes.sum() == 4 * tokens


def test_the_layer_before_goes_while_a_layer_is_computed() -> None:
    """Of some layers the next one's forward sends, and its backward brings, too; the last layer's stay."""
    plans = [plan_of([8], 2, 4)]
    for count, changed in ((2, 3), (4, 5), (5, 5)):
        step = with_kept_on_hosts(whole_step(KEEPING, plans, 1, "none", 1, "none"), 2, [count], True)
        order = [(step.templates[one.template], layer) for one in step.order for layer in one.layers]
        moved = {
            (one.name.removeprefix("offloaded_"), layer): set(one.operations.layer[one.operations.queue == HOST_QUEUE])
            for one, layer in order
            if (one.operations.queue == HOST_QUEUE).any()
        }
        ways = [(way, layer) for way in ("forward", "backward") for layer in range(changed)]
        assert moved == {one: {-1} for one in ways}
    assert rejected_mutants(step, 3) > 8


@pytest.mark.parametrize("layers", range(6))
@pytest.mark.parametrize("level", ["none", "selective"])
def test_a_gpu_has_the_others_activations(level: str, layers: int) -> None:
    plans = [plan_of([400], 4, 4)]
    cost = replace(small(2, 2), cluster=replace(small(2, 2).cluster, **HOST), model=KEEPING)
    step = with_kept_on_hosts(whole_step(KEEPING, plans, 1, "3", 1, level), 2, [layers], True)
    found, away = step_memory(StepParts(step, plans, cost)), min(layers, 4)
    each = 100 * KEEPING.head_dim * KEEPING.num_heads * KEEPING.element_bytes  # of queries on a GPU
    assert found.held["q"][:4].tolist() == [max(5 - away, 2) * each] * 4
    sizes, counts = sent_to_hosts(step, 2)
    assert found.peak[4:].tolist() == sizes[0].tolist()
    assert counts.tolist() == [[away, away]]


@pytest.mark.parametrize(("rate", "gpus"), [(1e6, 1), (1e6, 2), (1e9, 2), (1e12, 2)])
def test_a_gpu_waits_for_its_link_with_more_than_two_layers(rate: float, gpus: int) -> None:
    """A layer begins when what the layer two before kept has been sent, and what it brings when the one after the next
    one down has had its backward: so there is room for it, as the account has it, however slow the link is."""
    plans, link = [plan_of([400], gpus, 4)], {**HOST, "host_bandwidth": rate}
    cost = replace(small(1, gpus), cluster=replace(small(1, gpus).cluster, **link), model=KEEPING)
    step = with_kept_on_hosts(whole_step(KEEPING, plans, 1, "3", 1, "none"), gpus, [5], True)
    hops, times = play_layers(step, plans, cost)
    first, last, sent, brought = (dict[Any, float]() for _ in range(4))  # by template, layer and GPU
    for hop, name, layer, gpu, kind in hops_of(step, hops):
        key = name, layer, gpu
        if kind == "compute":
            first[key] = min(first.get(key, np.inf), times.start[hop])
            last[key] = max(last.get(key, 0.0), times.done[hop])
        elif kind == "send":
            sent[layer, gpu] = max(sent.get((layer, gpu), 0.0), times.done[hop])
        else:
            brought[layer, gpu] = min(brought.get((layer, gpu), np.inf), times.start[hop])
    assert sorted(sent) == sorted(brought) == [(layer, gpu) for layer in range(1, 5) for gpu in range(gpus)]
    for gpu in range(gpus):
        for layer in range(1, 4):
            assert first["forward", layer + 1, gpu] >= sent[layer, gpu]
            assert brought[layer, gpu] >= last["backward", layer + 1, gpu]
    seconds = 2 * sent_to_hosts(step, gpus)[0].sum() / gpus / rate
    played = play_step(step, plans, cost).seconds
    assert played > seconds
    assert (rate, gpus) != (1e6, 1) or played < 1.01 * seconds


def hops_of(step: Step, hops: HopByHop) -> list[tuple[int, str, int, int, str]]:
    """Every hop of computes on GPUs, and of copies to hosts and back: its number, template, layer, GPU and kind."""
    found = []
    for one, (begin, end) in zip(hops.instances, pairwise(hops.begin.tolist()), strict=True):
        name = step.templates[one.template].name
        for hop in range(begin, end):
            op = one.variant.ops[hops.table[OP, hop]]
            sends = bool(op[3] >= step.num_gpus)
            if op[0] == COMPUTE:
                found.append((hop, name, one.layer, int(op[2]), "compute"))
            elif op[8] == HOST_QUEUE:
                found.append((hop, name, one.layer, int(op[2] if sends else op[3]), "send" if sends else "bring"))
    return found
