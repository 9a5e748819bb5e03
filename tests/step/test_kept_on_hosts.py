"""What layers keep in host memory, inputs or activations: proven, exact, one layer ahead, and refused where there is no
room."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.oracles import small
from tests.helpers.steps import MODEL, execute, fault, plan_of
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.play import play_step
from zbench.simulator.steps.program import StepParts
from zbench.step.byte_law import stated_bytes
from zbench.step.operations import QUEUES
from zbench.step.passes.build import whole_step
from zbench.step.passes.memory.host_memory import check_host, check_host_room, layer_host_bytes, with_host_memory
from zbench.step.passes.memory.kept_on_hosts import with_kept_on_hosts
from zbench.step.reading.read import read_step
from zbench.step.text import step_text

FIVE = replace(MODEL, num_layers=5, num_kv_heads=4, offload="inputs")
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
    assert step_text(read_step(step_text(step))) == step_text(step)
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
    assert layer_host_bytes(step, 0).tolist() == [need // 5] * 2
    check_host_room(step, FIVE, replace(cluster, host_memory=float(need)), [5])
    with pytest.raises(ValueError, match=r"^cluster.host_memory is 0.0 GiB; .* the inputs of 5 layers of a micro-batch"):
        check_host_room(step, FIVE, replace(cluster, host_memory=need - 1.0), [5])
    check_host_room(with_host_memory(plain, FIVE, 2, [0]), FIVE, replace(cluster, host_memory=1000.0), [0])
    with pytest.raises(ValueError, match=r"^cluster.host_bandwidth is not given; memory.offload is inputs"):
        check_host(FIVE, small(2, 2).cluster)
    for activations, what in ((False, "inputs"), (True, "activations")):
        with pytest.raises(ValueError, match=f"^memory.offload is {what} and layers are in stages"):
            with_kept_on_hosts(whole_step(FIVE, plans, 1, "3", 1, "full", stages=2), 2, [5], activations)
