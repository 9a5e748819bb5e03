"""Rounds on the clock: seconds are those of the worker whose steps took longest together, and what of an average is
hidden is what the next round is long."""

from dataclasses import replace

import numpy as np
import pytest

from tests.runtime.test_conformance import DEVICE, MODEL
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost, worker_cost, worker_gpus
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.exchanges import ExchangeOverlap
from zbench.describe.expert_schedule import DRAWN, TOKEN_CHOICE, Experts
from zbench.describe.sync import CO2, LOCAL_SGD, STREAMING_DILOCO, RoundSync
from zbench.interfaces.dealt import WorkerPlans
from zbench.interfaces.result import StepResult
from zbench.simulated.executor import Simulated
from zbench.simulator.steps.play import play_step
from zbench.step.passes.rounds.outer_parameters import OuterParameters
from zbench.step.passes.rounds.outer_step import ARRIVED, NOW, SENT, outer_step
from zbench.systems.ring import Ring

# Of a batch each worker has one; which one is drawn.
LENGTHS = ((90, 30), (31, 29), (64, 20), (50, 49), (80, 10), (33, 33))


def cost_of(nodes: int = 2, gpus: int = 1, nic: float = 1e9) -> Cost:
    cluster = Cluster("test", nodes, gpus, 1, nic, 0.9, 1e-5, 1e10, 0.9, 1e-6, DEVICE)
    return make_cost(cluster, replace(MODEL, sharding="none"), pipelines=False)


def batch(step: int) -> Batch:
    lengths = LENGTHS[step % len(LENGTHS)]
    return Batch(np.array(lengths if step % 2 else lengths[::-1], np.int64), 1, step)


