"""A program's columns, put together by one loop, are those that the clock of attention makes of the same hops."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.simulator.steps.test_play import planned
from zbench.cost.job import make_cost
from zbench.simulator.steps.lower import all_queues
from zbench.simulator.steps.program import StepParts, program
from zbench.simulator.steps.shortened import with_fewer_layers
from zbench.step.passes.build import whole_step


@pytest.mark.parametrize(("system", "channels", "zero"), [("zeppelin", 2, "3"), ("flexsp", 1, "1")])
def test_columns_are_those_of_the_graph_of_the_same_hops(system: str, channels: int, zero: str) -> None:
    found, cost = planned(system)
    of = make_cost(replace(cost.cluster, nic_channels=channels), replace(found.model, sharding=f"zero{zero}"))
    parts = StepParts(whole_step(of.model, found.plans, 1, zero), found.plans, of)
    short, order, _ = with_fewer_layers(parts.step, 6)
    made = program(parts, order, short)
    graph, (row, rows) = made.graph, made.hops
    assert made.begin[-1] == len(row) == made.table.shape[1] > 1000 + len(rows.busy)
    assert np.array_equal(made.owner, np.repeat(np.arange(len(made.instances)), np.diff(made.begin)))
    for number, (begin, end) in enumerate(pairwise(made.begin.tolist())):
        assert np.array_equal(row[begin:end], np.arange(len(rows.busy))[made.rows_of(number)])
    for name in ("queue_a", "queue_b", "link_a", "link_b", "channels", "link_class"):
        assert np.array_equal(getattr(rows, name)[row], getattr(graph.hops, name)), name
    for name in ("slot", "busy", "latency"):
        assert np.array_equal(getattr(rows, name)[row], getattr(graph, name)), name
    for name in ("next_a", "next_b", "next_pair", "offsets", "followers"):
        assert np.array_equal(getattr(made.assembled.following, name), getattr(graph, name)), name
    assert np.array_equal(made.assembled.waits, graph.waits)
    assert (graph.next_pair >= 0).any() == (channels > 1)


def test_instances_of_one_template_share_the_queues_in_which_members_meet() -> None:
    found, cost = planned("zeppelin")
    of = make_cost(cost.cluster, replace(found.model, sharding="zero3"))
    parts = StepParts(whole_step(of.model, found.plans, 1, "3"), found.plans, of)
    short, order, _ = with_fewer_layers(parts.step, 4)
    made = program(parts, order, short)
    every = all_queues(cost.cluster)  # of GPUs, and of nodes' CPUs
    queues: dict[str, set[int]] = {}
    for number, one in enumerate(made.instances):
        mine = made.hops.rows.queue_a[made.rows_of(number)]
        queues.setdefault(one.variant.of.template.name, set()).update(mine[mine >= every].tolist())
    met = [found for found in queues.values() if found]
    assert len(met) > 2
    assert sum(map(len, met)) == len(set.union(*met)) == made.queues - every
    assert max(map(max, met)) == made.queues - 1
