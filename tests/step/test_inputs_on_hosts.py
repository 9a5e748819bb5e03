"""Inputs of layers in host memory: proven, exact, one layer ahead, and refused where there is no room."""

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
from zbench.step.passes.memory.host_memory import check_host, check_host_room
from zbench.step.passes.memory.inputs_on_hosts import with_inputs_on_hosts

FIVE = replace(MODEL, num_layers=5, num_kv_heads=4, offload="inputs")
HOST = {"host_bandwidth": 1e10, "host_efficiency": 1.0, "host_latency": 1e-5, "host_memory": 1e9}
HOST_QUEUE = QUEUES.index("host")


@pytest.mark.parametrize(
    ("lengths", "ranks", "degree", "gpus_per_node", "chunk", "batches"),
    [([9, 2], 2, 2, 2, "whole", 1), ([9, 2], 4, 1, 2, 3, 2), ([1], 4, 1, 4, 1, 1)],  # GPUs, and a node, without a token
)
def test_exact(lengths: list[int], ranks: int, degree: int, gpus_per_node: int, chunk: int | str, batches: int) -> None:
    model = replace(FIVE, mlp_chunk_tokens=chunk)
    plans = [plan_of(lengths, ranks, 4 // degree, first=at * len(lengths)) for at in range(batches)]
    step = with_inputs_on_hosts(whole_step(model, plans, degree, "1", 1, "full"), gpus_per_node)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, degree, model) < 1e-12
    there_and_back = 2 * sum(lengths) * batches * model.num_layers * model.hidden * model.element_bytes
    assert sum(sent for one in stated_bytes(step) for sent, _ in [one.get("host", (0, 0))]) == there_and_back


def test_a_gpu_has_two_layers_inputs_and_a_host_all() -> None:
    """And no more time than without, where copies are behind what is computed."""
    plans, found = [plan_of([400], 4, 4)], {}
    cluster = replace(small(2, 2).cluster, **HOST)
    plain = whole_step(FIVE, plans, 1, "3", 1, "full")
    cost = replace(small(2, 2), cluster=cluster, model=FIVE)
    for name, step in (("plain", plain), ("hosts", with_inputs_on_hosts(plain, 2))):
        found[name] = step_memory(StepParts(step, plans, cost))
    each = 100 * FIVE.hidden * FIVE.element_bytes
    assert found["plain"].held["x"][:4].tolist() == [5 * each] * 4
    assert (found["hosts"].held["x"][:4] <= 2 * each).all()
    assert found["hosts"].peak[4:].tolist() == [2 * 5 * each] * 2
    played = play_step(with_inputs_on_hosts(plain, 2), plans, cost)
    assert played.seconds > play_step(plain, plans, cost).seconds - 1e-9


def test_the_input_before_comes_while_a_layer_goes_backward() -> None:
    step = with_inputs_on_hosts(whole_step(FIVE, [plan_of([8], 2, 4)], 1, "none", 1, "full"), 2)
    layers = {}
    for one in step.templates:
        ops = one.operations
        layers[one.name] = sorted(set(ops.layer[ops.queue == HOST_QUEUE].tolist()))
    assert layers == {name: [] for name in layers} | {"forward": [0], "head": [-1], "backward": [-1]}
    assert np.flatnonzero(step.templates[1].operations.queue == HOST_QUEUE).tolist() == [0, 1]


def test_what_has_no_room_is_one_sentence() -> None:
    plans, cluster = [plan_of([400], 4, 4)], replace(small(2, 2).cluster, **HOST)
    check_host_room(FIVE, plans, 1, cluster)
    with pytest.raises(ValueError, match=r"^cluster.host_memory is 0.0 GiB; .* 5 layers of 200 tokens on a node are"):
        check_host_room(FIVE, plans, 1, replace(cluster, host_memory=1000.0))
    with pytest.raises(ValueError, match=r"^cluster.host_bandwidth is not given; memory.offload is inputs"):
        check_host(FIVE, small(2, 2).cluster)
    with pytest.raises(ValueError, match=r"^memory.offload is inputs and layers are in stages"):
        with_inputs_on_hosts(whole_step(FIVE, plans, 1, "3", 1, "full", stages=2), 2)
