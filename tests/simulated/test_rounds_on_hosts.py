"""Rounds on the clock with optimizer state of every worker in host memory: what an end takes longer is told, what is
hidden of an average is as without hosts, and nodes' host memory has outer parameters besides."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.runtime.test_conformance import DEVICE, MODEL
from tests.simulated.test_rounds import alone, batch, played
from tests.step.test_optimizer_on_hosts import HOST
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost, worker_cost
from zbench.cost.memory.state import bytes_of_stage
from zbench.describe.cluster import Cluster
from zbench.describe.sync import CO2, LOCAL_SGD, SLOWMO, STREAMING_DILOCO, RoundSync
from zbench.interfaces.dealt import WorkerPlans
from zbench.simulated.executor import Simulated
from zbench.simulated.rounds import PlayedRounds
from zbench.simulator.steps.computes.seconds import compute_seconds
from zbench.simulator.steps.computes.sizes import Sizes
from zbench.simulator.steps.play import play_step
from zbench.step.passes.memory.at_hosts import HostLayers
from zbench.step.passes.rounds.outer_on_hosts import outer_on_hosts
from zbench.step.passes.rounds.outer_parameters import OuterParameters
from zbench.step.passes.rounds.outer_step import LATER, NOW, outer_step
from zbench.step.passes.rounds.worker_steps import WorkerSteps
from zbench.systems.ring import Ring


def cost_of(nodes: int = 2, gpus: int = 1, nic: float = 1e9, **model: Any) -> Cost:
    cluster = Cluster("test", nodes, gpus, 1, nic, 0.9, 1e-5, 1e10, 0.9, 1e-6, DEVICE)
    given = {"sharding": "zero1", "offload": "optimizer"} | model
    return make_cost(replace(cluster, **HOST), replace(MODEL, **given), pipelines=False)


def ends(cost: Cost, kind: str) -> tuple[float, float, float]:
    """(seconds of an end with all on GPUs, of what these compute in it, and of it with state on hosts)."""
    model, gpus = cost.model, (2, 1)
    plain = outer_step(model, OuterParameters.of(model, gpus, "1"), kind)
    layers = HostLayers(model.num_layers, model.layers_updated_on_hosts)
    one, other = (
        play_step(step, (), cost) for step in (plain, outer_on_hosts(plain, layers, range(model.num_layers), 1))
    )
    return one.seconds, float(one.busy["compute"].max()), other.seconds


@pytest.mark.parametrize("layers", ["all", 1])
def test_a_round_ends_on_hosts(layers: int | str) -> None:
    cost, sync = cost_of(optimizer_layers=layers), RoundSync(LOCAL_SGD, 3, "rank")
    found, steps = played(cost, sync), alone(cost)
    plain, _, seconds = ends(cost, NOW)
    assert seconds > 1.2 * plain
    rounds = steps.reshape(-1, 3, 2).sum(axis=1).max(axis=1)
    told = np.array([one.seconds for one in found]).reshape(-1, 3)
    assert told.sum(axis=1) == pytest.approx(rounds + seconds, rel=1e-9)
    for first in (0, 3):  # what the seconds of a round went to sums to them, on every rank
        spent = sum(np.array(list(one.seconds_for.values())).sum(axis=0) for one in found[first : first + 3])
        assert spent == pytest.approx(np.full(2, told[first // 3].sum()), rel=1e-9)
        assert min(found[first + 2].seconds_for["waiting_host"]) > 0


@pytest.mark.parametrize("element_bytes", [2, 8])
def test_cpus_pass_through_what_an_end_reads_and_writes(element_bytes: int) -> None:
    """A third of state is the parameter. Each worker's CPUs read it and write the snapshot, read the outer parameter
    and their own, and write that and its copy; one worker's update the outer parameter with its momentum."""
    cost = cost_of()
    cost = replace(cost, model=replace(cost.model, element_bytes=element_bytes))
    model, wide = cost.model, max(4, element_bytes)
    plain = outer_step(model, OuterParameters.of(model, (2, 1), "1"), NOW)
    step = outer_on_hosts(plain, HostLayers(model.num_layers, model.num_layers), range(model.num_layers), 1)
    found = 0.0
    for one in step.templates:
        seconds = compute_seconds(Sizes(step.layouts[0], (one,)), None, cost, step.num_hosts)
        played = [at for at in step.order if at.template == step.templates.index(one)]
        found += seconds[one.operations.src >= 2].sum() * sum(at.repeats for at in played)
    each = 2 * (2 * wide) + 5 * wide + 2 * (3 * wide + element_bytes)
    assert cost.cluster.host_adam_bandwidth is not None
    assert found == pytest.approx(each * model.total_params / cost.cluster.host_adam_bandwidth, rel=1e-3)


