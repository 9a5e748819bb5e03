"""What a step copies to and from hosts at least: bounds that no whole step and no estimate beats, and how near."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from tests.cost.test_host_copies import linked
from tests.cost.test_layers_on_hosts import HOST, hosted
from tests.cost.test_stage_memory import pipelines_of
from tests.helpers.examples import examples
from tests.simulator.steps.least.test_ceiling import ROUNDING, SYSTEMS, in_order
from zbench.cost.bound import bound_seconds, ceiling_seconds
from zbench.cost.collective import Collectives
from zbench.cost.cost import OPTIMIZER_BYTES, Cost
from zbench.cost.job import cost_like, make_cost
from zbench.cost.least_copies import least_copy_seconds
from zbench.describe.batch import Batch
from zbench.describe.degrees import WORLD, ShardDegrees
from zbench.describe.model import Model
from zbench.simulated.executor import Simulated
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.hydraulis.planner import Hydraulis
from zbench.systems.local_packing import LocalPacking

BATCH = Batch(np.full(8, 4096), 0, 0)
LENGTHS = st.lists(st.sampled_from((17, 300, 1024, 4096, 9000)), min_size=1, max_size=12)
HPZ = ShardDegrees(WORLD, 2, WORLD, WORLD)
UPDATES = ("as_gradients_come", "after_backward", "across_steps")


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of models that have anything on hosts."""
    offload = draw(st.sampled_from(("inputs", "activations", "optimizer")))
    both = offload != "optimizer" and draw(st.booleans())
    of: dict[str, Any] = {"vocab": 1000, "offload": f"{offload}_and_optimizer" if both else offload}
    of["num_layers"] = draw(st.sampled_from((4, 6, 14)))
    of["recompute"] = "full" if offload == "inputs" else draw(st.sampled_from(("none", "selective", "full")))
    of["sharding"] = draw(st.sampled_from(("zero1", "zero2", "zero3", HPZ)))
    of["tensor_parallel"] = draw(st.sampled_from((1, 1, 2)))
    if draw(st.booleans()):
        of["pipeline_parallel"] = 2
    if offload != "optimizer" and draw(st.booleans()):
        of["offload_layers"] = draw(st.sampled_from((1, 2, "auto")))
    elif offload == "activations":
        of["offload_tokens"] = draw(st.sampled_from(("all", 0.3, "auto")))
    if both or offload == "optimizer":
        of["optimizer_layers"] = draw(st.sampled_from(("all", 1, 3)))
        of["host_updates"] = draw(st.sampled_from(UPDATES))
    if of["sharding"] in ("zero3", HPZ):
        of["parameter_layers"] = draw(st.sampled_from(("none", "all", 2)))
    if of["recompute"] != "none" and offload != "inputs" and draw(st.booleans()):
        of["recompute_layers"] = 1
    return of


def on(rate: float, cpus: float, of: dict[str, Any]) -> Cost:
    """Eight GPUs of two nodes, with links to hosts and CPUs of some rates."""
    cost = hosted(**of).gpus
    cluster = replace(cost.cluster, host_bandwidth=rate, host_efficiency=1.0, host_adam_bandwidth=cpus)
    return make_cost(cluster, cost.model, False, True)


@examples(20)
@given(models(), st.sampled_from((1e7, 1e9, 1e12)), st.sampled_from((1e8, 1e12)), LENGTHS, st.sampled_from(SYSTEMS))
def test_no_step_is_faster(of: dict[str, Any], rate: float, cpus: float, lengths: list[int], system: Any) -> None:
    """Links from so slow that nothing else counts, CPUs likewise; whole steps and planners' estimates."""
    cost, batch = on(rate, cpus, of), Batch(np.array(lengths), 0, 0)
    try:
        plans = system(cost).plan(batch)
        found = Simulated(cost).step(batch, plans)
    except ValueError:  # no steps are like this, as of stages of one layer, whose activations stay
        reject()
    in_order(found)
    least = bound_seconds(batch, cost), ceiling_seconds(batch, cost, Collectives.of(cost))
    assert least[0] <= least[1] <= StepEstimate(cost).seconds(plans) * ROUNDING


def test_gathers_inside_a_node_go_beside_reductions_over_nics() -> None:
    """In a backward of which layers are gathered inside nodes, as other ports carry them."""
    cost = on(1e9, 1e8, {"vocab": 1000, "num_layers": 4, "recompute": "full", "sharding": HPZ})
    batch = Batch(np.array([17]), 0, 0)
    found = Simulated(cost).step(batch, LocalPacking(cost).plan(batch))
    in_order(found)
    assert found.ceiling_seconds > 0.97 * found.seconds


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("of", [{}, {"offload_layers": 2}, {"offload_tokens": 0.5}, {"pipeline_parallel": 2}])
def test_bytes_are_those_of_the_step(recompute: str, of: dict[str, Any]) -> None:
    """On slow links the bound is what all hosts hold at their fullest, there and back; to 1 %."""
    cost = on(1e6, 1e12, {"num_layers": 6, "vocab": 1000, "offload": "activations", "recompute": recompute, **of})
    found = Simulated(cost).step(BATCH, LocalPacking(cost).plan(BATCH))
    sent = 2 * sum(found.host_bytes) / 8 / 1e6
    assert 0.99 * sent <= least_copy_seconds(BATCH.num_tokens, cost, False, True) <= sent * (1 + 1e-12)


