"""Edges between the instances of a program, beside all that a plain loop over their tables finds."""

from collections import defaultdict
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest

from tests.simulator.steps.test_play import planned
from zbench.cost.job import make_cost
from zbench.simulator.steps.dataflow.implied import LEAST_FELT
from zbench.simulator.steps.dataflow.touched import BUFFERS
from zbench.simulator.steps.program import StepParts, StepProgram, program
from zbench.simulator.steps.waiting import WaitTables, edges_between
from zbench.step.passes.build import whole_step


@pytest.mark.parametrize(("system", "zero"), [("zeppelin", "3"), ("zeppelin", "1"), ("flexsp", "3")])
def test_edges_that_are_left_out_are_implied(system: str, zero: Literal["1", "3"]) -> None:
    """Whoever waits for computes of a queue waits for the last of them, and of those that wait for a hop the first."""
    found, cost = planned(system)
    of = make_cost(cost.cluster, replace(found.model, sharding="zero3" if zero == "3" else "zero1"))
    parts = StepParts(whole_step(of.model, found.plans, 1, zero), found.plans, of)
    made = program(parts, parts.order.instances(4))
    waiting, rows = parts.tables(made.variants).waiting, instance_rows(made)
    have = set(zip(*(side.tolist() for side in edges_between(waiting, made.of.num_layers, rows)), strict=True))
    want = all_edges(waiting, rows)
    assert have <= want
    computes = np.concatenate([one.variant.lowered.queued.computes for one in made.instances])
    felt = computes & (np.concatenate([one.variant.lowered.queued.busy for one in made.instances]) > LEAST_FELT)
    queue = made.hops.rows.queue_a[made.hops.row]
    into: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
    out: defaultdict[tuple[int, int, int], list[int]] = defaultdict(list)
    for producer, consumer in have:
        if felt[consumer]:
            out[producer, made.owner[consumer], queue[consumer]].append(consumer)
        if felt[producer]:
            into[consumer, made.owner[producer], queue[producer]].append(producer)
    for producer, consumer in want - have:
        firsts = out[producer, made.owner[consumer], queue[consumer]] if computes[consumer] else []
        lasts = into[consumer, made.owner[producer], queue[producer]] if computes[producer] else []
        assert min(firsts, default=consumer) < consumer or max(lasts, default=producer) > producer
    assert len(have) < 0.6 * len(want)


def instance_rows(made: StepProgram) -> np.ndarray:
    """The instances as `edges_between` takes them, of a step with one stage."""
    stage = np.zeros(len(made.instances), np.int64)
    return np.column_stack([made.which, [one.layer for one in made.instances], stage, made.begin[:-1]])


def all_edges(of: WaitTables, rows: np.ndarray) -> set[tuple[int, int]]:
    """Every edge from a hop that something is complete with to one that begins to need it, at one place; computes of a
    place follow each other anyway."""
    t, found = of.tables, set[tuple[int, int]]()
    noted: defaultdict[tuple[int, ...], list[tuple[int, int]]] = defaultdict(list)  # (instance, group)
    buffers: defaultdict[int, list[list[tuple[int, int]]]] = defaultdict(list)  # those who used one that is free

    def hops(offsets: np.ndarray, table: np.ndarray, group: int) -> list[list[int]]:
        found: list[list[int]] = table[offsets[group] : offsets[group + 1]].tolist()
        return found

    for number, (variant, layer, _, first) in enumerate(rows.tolist()):
        for slot, offset, layered, group, side in t.waits[slice(*t.wait_offsets[variant : variant + 2])].tolist():
            if side == BUFFERS:
                others = buffers[slot].pop(0) if buffers[slot] else []
            else:
                others = noted[side, slot, (layer + offset) * layered]
            for other, of_group in others:
                for place, begin, computes in hops(t.begin_offsets, t.begins, group):
                    for at, end, computed in hops(t.final_offsets, t.finals, of_group):
                        if at == place and not (computes and computed):
                            found.add((int(rows[other, 3]) + end, first + begin))
        for slot, offset, layered, group, side in t.notes[slice(*t.note_offsets[variant : variant + 2])].tolist():
            noted[side, slot, (layer + offset) * layered].append((number, group))
        for slot, offset, layered, frees, turns, gone in t.ends[slice(*t.end_offsets[variant : variant + 2])].tolist():
            key = slot, (layer + offset) * layered
            for lets in (turns, frees):
                if lets:
                    buffers[slot].append(list(noted[1, *key]))
            if frees or gone:
                noted[1, *key] = []
            if gone:
                noted[0, *key] = []
    return found
