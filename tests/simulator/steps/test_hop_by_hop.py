"""Hops one by one: pieces are their legs', in bytes and in seconds, and times come together as they were."""

from dataclasses import replace

import numpy as np
import pytest

from tests.simulator.steps.test_play import planned
from zbench.cost.job import make_cost
from zbench.simulator.clock import Free
from zbench.simulator.steps.expand import BYTES, PIECES
from zbench.simulator.steps.program import StepParts, program
from zbench.simulator.steps.trains.clock import run_trains
from zbench.step.passes.build import whole_step


@pytest.mark.parametrize("zero", ["3", "1"])
def test_pieces_are_their_legs(zero: str) -> None:
    found, cost = planned("zeppelin")
    of = make_cost(cost.cluster, replace(found.model, sharding=f"zero{zero}"))
    parts = StepParts(whole_step(of.model, found.plans, 1, zero), found.plans, of)
    made = program(parts, parts.order.instances(4))
    apart, legs = made.apart, np.concatenate([one.variant.lowered.table for one in made.instances], axis=1)
    assert legs[PIECES].max() > 1
    assert np.array_equal(np.diff(apart.first), legs[PIECES])
    assert np.array_equal(np.add.reduceat(apart.table[BYTES], apart.first[:-1]), legs[BYTES])
    sizes = apart.table[BYTES] - np.repeat(legs[BYTES] // legs[PIECES], legs[PIECES])
    assert set(sizes.tolist()) == {0, 1}  # as even as can be
    assert np.array_equal(apart.kinds[apart.first[:-1]], np.concatenate([one.variant.kinds for one in made.instances]))
    played = run_trains(made, of.cluster.num_ranks, Free.of(of.cluster, made.queues))
    again = apart.together(apart.times(played))
    for name in ("start", "release", "done", "begun", "ended"):
        assert np.array_equal(getattr(again, name), getattr(played, name)), name
