"""Optimizer state in host memory: proven, exact, updated layer by layer, and refused where there is no room."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.oracles import small
from tests.helpers.steps import MODEL, execute, fault, plan_of, rejected_mutants
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.cost.cost import OPTIMIZER_BYTES, Cost
from zbench.describe.degrees import WORLD, ShardDegrees
from zbench.describe.overlap import END, StepOverlap
from zbench.simulator.steps.play import PlayedStep, play_step
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.memory.host_memory import check_host, check_host_room, with_host_memory
from zbench.step.passes.memory.optimizer_on_hosts import with_optimizer_on_hosts
from zbench.step.passes.recompute import SomeLayers
from zbench.step.template import Step

FIVE = replace(MODEL, num_layers=5, num_kv_heads=4, offload="optimizer")
HOST = {
    "host_bandwidth": 1e10, "host_efficiency": 1.0, "host_latency": 1e-5, "host_memory": 1e9, "host_adam_bandwidth": 1e9
}  # fmt: skip


def order_of(step: Step) -> list[tuple[str, int]]:
    return [(step.templates[one.template].name, layer) for one in step.order for layer in one.layers]


def played(step: Step, **host: float) -> PlayedStep:
    cluster = replace(small(2, 2).cluster, **{**HOST, **host})
    return play_step(step, [plan_of([400], 4, 4)], Cost(cluster, FIVE))


# A second copy of parameters in pairs; gathers in pairs, reductions in two hops.
LEVELS = ShardDegrees(WORLD, 2, WORLD, WORLD), ShardDegrees(2, 1, 2, WORLD, hop=2)


@pytest.mark.parametrize("zero", ["1", "2", "3", *LEVELS])
@pytest.mark.parametrize(
    ("ranks", "degree", "gpus_per_node", "batches", "tied", "bucket"),
    [(2, 2, 2, 1, False, "layer"), (4, 1, 2, 2, True, 2000), (4, 1, 4, 1, False, END)],
)
def test_exact(
    zero: str | ShardDegrees, ranks: int, degree: int, gpus_per_node: int, batches: int, tied: bool, bucket: int | str
) -> None:
    model = replace(FIVE, tied_embeddings=tied)
    plans = [plan_of([9, 2], ranks, 4 // degree, first=at * 2) for at in range(batches)]
    step = whole_step(model, plans, degree, zero, StepOverlap(1, bucket), "selective")
    step = with_optimizer_on_hosts(step, gpus_per_node)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, degree, model) < 1e-12
    there_and_back = model.total_params * (4 + model.element_bytes)  # gradients are summed in float32
    assert sum(sent for one in stated_bytes(step) for sent, _ in [one["host"]]) == there_and_back


def test_beside_inputs_of_layers_and_where_some_are_recomputed() -> None:
    plans = [plan_of([9, 2], 2, 4)]
    full, on_hosts = whole_step(FIVE, plans, 1, "3", 1, "full"), replace(FIVE, offload="inputs_and_optimizer")
    both, few = (with_host_memory(full, on_hosts, 2, [layers]) for layers in (5, 3))
    some = with_optimizer_on_hosts(whole_step(FIVE, plans, 1, "3", 1, SomeLayers("full", (2,))), 2)
    for step in (both, few, some):
        assert fault(step) == ""
        assert execute(step, plans, 1, FIVE) < 1e-12


def test_a_layer_is_updated_as_soon_as_its_gradients_are_complete() -> None:
    """And all comes back in that order, after what a backward may still need from the host."""
    plans = [plan_of([9, 2], 2, 4, first=at * 2) for at in range(2)]
    step = with_optimizer_on_hosts(whole_step(FIVE, plans, 1, "1"), 2)
    order, down = order_of(step), [4, 3, 2, 1, 0]
    last = order.index(("head.1", 5))
    assert order[last + 1] == ("optimizer_head", 0)
    each = [one for layer in down for one in (("backward.1", layer), ("optimizer", layer))]
    back = [("optimizer_head_back", 0), *(("optimizer_back", layer) for layer in down)]
    assert order[last + 2 :] == [*each, ("embedding_backward.1", 0), *back, ("optimizer_ends", 0)]
    assert ("optimizer", 4) not in order[:last]


def test_mutants_are_found() -> None:
    step = with_optimizer_on_hosts(whole_step(FIVE, [plan_of([3, 2], 2, 4)], 1, "2"), 2)
    assert rejected_mutants(step, 3) > 8


def test_memory_is_hosts_and_a_gpu_has_no_state() -> None:
    plain = whole_step(FIVE, [plan_of([400], 4, 4)], 1, "3")
    hosts = with_optimizer_on_hosts(plain, 2)
    before, after = played(plain).memory, played(hosts).memory
    state = sum(size.sum() for name, size in before.held.items() if name[0] == "s" and name[1:] in before.held)
    assert state == 12 * FIVE.total_params
    on_hosts = {name: size for name, size in after.held.items() if name[0] == "s" and name[1:] in before.held}
    assert sum(size[4:].sum() for size in on_hosts.values()) == state
    assert not any(size[:4].any() for size in on_hosts.values())
    assert (after.peak[:4] < before.peak[:4]).all()
    weights = FIVE.element_bytes * FIVE.total_params  # each once more, beside gradients that have come
    assert state + weights < after.peak[4:].sum() < state + weights + 4 * FIVE.total_params


def test_updates_take_what_cpus_take_one_after_another() -> None:
    step = with_optimizer_on_hosts(whole_step(FIVE, [plan_of([400], 4, 4)], 1, "3"), 2)
    quick = played(step, host_adam_bandwidth=1e12)
    slow = played(step, host_adam_bandwidth=1e5)
    assert not quick.busy["optimizer"].any()
    held = slow.memory.held
    state = sum(size[4:] for name, size in held.items() if name[0] == "s" and name[1:] in held)
    least = OPTIMIZER_BYTES * state.max() / 12 / 1e5  # of the node with more parameters
    assert least < slow.seconds < least + quick.seconds  # the first gradients come during the step
    assert slow.spent["end"][0] == pytest.approx(slow.seconds - quick.seconds + quick.spent["end"][0], rel=1e-6)
    gpus = sum(slow.spent.values())
    assert np.allclose(gpus, slow.seconds)


def test_what_cannot_be_is_one_sentence() -> None:
    plans, cluster = [plan_of([400], 4, 4)], replace(small(2, 2).cluster, **HOST)
    check_host(FIVE, cluster)
    with pytest.raises(ValueError, match=r"^cluster.host_adam_bandwidth is not given; memory.offload is optimizer"):
        check_host(FIVE, replace(cluster, host_adam_bandwidth=None))
    with pytest.raises(
        ValueError,
        match=r"^cluster.host_memory is 1.0 KiB; .* the optimizer state that are there of tiny is [0-9.]+ [KM]iB",
    ):
        check_host(FIVE, replace(cluster, host_memory=1000.0))
    both, state = replace(FIVE, offload="inputs_and_optimizer"), 14 * FIVE.total_params // 2
    step = with_host_memory(whole_step(both, plans, 1, "3", 1, "full"), both, 2, [5])
    need = state + 200 * 5 * both.hidden * both.element_bytes
    check_host_room(step, both, replace(cluster, host_memory=float(need)))
    with pytest.raises(
        ValueError,
        match=r"^cluster.host_memory .* are 11.7 KiB, beside 19.5 KiB of parameters and optimizer state: use",
    ):
        check_host_room(step, both, replace(cluster, host_memory=need - 1.0))
    with pytest.raises(
        ValueError, match=r"^memory.offload has optimizer and GPUs update what others do, too; it takes"
    ):
        with_optimizer_on_hosts(whole_step(FIVE, plans, 1, "none"), 2)
