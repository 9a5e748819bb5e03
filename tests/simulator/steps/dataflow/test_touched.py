"""What templates touch, in groups: as plain Python has it, row by row."""

from collections import defaultdict

import numpy as np

from tests.simulator.steps.test_play import planned
from zbench.cost.job import make_cost
from zbench.describe.arrays import Ints
from zbench.simulator.steps.dataflow.touched import (
    NO_VERSION,
    OFFSETS,
    NamedPairs,
    named_pairs,
    touched_items,
)
from zbench.simulator.steps.program import StepParts
from zbench.step.operations import COMPUTE, SEND
from zbench.step.passes.build import whole_step


def prepared(zero: str) -> StepParts:
    found, cost = planned("zeppelin")
    of = make_cost(cost.cluster, found.model)
    return StepParts(whole_step(of.model, found.plans, 1, zero), found.plans, of)


def code(tensor: int, offset: int) -> int:
    return tensor * OFFSETS + offset + OFFSETS // 2


def test_pairs_are_those_of_transfers_and_of_the_contract() -> None:
    parts = prepared("1")
    for number, template in enumerate(parts.step.templates):
        of, lists = parts.template(number), parts.step.layouts[template.layout].lists
        transfers = [row for row in of.ops.tolist() if row[0] != COMPUTE]
        held: dict[int, list[int]] = defaultdict(lambda: [0, 0])
        before: dict[int, int] = defaultdict(lambda: NO_VERSION)
        for side, items in enumerate((template.needs, template.leaves)):
            for tensor, layer, *which, _, version, _ in items.rows():
                count = np.prod([len(lists[one]) for one in which if one >= 0])
                held[code(tensor, layer)][side] += int(count)
                if not side:
                    before[code(tensor, layer)] = max(before[code(tensor, layer)], version)
        late = {code(row[1], row[7]) for row in transfers if row[9] > before[code(row[1], row[7])] > NO_VERSION}
        assert set(np.flatnonzero(of.pairs.replaced).tolist()) == late
        assert {pair: counts for pair, *counts in of.pairs.held.tolist()} == held
        assert set(of.pairs.touched.tolist()) == set(held) | {code(row[1], row[7]) for row in transfers}


def test_what_is_brought_in_a_later_version_replaces_what_is_there() -> None:
    sent = np.array(
        [[SEND, tensor, 0, 1, 0, -1, -1, 0, 3, version, -1, -1] for tensor, version in ((0, 1), (1, 1), (2, 1))]
    )
    needs = np.array([[0, 0, 0, 0, -1, 0, 0, 0], [1, 0, 0, 0, -1, 0, 1, 0]])
    found = NamedPairs(*named_pairs(sent, needs, needs[:0], np.array([0, 3]), 3))
    assert np.flatnonzero(found.replaced).tolist() == [code(0, 0)]  # 1 is there in that version, and 2 is not there
    assert found.held.tolist() == [[code(0, 0), 9, 0], [code(1, 0), 9, 0]]


def test_rows_in_groups_are_all_rows() -> None:
    parts = prepared("3")
    for number in range(len(parts.step.templates)):
        of = parts.template(number)
        found = touched_items(of.flow.rows, (len(of.nature), parts.step.num_places + 1, len(of.ops)))
        assert sorted(told(of.flow.rows)) == [
            (int(kind), int(pair), int(place), int(op))
            for at, (kind, pair) in enumerate(zip(found.kinds, found.pairs, strict=True))
            for place, op in zip(
                *(one[found.offsets[at] : found.offsets[at + 1]] for one in found[4:2:-1]), strict=True
            )
        ]


def told(rows: Ints) -> list[tuple[int, int, int, int]]:
    return [(kind, code(tensor, offset), place, op) for kind, op, tensor, offset, place in rows.tolist()]