def played(cost: Cost, sync: RoundSync, steps: int = 6) -> list[StepResult]:
    each = sync.worker_gpus(cost.cluster.gpus_per_node)
    system, executor = (
        WorkerPlans(Ring(worker_cost(cost, sync)), cost.cluster.num_ranks // each),
        Simulated(cost, sync=sync),
    )
    executor.start()
    return [executor.step(batch(step), system.plan(batch(step))) for step in range(steps)]


def alone(cost: Cost) -> np.ndarray:
    """Seconds of every worker's steps by themselves, [steps, workers]: those of a cluster of one GPU."""
    sync = RoundSync(LOCAL_SGD, 1, "rank")
    own = worker_cost(cost, sync)
    found = []
    for step in range(6):
        order = np.argsort(-batch(step).lengths, kind="stable")[np.random.default_rng((1, step)).permutation(2)]
        row = []
        for at in order:
            mine = replace(batch(step), lengths=batch(step).lengths[[at]])
            row.append(Simulated(own).step(mine, Ring(own).plan(mine)).seconds)
        found.append(row)
    return np.array(found)


def end_of(cost: Cost) -> tuple[float, float]:
    """(seconds of computing, of moving) that a round ends with, one after the other."""
    step = outer_step(cost.model, OuterParameters.of(cost.model, (2, 1), "none"), NOW)
    whole = play_step(step, (), cost)
    computing = float(whole.busy["compute"].max())
    return computing, whole.seconds - computing


@pytest.mark.parametrize("tau", [1, 2, 3, 6])
def test_a_round_takes_as_long_as_its_slowest_worker(tau: int) -> None:
    cost, sync = cost_of(), RoundSync(LOCAL_SGD, tau, "rank")
    found, steps = played(cost, sync), alone(cost)
    computing, moving = end_of(cost)
    rounds = steps.reshape(-1, tau, 2).sum(axis=1).max(axis=1)
    wanted = rounds + computing + moving
    seconds = np.array([one.seconds for one in found]).reshape(-1, tau)
    assert seconds.sum(axis=1) == pytest.approx(wanted, rel=1e-9)
    assert (seconds > 0).all()
    waits = [one.phases["wait"] for one in found if "wait" in one.phases]
    assert waits == pytest.approx(rounds - steps.reshape(-1, tau, 2).sum(axis=1).mean(axis=1), abs=1e-12)
    assert steps.max(axis=1).sum() > rounds.sum() or tau == 1  # waiting evens out
    for first in range(0, 6, tau):  # what the seconds of a round went to sums to them, on every rank
        spent = sum(np.array(list(one.seconds_for.values())).sum(axis=0) for one in found[first : first + tau])
        assert spent == pytest.approx(np.full(2, seconds[first // tau].sum()), rel=1e-9)


def test_each_gpu_s_updates_are_its_own() -> None:
    """One GPU has the norms' parameters besides; the other waits for it."""
    cost = cost_of()
    found = played(cost, RoundSync(LOCAL_SGD, 1, "rank"))[0].seconds_for
    step = outer_step(cost.model, OuterParameters.of(cost.model, (2, 1), "none"), NOW)
    busy = play_step(step, (), cost).busy["compute"]
    assert busy[0] > busy[1]
    assert found["optimizer"][0] - found["optimizer"][1] == pytest.approx(busy[0] - busy[1], rel=1e-6)
    assert found["waiting_rank"][1] >= busy[0] - busy[1]


def test_a_late_average_is_exposed_by_what_the_next_round_is_shorter() -> None:
    steps = alone(cost_of())
    for nic in (1e9, 2e5):  # of the second one more than a round
        cost = cost_of(nic=nic)
        computing, moving = end_of(cost)
        for tau in (1, 3):
            found = played(cost, RoundSync(CO2, tau, "rank", penalty="constant"))
            rounds = steps.reshape(-1, tau, 2).sum(axis=1).max(axis=1)
            exposed = np.maximum(0, moving - rounds)
            exposed[0] = 0  # nothing is under way in the first
            seconds = np.array([one.seconds for one in found]).reshape(-1, tau).sum(axis=1)
            assert seconds == pytest.approx(rounds + computing + exposed, rel=1e-9)
            assert (exposed[1:] > 0).all() == (nic < 1e9)


def test_a_fragment_s_average_is_exposed_by_what_the_steps_until_it_is_used_are_shorter() -> None:
    """Two fragments in rounds of two steps, each a step late: after each step one arrives and the other leaves, and
    workers wait for each other where one arrives."""
    steps, sync = alone(cost_of()), RoundSync(STREAMING_DILOCO, 2, "rank", fragments=2, delay=1)
    for nic in (1e9, 2e5):  # of the second one more than a step
        cost = cost_of(nic=nic)
        ends = []
        for outside in (False, True):  # as many layers each, one of two; fragment 1 leaves first
            model = replace(cost.model, num_layers=1)
            of = OuterParameters.of(model, (2, 1), "none")
            played_ends = [play_step(outer_step(model, of, kind, outside), (), cost) for kind in (SENT, ARRIVED, NOW)]
            sent, arrived, whole = (float(one.busy["compute"].max()) for one in played_ends)
            ends.append((sent, arrived, played_ends[2].seconds - whole))
        found = played(cost, sync)
        waited = steps[:2].sum(axis=0).max()  # workers do not wait before an average arrives, after the second step
        local = np.array([steps[0].max(), waited - steps[0].max(), *steps[2:].max(axis=1)])
        for step, one in enumerate(found):
            leaves, arrives = ends[step % 2], ends[1 - step % 2] if step else (0.0, 0.0, 0.0)
            exposed = max(0.0, arrives[2] - local[step])
            assert one.seconds == pytest.approx(local[step] + arrives[1] + exposed + leaves[0], rel=1e-9), step
            assert (exposed > 0) == (nic < 1e9 and step > 0)


def test_bytes_cross_nodes_at_the_end_of_a_round_alone() -> None:
    found = played(cost_of(2, 2), RoundSync(LOCAL_SGD, 3, "node"))
    assert [sum(one.nic_tx_bytes) > 0 for one in found] == [False, False, True] * 2
    parameters = sum(sum(one.nic_tx_for.get("parameters", [])) for one in found)
    assert parameters > 0
    assert all(set(one.nic_tx_for) <= {"parameters", "gradients"} for one in found)


def test_outer_parameters_take_memory() -> None:
    cost = cost_of()
    plain = played(cost, RoundSync(LOCAL_SGD, 1, "rank"))[0]
    own = worker_cost(cost, RoundSync(LOCAL_SGD, 1, "rank"))
    for length in batch(0).lengths.tolist():
        mine = Batch(np.array([length], np.int64), 0, 0)
        assert max(plain.peak_bytes) > Simulated(own).step(mine, Ring(own).plan(mine)).peak_bytes[0]


def test_rows_of_a_draw_are_played_where_routers_choose() -> None:
    """Without a capacity they are those that experts drawn before have; counts go before them."""
    cost, found = cost_of(2, 2), list[list[StepResult]]()
    model = replace(MODEL, ffn_hidden=16, num_experts=4, experts_per_token=2, sharding="none")
    cost = make_cost(cost.cluster, model, pipelines=False)
    for routing in (DRAWN, TOKEN_CHOICE):
        sync, experts = RoundSync(LOCAL_SGD, 2, "node"), Experts(routing=routing)
        executor, system = Simulated(cost, sync=sync, expert_parallel=2, experts=experts), Ring(worker_cost(cost, sync))
        executor.start()
        found.append([executor.step(batch(at), WorkerPlans(system, 2).plan(batch(at))) for at in range(2)])
    drawn, chosen = found
    assert [one.expert_rows.get("drawn") for one in chosen] == [1.0, 1.0]
    assert [one.expert_rows for one in drawn] == [{}, {}]
    for one, other in zip(drawn, chosen, strict=True):
        assert 0.9 < other.seconds / one.seconds < 1.2
        assert other.nic_tx_bytes == one.nic_tx_bytes  # of a round's end alone


def test_a_worker_without_sequences_is_idle() -> None:
    cost, sync = cost_of(), RoundSync(LOCAL_SGD, 1, "rank")
    system, one = WorkerPlans(Ring(worker_cost(cost, sync)), 2), Batch(np.array([20], np.int64), 0, 0)
    found = Simulated(cost, sync=sync).step(one, system.plan(one))
    idle = found.attention_seconds.index(0)
    assert found.linear_seconds[idle] == 0
    assert found.seconds_for["waiting_rank"][idle] > 0 == found.seconds_for["waiting_rank"][1 - idle]


def test_what_looks_into_one_step_is_refused() -> None:
    cost, sync = cost_of(), RoundSync(LOCAL_SGD, 1, "rank")
    plans = WorkerPlans(Ring(worker_cost(cost, sync)), 2).plan(batch(0))
    with pytest.raises(ValueError, match=r"^sync is local_sgd, with which each worker has a step of its own"):
        Simulated(cost, sync=sync).built(batch(0), plans)


def in_parallel(tensor_parallel: int = 1, pipeline_parallel: int = 1, **more: object) -> Cost:
    """Two workers: nodes of two groups, or two nodes each of two stages."""
    nodes = 2 * pipeline_parallel
    cluster = Cluster("test", nodes, 2 * tensor_parallel, 1, 1e9, 0.9, 1e-5, 1e10, 0.9, 1e-6, DEVICE)
    degrees = {"tensor_parallel": tensor_parallel, "pipeline_parallel": pipeline_parallel}
    return make_cost(cluster, replace(MODEL, sharding="zero1", **degrees, **more), pipelines=False)


@pytest.mark.parametrize("degrees", [(2, 1), (1, 2), (2, 2)])
def test_workers_have_groups_and_stages(degrees: tuple[int, int]) -> None:
    """A round takes as long as its slower worker and its end, as each is played by itself; what its seconds went to
    sums to them on every GPU; a GPU holds what its worker's step does, and its outer parameters and momentum."""
    cost, sync = in_parallel(*degrees), RoundSync(LOCAL_SGD, 1, "node")
    own, gpus = worker_cost(cost, sync), worker_gpus(cost, sync)
    assert (own.tp, own.pp, own.gpus.cluster.num_ranks) == (*degrees, gpus)
    planner, one = Ring(own), batch(0)
    executor = Simulated(cost, sync=sync)
    executor.start()
    found = executor.step(one, WorkerPlans(planner, 2).plan(one))
    alone = []
    for length in one.lengths.tolist():
        mine = Batch(np.array([length], np.int64), 0, 0)
        alone.append(Simulated(own).step(mine, planner.plan(mine)))
    model = cost.gpus.model.with_stages(degrees[1])
    of = OuterParameters.of(model, (2 * gpus, gpus), "1", degrees=degrees)
    ends = np.cumsum(model.layers_of_stages)[:-1].tolist()
    end = play_step(outer_step(model, of, NOW, starts=(0, *ends)), (), cost.gpus)
    assert found.seconds == pytest.approx(max(each.seconds for each in alone) + end.seconds, rel=1e-9)
    spent = np.array(list(found.seconds_for.values())).sum(axis=0)
    assert spent == pytest.approx(np.full(2 * gpus, found.seconds), rel=1e-9)
    weights = {*of.of_layers, *of.outside}
    resting = np.sum(
        [size for name, size in end.memory.held.items() if name[0] in "pm" and name[1:] in weights], axis=0
    )
    assert resting.sum() == pytest.approx(cost.gpus.model.total_params * (8 + 8), rel=1e-9)  # both are in float64
    most = max(max(each.peak_bytes) for each in alone)
    assert max(found.peak_bytes) == pytest.approx(most + resting.max(), rel=0.05)


def test_slices_of_exchanges_are_chosen_for_each_worker() -> None:
    cost, sync = in_parallel(2), RoundSync(LOCAL_SGD, 1, "node")
    executor = Simulated(cost, sync=sync, exchanges=ExchangeOverlap("sliced", "best"))
    executor.start()
    found = executor.step(batch(0), WorkerPlans(Ring(worker_cost(cost, sync)), 2).plan(batch(0))).exchange_slices
    each = [one["slices"] for one in found["workers"]]
    assert len(each) == 2
    assert found.get("slices") == (each[0] if each[0] == each[1] else None)