@pytest.mark.parametrize("offload", ["activations", "inputs"])
def test_slow_links_are_what_a_step_takes(offload: str) -> None:
    """Even tokens: what is not a link's is little."""
    of = {"num_layers": 14, "vocab": 1000, "offload": offload, "recompute": "full"}
    cost = on(1e7, 1e12, of)
    plans = LocalPacking(cost).plan(BATCH)
    found = Simulated(cost).step(BATCH, plans)
    assert found.ceiling_seconds is not None
    assert 0.95 < found.ceiling_seconds / found.seconds <= 1
    assert 0.95 < bound_seconds(BATCH, cost) / StepEstimate(cost).seconds(plans) <= 1


def test_pipelines_that_a_planner_chooses_may_keep_more_on_gpus() -> None:
    """A bound for all degrees: of three stages of two layers each keeps the last one's."""
    cost = pipelines_of(vocab=1000, offload="activations", sharding="zero1")
    cluster = replace(cost.cluster, **{**HOST, "host_bandwidth": 1e7, "host_efficiency": 1.0})
    cost = replace(cost, cluster=cluster, model=replace(cost.model, num_layers=6))
    some, every = (least_copy_seconds(100, cost, one, True) for one in (True, False))
    assert some == pytest.approx(3 / 5 * every)
    for pair in ((8, 1), (4, 1), (2, 2)):
        batch = Batch(np.full(32, 4096), 0, 0)
        plans = Hydraulis(cost, tp_pp_pairs=[pair], batching="first_fit", pack_tokens=4096).plan(batch)
        in_order(Simulated(cost).step(batch, plans))
        assert bound_seconds(batch, cost) <= StepEstimate(cost).seconds(plans) * ROUNDING


def test_cpus_begin_when_gradients_come() -> None:
    """Behind the forward where gradients are sent as they come, behind all that is computed after the backward, at once
    with gradients of the step before."""
    of = {"num_layers": 6, "vocab": 1000, "offload": "optimizer", "sharding": "zero2"}
    one, after, across = (on(1e12, 1e8, {**of, "host_updates": when}) for when in UPDATES)
    model: Model = one.gpus.model
    cpus = OPTIMIZER_BYTES * model.params_updated_on_hosts / 2 / 1e8
    bounds = [Simulated(cost).bound_seconds(BATCH) for cost in (one, after, across)]
    computing = Simulated(hosted(num_layers=6, vocab=1000, sharding="zero2")).bound_seconds(BATCH)
    assert bounds[2] == pytest.approx(cpus)
    assert cpus + 0.3 * computing < bounds[0] < cpus + 0.4 * computing
    assert cpus + 0.9 * computing < bounds[1] < cpus + computing
    for cost, bound in zip((one, after), bounds, strict=False):
        assert bound > 0.9 * Simulated(cost).step(BATCH, LocalPacking(cost).plan(BATCH)).seconds


@pytest.mark.parametrize("layers", [1, 7])
def test_after_the_backward_is_after_that_of_layers_on_hosts(layers: int) -> None:
    """Of the last layers, whose gradients come first: CPUs do not wait for those of layers before."""
    of = {"num_layers": 14, "vocab": 1000, "offload": "optimizer", "sharding": "zero2"}
    cost = on(1e12, 1e8, {**of, "host_updates": "after_backward", "optimizer_layers": layers})
    found = Simulated(cost).step(BATCH, LocalPacking(cost).plan(BATCH))
    in_order(found)
    assert found.bound_seconds > 0.9 * found.seconds


def test_nothing_is_copied_where_nothing_is_on_hosts_or_it_is_open() -> None:
    for of in ({}, {"offload": "activations", "offload_layers": "auto"}):
        assert least_copy_seconds(1000, hosted(num_layers=4, **of), False, True) == 0.0
    alone = linked(hosted(num_layers=4, offload="optimizer", sharding="zero1"), 1e9)
    assert least_copy_seconds(1000, alone, False, True) > 0.0
    assert least_copy_seconds(1000, alone, False, False) == 0.0  # planners' estimate waits for none of it


def test_who_does_not_wait_has_no_bound_of_links_wherever_it_is_told_again() -> None:
    waits = on(1e7, 1e12, {"num_layers": 4, "offload": "activations", "tensor_parallel": 2})
    cost = waits.not_waiting
    assert not cost.gpus.waits_for_hosts
    again = cost_like(cost, cost.gpus.cluster, cost.gpus.model, False)
    assert not again.waits_for_hosts
    assert not again.gpus.waits_for_hosts
    assert bound_seconds(BATCH, again) < 0.1 * bound_seconds(BATCH, waits)
