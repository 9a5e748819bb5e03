"""The critical path: contiguous from the step's begin to its end, by hand, and each hop's reason by brute force."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from tests.simulator.steps.test_breakdown import CASES, HAND_OVER
from tests.simulator.steps.test_small_steps import MODEL, cluster
from zbench.cost.cost import Cost
from zbench.critical.path import BEGIN, GPU, LINK, OPERAND, QUEUE, critical_path
from zbench.critical.told import path_rows, path_sheets
from zbench.describe.cluster import PORT_ORDERS
from zbench.simulator.clock import Timeline
from zbench.simulator.steps.hop_by_hop import HopByHop
from zbench.simulator.steps.play import play_layers
from zbench.step.reading.read import read_step


def explained(program: HopByHop, timeline: Timeline, hop: int, before: int, waited: str) -> bool:
    """Whether what a hop is said to have waited for had to end, or begin, first, and did so when it began."""
    graph, begin = program.graph, timeline.start[hop]
    if waited == OPERAND:
        needs = hop in graph.followers[graph.offsets[before] : graph.offsets[before + 1]]
        return needs and timeline.done[before] == begin
    queues, links = (
        [{int(of[one]) for of in pair} - {-1} for one in (hop, before)]
        for pair in ((graph.hops.queue_a, graph.hops.queue_b), (graph.hops.link_a, graph.hops.link_b))
    )
    ended = timeline.release[before] == begin
    if waited == LINK:
        return bool(links[0] & links[1]) and ended
    started = waited == QUEUE and timeline.start[before] == begin  # of several channels
    return bool(queues[0] & queues[1]) and before < hop and (ended or started)


@pytest.mark.parametrize("order", PORT_ORDERS)
@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("name", CASES)
def test_a_path_goes_from_the_step_s_end_to_its_begin(name: str, channels: int, order: str) -> None:
    """Each hop begins where the one before it ends, for a reason that is there, and the lengths sum to the step, as
    rows and as hops."""
    step, plans, cost = CASES[name]()
    of = replace(cost.cluster, nic_channels=channels, nvlink_channels=channels, port_order=order)
    program, timeline = play_layers(step, plans, replace(cost, cluster=of))
    path, seconds = critical_path(program, timeline), float(timeline.done.max())
    assert (path[0].begin, path[0].waited, path[-1].end) == (0, BEGIN, seconds)
    for before, one in pairwise(path):
        assert one.begin == before.end
        assert explained(program, timeline, one.hop, before.hop, one.waited)
    rows = path_rows(program, path)
    assert sum(row.seconds for row in rows) == pytest.approx(seconds, rel=1e-12)
    assert len(rows) < len(path) / 4
    made, listed = path_sheets(rows, seconds)
    assert sum(float(row[1]) for row in made.rows) == pytest.approx(1e3 * seconds, abs=1e-3 * len(made.rows))
    assert all(float(row[1]) >= 9.99 * seconds for row in made.rows[:-1])  # a hundredth of it, in ms; others together
    assert listed.rows[0][0] == f"{1e3 * seconds:.3f}"
    assert {cell for row in listed.rows for cell in row[-1].split(", ")} <= {BEGIN, OPERAND, GPU, QUEUE, LINK}


def test_a_hand_over_s_path_is_the_sender_the_message_and_the_receiver() -> None:
    """GPU 1 waits for what GPU 0 computes and sends: its own matmul is not on the path."""
    step = read_step(HAND_OVER)
    program, timeline = play_layers(step, (), Cost(cluster(1, 2), MODEL))
    rows = [row for row in path_rows(program, critical_path(program, timeline)) if row.seconds > 1e-9]
    assert [(row.name, sorted(row.gpus)) for row in rows] == [
        ("matmul gated activations", [0]),
        ("gated activations", [0]),
    ]
    matmul, link = 2 * 4096 * 8192 * 8192 / 650e12, 4096 * 16384 / 360e9
    assert [row.seconds for row in rows] == pytest.approx([matmul, link], rel=1e-6)
    assert [list(row.waited) for row in rows] == [[GPU], [OPERAND]]  # what it is drawn from takes no time


def test_layers_that_are_alike_are_rows_together() -> None:
    """Of 26 layers forward and backward most are one group of rows each, whose times are the layers."""
    step, plans, cost = CASES["experts"]()
    program, timeline = play_layers(step, plans, cost)
    rows = path_rows(program, critical_path(program, timeline))
    attends = [row for row in rows if row.name == "attend forward"]
    assert sum(row.times for row in attends) >= 26
    assert len(attends) < 12
    assert frozenset().union(*(row.layers for row in attends)) == set(range(26))
    assert np.isclose(max(row.end for row in rows), timeline.done.max())