def test_a_late_average_hides_no_more_than_what_goes_between_workers() -> None:
    """CPUs and copies of a round's end are there whatever is hidden of the average's messages."""
    for nic in (1e9, 2e5):  # of the second one more than a round
        cost = cost_of(nic=nic)
        steps, (plain, computing, _) = alone(cost), ends(cost, NOW)
        late, _, on_hosts = ends(cost, LATER)
        found = played(cost, RoundSync(CO2, 3, "rank", penalty="constant"))
        rounds = steps.reshape(-1, 3, 2).sum(axis=1).max(axis=1)
        exposed = max(0.0, plain - computing - rounds[1])
        second = sum(one.seconds for one in found[3:])
        assert second == pytest.approx(rounds[1] + computing + on_hosts - late + exposed, rel=1e-9)
        assert (exposed > 0) == (nic < 1e9)


def test_host_memory_of_a_node() -> None:
    """State, parameters as they are updated, and outer parameters with their momentum, each once among all workers."""
    model = cost_of().model
    state, outer = 3 * model.element_bytes + model.element_bytes, 2 * model.element_bytes  # of float64
    for gpus, worker in ((1, "rank"), (2, "node"), (2, "rank")):
        cost = cost_of(2, gpus)
        workers = 2 * gpus if worker == "rank" else 2
        rests = (state * workers + outer) * model.total_params
        for sync in (RoundSync(SLOWMO, 2, worker), RoundSync(STREAMING_DILOCO, 2, worker, fragments=2, delay=1)):
            found = played(cost, sync, 2)
            assert rests < sum(found[1].host_bytes) < 1.5 * rests
            assert len(found[1].host_bytes) == 2
            on_gpus = played(cost_of(2, gpus, offload="none"), sync, 2)
            assert max(found[1].peak_bytes) < max(on_gpus[1].peak_bytes)
            assert not on_gpus[1].host_bytes
    tight = replace(cost.cluster, host_memory=1.02 * rests / 2)  # of four ranks, two of a node
    with pytest.raises(ValueError, match=r"^cluster.host_memory is .* with which a node needs .* MiB of it"):
        played(make_cost(tight, cost.model, pipelines=False), RoundSync(SLOWMO, 2, "rank"), 2)


@pytest.mark.parametrize("offload", ["none", "optimizer"])
@pytest.mark.parametrize("stages", [1, 2])
def test_planners_know_what_rounds_hold(offload: str, stages: int) -> None:
    """Outer parameters and averages under way on the fullest GPU, as planners have them and as they are played; the
    last two have one average under way, of as many layers as the other one's, and both."""
    more: dict[str, Any] = {} if stages == 1 else {"pipeline_parallel": 2, "num_layers": 5, "stage_layers": (2, 3)}
    cost = cost_of(2 * stages, 4, offload=offload, **more)
    gpus = cost.gpus.cluster.num_ranks
    for sync in (
        RoundSync(SLOWMO, 2, "node"),
        RoundSync(CO2, 2, "node", penalty="constant"),
        RoundSync(STREAMING_DILOCO, 4, "node", fragments=2, delay=1),
        RoundSync(STREAMING_DILOCO, 3, "node", fragments=2, delay=2),
    ):
        own = worker_cost(cost, sync)
        every = enumerate(own.model.with_stages(stages).layers_of_stages)
        known = max(bytes_of_stage(own, *one) - bytes_of_stage(own.of_rounds(1, 0.0), *one) for one in every)
        steps = WorkerSteps("test", cost.gpus.model, (gpus, gpus // 2), sync, degrees=(1, stages))
        rests = PlayedRounds(steps, cost, lambda *_: pytest.fail("nothing is played")).resting[:gpus].max()
        alone = sync.fragments == 2 and sync.delay == 1  # the first fragment has what is outside the layers
        assert known == pytest.approx(rests, rel=0.4 if alone else 0.1)


def test_stages_have_parts_of_their_nodes_memory() -> None:
    """All state of two workers of two nodes, and the outer parameters with their momentum, once among all of these."""
    cost = cost_of(4, 2, pipeline_parallel=2)
    own = worker_cost(cost, sync := RoundSync(SLOWMO, 1, "node"))
    executor, one = Simulated(cost, sync=sync), batch(0)
    executor.start()
    found = executor.step(one, WorkerPlans(Ring(own), 2).plan(one))
    model = cost.gpus.model
    rests = ((3 + 1) * 2 + 2) * model.element_bytes * model.total_params  # of float64
    assert rests < sum(found.host_bytes) < 1.7 * rests  # gradients and averages come there as well
    assert len(found.host_bytes) == 4
    spent = np.array(list(found.seconds_for.values())).sum(axis=0)
    assert spent == pytest.approx(np.full(8, found.seconds), rel=1e-9)


def test_bytes_between_nodes_are_as_without_hosts() -> None:
    sync = RoundSync(SLOWMO, 2, "node")
    found, plain = (played(cost_of(2, 2, offload=one), sync, 2) for one in ("optimizer", "none"))
    assert [one.nic_tx_for for one in found] == [one.nic_tx_for for one in plain]
    assert batch(0).num_tokens > 0 < sum(found[1].nic_tx_bytes)
