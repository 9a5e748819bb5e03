"""What a layer waits for its copies to and from hosts: bytes as steps have them, seconds beside the clock's."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.cost.test_layers_on_hosts import HOST, hosted
from tests.cost.test_stage_memory import pipelines_of
from zbench.cost.cost import Cost
from zbench.cost.memory.host_copies import HostCopies, LayerCopies, copies_of_stages, plan_copies, waiting
from zbench.cost.memory.peak import step_bytes
from zbench.describe.batch import Batch
from zbench.simulated.executor import Simulated
from zbench.simulated.offloading import chosen_offload
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.hydraulis.planner import Hydraulis
from zbench.systems.local_packing import LocalPacking

BATCH = Batch(np.full(8, 4096), 0, 0)
LEVELS = ["none", "selective", "full"]


def linked(cost: Cost, rate: float) -> Cost:
    """The cost model with links to hosts of so many bytes a second."""
    return replace(cost, cluster=replace(cost.cluster, host_bandwidth=rate, host_efficiency=1.0))


@pytest.mark.parametrize("recompute", LEVELS)
@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("layers", ["all", 2])
def test_bytes_are_those_of_the_step(recompute: str, tp: int, layers: object) -> None:
    """What a forward sends of all layers is what hosts have at their fullest."""
    of: dict[str, Any] = {"num_layers": 6, "vocab": 1000, "sharding": "zero3", "tensor_parallel": tp}
    cost = hosted(**of, offload="activations", offload_layers=layers, recompute=recompute)
    plans = LocalPacking(cost).plan(BATCH)
    copies = HostCopies.of(cost)
    assert copies is not None
    found = sum(Simulated(cost).step(BATCH, plans).host_bytes)
    sent = sum(share * token for share, token in copies.kinds) * 6 * BATCH.num_tokens / copies.byte
    assert sent == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize("recompute", LEVELS)
@pytest.mark.parametrize("rate", [2e8, 2e9, 2e10, 1e13])
@pytest.mark.parametrize("layers", ["all", 6])
def test_a_step_takes_as_long_as_the_clock_has_it(recompute: str, rate: float, layers: object) -> None:
    """From links that a step waits for all the time to links that are never waited for. To 4 %: the first layers'
    copies have nothing before them to wait for, and the last ones nothing behind them."""
    of: dict[str, Any] = {"num_layers": 24, "vocab": 1000, "sharding": "zero1", "hidden": 512, "ffn_hidden": 2048}
    cost = linked(hosted(**of, offload="activations", offload_layers=layers, recompute=recompute), rate)
    plans = LocalPacking(cost).plan(BATCH)
    bare = StepEstimate(replace(cost, waits_for_hosts=False))
    clock, reckoned = Simulated(cost).step(BATCH, plans).seconds, StepEstimate(cost).seconds(plans)
    alone = Simulated(replace(cost, model=cost.model.offloading(0))).step(BATCH, plans).seconds
    plain = bare.seconds(plans)
    assert reckoned >= plain
    assert reckoned - plain == pytest.approx(clock - alone, abs=0.04 * clock)


@pytest.mark.parametrize("pair", [(1, 1), (4, 1), (2, 2)])
@pytest.mark.parametrize("rate", [2e9, 1e13])
def test_pipelines_wait_as_the_clock_has_it(pair: tuple[int, int], rate: float) -> None:
    cost = pipelines_of(vocab=1000, offload="activations", sharding="zero1")
    cluster = replace(cost.cluster, **{**HOST, "host_bandwidth": rate, "host_efficiency": 1.0})
    cost = replace(cost, cluster=cluster, model=replace(cost.model, num_layers=24))
    batch = Batch(np.full(32, 4096), 0, 0)
    plans = Hydraulis(cost, tp_pp_pairs=[pair], batching="first_fit", pack_tokens=4096).plan(batch)
    here = replace(cost, model=cost.model.offloading(0))
    clock, alone = (Simulated(one).step(batch, plans).seconds for one in (cost, here))
    reckoned, plain = (StepEstimate(one).seconds(plans) for one in (cost, here))
    assert reckoned - plain == pytest.approx(clock - alone, abs=0.1 * clock)


def test_what_else_uses_a_link() -> None:
    """In a backward parameters come beside activations, in a forward the other way; a part of a batch waits for what is
    kept of it alone, as it shares parameters with others."""
    cost = hosted(num_layers=4, offload="activations_and_optimizer", optimizer_layers=2, sharding="zero3")
    cost = linked(replace(cost, model=replace(cost.model, parameter_layers=1)), 1e9)
    copies, tokens = HostCopies.of(cost), np.array([0, 1000])
    assert copies is not None
    share = cost.model.layer_params / 8 / 1e9
    assert copies.brought == pytest.approx(share * 2 / 4)
    assert copies.updated == pytest.approx(share * 2 / 2)
    (of_some, ahead), _ = copies.of_tokens(tokens, False).kinds
    (_, back), (_, last) = copies.of_tokens(tokens, True).kinds
    kept = copies.kinds[0][1] * 1000
    assert of_some == 3 / 4
    assert ahead.tolist() == pytest.approx([copies.brought, max(kept, copies.brought)])
    comes = copies.brought + copies.updated
    assert back.tolist() == pytest.approx([comes, kept + comes])
    assert last.tolist() == pytest.approx([comes] * 2)
    nothing = np.zeros(2)
    assert copies.waited(nothing, nothing, tokens).tolist() == pytest.approx([0, 2 * of_some * kept])


def test_updates_on_hosts_are_waited_for_at_the_end_alone() -> None:
    cost = linked(hosted(num_layers=4, offload="optimizer", sharding="zero3"), 1e3)
    assert HostCopies.of(cost) is None
    brought = HostCopies.of(replace(cost, model=replace(cost.model, parameter_layers=1)))
    assert brought is not None
    assert brought.waited(np.zeros(1), np.zeros(1), np.array([1000])).tolist() == [0]


def test_a_mean_layer_waits_for_its_share() -> None:
    copies = LayerCopies(((0.25, np.array([4.0, 1.0])), (0.5, np.array([2.0, 2.0]))))
    assert copies.waited(np.array([1.0, 3.0])).tolist() == [0.25 * 3 + 0.5 * 1, 0.0]
    assert copies.beyond(np.array([1.0, 1.0])).waited(0.0).tolist() == [0.25 * 3 + 0.5 * 1, 0.5 * 1]


def test_nothing_on_hosts_is_waited_for_by_none() -> None:
    here, hosts = hosted(), hosted(offload="activations")
    plan = LocalPacking(here).plan(BATCH)[0]
    assert HostCopies.of(here) is None
    assert plan_copies(plan, here) == (None, None)
    assert waiting(here, np.array([5]), np.array([0.0]), np.array([0.0])) == 0.0
    assert HostCopies.of(replace(hosts, waits_for_hosts=False)) is None
    waits = replace(hosts, waits_for_hosts=False, model=here.model)
    assert StepEstimate(here).seconds((plan,)) == StepEstimate(waits).seconds((plan,))


def test_as_few_layers_as_a_plan_fits_with_are_priced() -> None:
    """Where their number is open, a plan that fits as it is waits for nothing, and one that does not for some."""
    cost = hosted(num_layers=8, vocab=1000, offload="activations", offload_layers="auto", sharding="zero1")
    plan = LocalPacking(cost).plan(BATCH)[0]
    ahead, back = plan_copies(plan, cost)
    assert (ahead, back) == (None, None)
    every = HostCopies.of(cost)
    assert every is not None
    need = step_bytes(plan, replace(cost, model=cost.model.offloading(3))).max()
    tight = replace(cost, cluster=replace(cost.cluster, device=replace(cost.cluster.device, memory_bytes=float(need))))
    some, _ = plan_copies(plan, tight)
    assert some is not None
    assert some.kinds[0][0] == 3 / 8


def test_stages_that_differ_have_as_many_layers_on_hosts_as_the_job_fits_with() -> None:
    """How many layers fit is asked of the job, not of each stage alone: the first has two micro-batches under way."""
    of: dict[str, Any] = {"num_layers": 8, "vocab": 1000, "sharding": "zero1", "pipeline_parallel": 2}
    of |= {"stage_layers": (5, 3), "offload": "activations", "offload_layers": "auto"}
    cost = hosted(**of)
    plan = LocalPacking(cost, pack_tokens=4096).plan(Batch(np.full(4, 4096), 0, 0))[0]
    need = step_bytes(plan, replace(cost, model=cost.model.offloading(2))).max()
    assert need < step_bytes(plan, replace(cost, model=cost.model.offloading(1))).max()
    tight = hosted(memory=float(need), **of)
    assert chosen_offload((plan,), tight.gpus, 1, 2) == (2,)
    for copies, layers in zip(copies_of_stages(plan, tight), (5, 3), strict=True):
        for passing in copies:
            assert passing is not None
            assert passing.kinds[0][0] == 2 / layers
