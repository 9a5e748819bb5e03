"""Legs of collectives as trains: every hop and piece of a step runs when the plain event loop says, to the last bit."""

from dataclasses import replace

import numpy as np
import pytest

from tests.simulator.steps.test_play import planned
from zbench.cost.job import make_cost
from zbench.describe.cluster import LONGEST_WAITING, PLAN
from zbench.simulator.clock import Free, Timeline, run_hops
from zbench.simulator.steps.program import StepParts, StepProgram, program
from zbench.simulator.steps.trains.clock import Halt, Unless, run_trains, run_unless
from zbench.step.passes.build import whole_step

TIMES = ("start", "release", "done", "begun", "ended")


def of_layers(parts: StepParts, kept: int) -> StepProgram:
    """Returns a program of some layers of a step."""
    return program(parts, parts.order.instances(kept))


@pytest.mark.parametrize("zero", ["3", "1"])
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("order", [PLAN, LONGEST_WAITING])
@pytest.mark.parametrize("system", ["zeppelin", "flexsp"])
def test_trains_run_when_their_pieces_do(system: str, order: str, channels: int, zero: str) -> None:
    """Collectives of ten pieces and more, which messages of attention interrupt; slow links, so that many wait."""
    found, cost = planned(system)
    slow = cost.cluster.nic_bandwidth / 4
    cluster = replace(cost.cluster, port_order=order, nic_channels=channels, nic_bandwidth=slow)
    of = make_cost(cluster, replace(found.model, sharding=f"zero{zero}"))
    parts = StepParts(whole_step(of.model, found.plans, 1, zero), found.plans, of)
    made = of_layers(parts, 6)
    plain, trains = Free.of(cluster, made.queues), Free.of(cluster, made.queues)
    want = run_hops(made.apart.graph, np.zeros(cluster.num_ranks), plain)
    have = run_trains(made, cluster.num_ranks, trains)
    for name in ("start", "release", "done"):
        assert (getattr(made.apart.times(have), name) == getattr(want, name)).all(), name
    assert (trains.queues == plain.queues).all()
    assert (trains.links == plain.links).all()
    hop, _, count, before = made.assembled.trains.T
    assert count.min() > 1
    assert count.sum() > made.apart.table.shape[1] / 4
    assert (before == np.cumsum(count) - count).all()
    busy = made.hops.rows.busy[made.hops.row[hop]]  # of all pieces of a train
    stretched = have.release[hop] - have.start[hop] > 1.01 * busy
    assert stretched.any() or zero == "1"  # pieces waited for others


@pytest.mark.parametrize("stops", [True, False])
def test_a_program_stops_when_some_hops_have_ended(stops: bool) -> None:
    """Their times are those of the whole program then; or it goes on as if nobody had asked."""
    found, cost = planned("zeppelin")
    of = make_cost(cost.cluster, replace(found.model, sharding="zero3"))
    parts = StepParts(whole_step(of.model, found.plans, 1, "3"), found.plans, of)
    made, ranks = of_layers(parts, 6), cost.cluster.num_ranks
    want = run_trains(made, ranks, Free.of(of.cluster, made.queues))
    early, hops = (np.arange(*made.begin[at : at + 2]) for at in (2, 4))  # of the forward of two layers
    asked = []

    def look(times: Timeline) -> bool:
        asked.append((times.release[hops] == want.release[hops]).all())
        return stops

    def look_before(times: Timeline) -> bool:
        asked.append((times.release[early] == want.release[early]).all())
        return False

    reasons = [Unless(early, look_before), Unless(hops, look)]
    have, _ = run_unless(made, ranks, Free.of(of.cluster, made.queues), reasons)
    assert asked == [True, True]
    assert (have is None) == stops
    if have is not None:
        for name in ("start", "release", "done"):
            assert (getattr(have, name) == getattr(want, name)).all(), name


