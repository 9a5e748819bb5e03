"""A program's columns, put together by one loop, are those of the graph of the same hops one by one."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.simulator.steps.test_play import planned
from zbench.cost.job import make_cost
from zbench.simulator.steps.lower import all_queues
from zbench.simulator.steps.program import StepParts, program
from zbench.step.passes.build import whole_step


@pytest.mark.parametrize(("system", "channels", "zero"), [("zeppelin", 2, "3"), ("flexsp", 1, "1")])
def test_columns_are_those_of_the_graph_of_the_same_hops(system: str, channels: int, zero: str) -> None:
    found, cost = planned(system)
    of = make_cost(replace(cost.cluster, nic_channels=channels), replace(found.model, sharding=f"zero{zero}"))
    parts = StepParts(whole_step(of.model, found.plans, 1, zero), found.plans, of)
    made = program(parts, parts.order.instances(6))
    apart, (row, rows) = made.apart, made.hops
    graph, following, first = apart.graph, made.assembled.following, apart.first
    last = first[1:] - 1
    assert made.begin[-1] == len(row) > 1000 + len(rows.busy)
    assert len(first) == len(row) + 1
    assert len(graph.busy) == first[-1] > 1.2 * len(row)
    assert np.array_equal(made.owner, np.repeat(np.arange(len(made.instances)), np.diff(made.begin)))
    assert np.array_equal(apart.begin, first[made.begin])
    for number, (begin, end) in enumerate(pairwise(made.begin.tolist())):
        assert np.array_equal(row[begin:end], np.arange(len(rows.busy))[made.rows_of(number)])
    for name in ("queue_a", "queue_b", "link_a", "link_b", "channels", "link_class"):
        assert np.array_equal(getattr(rows, name)[row], getattr(graph.hops, name)[first[:-1]]), name
    for name in ("slot", "latency"):
        assert np.array_equal(getattr(rows, name)[row], getattr(graph, name)[last]), name
    np.testing.assert_allclose(rows.busy[row], np.add.reduceat(graph.busy, first[:-1]), rtol=1e-14)
    for name in ("next_a", "next_b", "next_pair"):
        after = getattr(following, name).astype(np.int64)
        assert np.array_equal(np.where(after >= 0, first[after], -1), getattr(graph, name)[last]), name
    assert np.array_equal(np.diff(following.offsets), np.diff(graph.offsets)[last])
    assert np.array_equal(first[following.followers], graph.followers)
    assert np.array_equal(made.assembled.waits, graph.waits[first[:-1]])
    pieces = np.setdiff1d(np.arange(first[-1]), first[:-1])  # each waits for the one before it in its queues
    assert (graph.waits[pieces] == 2 + (graph.pair[pieces] >= 0)).all()
    assert (graph.next_a[pieces - 1] == pieces).all()
    assert (graph.next_b[pieces - 1] == pieces).all()
    assert (graph.next_pair >= 0).any() == (channels > 1)


def test_instances_of_one_template_share_the_queues_in_which_members_meet() -> None:
    found, cost = planned("zeppelin")
    of = make_cost(cost.cluster, replace(found.model, sharding="zero3"))
    parts = StepParts(whole_step(of.model, found.plans, 1, "3"), found.plans, of)
    made = program(parts, parts.order.instances(4))
    every = all_queues(cost.cluster)  # of GPUs, and of nodes' CPUs
    queues: dict[str, set[int]] = {}
    for number, one in enumerate(made.instances):
        mine = made.hops.rows.queue_a[made.rows_of(number)]
        queues.setdefault(one.variant.of.template.name, set()).update(mine[mine >= every].tolist())
    met = [found for found in queues.values() if found]
    assert len(met) > 2
    assert sum(map(len, met)) == len(set.union(*met)) == made.queues - every
    assert max(map(max, met)) == made.queues - 1