@pytest.mark.parametrize("order", [PLAN, LONGEST_WAITING])
@pytest.mark.parametrize("zero", ["3", "1"])
@pytest.mark.parametrize("system", ["zeppelin", "flexsp"])
def test_a_program_goes_on_from_where_another_one_was_kept(system: str, zero: str, order: str) -> None:
    """Of eight layers from where one of six was: as if it had begun itself, to the last bit, at three moments."""
    found, cost = planned(system)
    cluster = replace(cost.cluster, port_order=order, nic_bandwidth=cost.cluster.nic_bandwidth / 4)
    of = make_cost(cluster, replace(found.model, sharding=f"zero{zero}"))
    parts = StepParts(whole_step(of.model, found.plans, 1, zero), found.plans, of)
    few, more = (of_layers(parts, kept) for kept in (6, 8))
    common = int(few.begin[6])  # five layers and the embedding are alike, the sixth is a last one there
    assert [one.variant for one in few.instances[:6]] == [one.variant for one in more.instances[:6]]
    assert few.instances[6].variant is not more.instances[6].variant
    ranks, whole = cluster.num_ranks, Free.of(cluster, more.queues)
    want, kept = run_trains(more, ranks, whole), []
    for instance in (1, 2, 4, 5):
        halt = Halt(np.arange(*few.begin[instance : instance + 2]), common)
        _, paused = run_unless(few, ranks, Free.of(cluster, few.queues), (), halt)
        kept.append(paused)
        free = Free.of(cluster, more.queues)
        have, _ = run_unless(more, ranks, free, (), since=paused)
        assert have is not None
        assert all((getattr(have, name) == getattr(want, name)).all() for name in TIMES)
        assert (free.queues == whole.queues).all()
        assert (free.links == whole.links).all()
    assert kept[0] is not None
    assert kept[-1] is None  # parameters of the sixth layer are being gathered by then
    assert 0 < np.isfinite(kept[0].done).sum() < common


def test_what_wants_a_link_at_once_is_not_passed_over() -> None:
    """A program that goes on from hops that are not all of those that begin before others begins anew."""
    found, cost = planned("zeppelin")
    of = make_cost(cost.cluster, replace(found.model, sharding="zero3"))
    parts = StepParts(whole_step(of.model, found.plans, 1, "3"), found.plans, of)
    made = of_layers(parts, 6)
    ranks, halt = cost.cluster.num_ranks, Halt(np.arange(*made.begin[1:3]), int(made.begin[6]))
    want = run_trains(made, ranks, Free.of(of.cluster, made.queues))
    _, paused = run_unless(made, ranks, Free.of(of.cluster, made.queues), (), halt)
    assert paused is not None
    names = ("start", "release", "done", "waits")
    first = paused._replace(**{name: getattr(paused, name)[:1] for name in names})
    have, _ = run_unless(made, ranks, Free.of(of.cluster, made.queues), (), since=first)
    assert have is not None
    assert all((getattr(have, name) == getattr(want, name)).all() for name in TIMES)


@pytest.mark.parametrize("late", [1.0, 1e3, 1e6])
def test_late_trains_end_when_their_last_piece_does(late: float) -> None:
    """The later a piece, the more its moment is rounded, so that pieces one by one may end earlier than their number
    times their seconds says."""
    found, cost = planned("zeppelin")
    cluster = replace(cost.cluster, nic_channels=2, nic_bandwidth=cost.cluster.nic_bandwidth / 4)
    of = make_cost(cluster, replace(found.model, sharding="zero3"))
    parts = StepParts(whole_step(of.model, found.plans, 1, "3"), found.plans, of)
    made = of_layers(parts, 6)
    plain, trains = Free.of(cluster, made.queues), Free.of(cluster, made.queues)
    for free in (plain, trains):
        free.queues[:] = late
    want = run_hops(made.apart.graph, np.zeros(cluster.num_ranks), plain)
    have = made.apart.times(run_trains(made, cluster.num_ranks, trains))
    assert (have.done == want.done).all()
    assert have.done.max() > late


def test_computes_that_messages_slow_are_those_of_the_plain_loop() -> None:
    found, cost = planned("zeppelin")
    slowed = replace(cost.cluster, device=replace(cost.cluster.device, compute_slowdown=1.2))
    seconds = []
    for cluster in (cost.cluster, slowed):
        of = make_cost(cluster, replace(found.model, sharding="zero3"))
        parts = StepParts(whole_step(of.model, found.plans, 1, "3"), found.plans, of)
        made = of_layers(parts, 4)
        free = Free.of(cluster, made.queues)
        want = run_hops(made.apart.graph, np.zeros(cluster.num_ranks), free)
        have = run_trains(made, cluster.num_ranks, Free.of(cluster, made.queues))
        apart = made.apart.times(have)
        assert all((getattr(apart, name) == getattr(want, name)).all() for name in ("start", "release", "done"))
        seconds.append(have.done.max())
    assert seconds[0] < seconds[1] < 1.2 * seconds[0]
