"""Collectives in two levels come to the same, and send a shard once to every other node."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.steps import MODEL, execute, fault, plan_of
from zbench.correctness.steps.mutate import KINDS, step_mutant
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.step.operations import GATHER, QUEUES, SEND
from zbench.step.passes.build import whole_step
from zbench.step.passes.two_levels import in_two_levels
from zbench.step.template import Step


def between_nodes(step: Step) -> int:
    """Cells of wq that gathers and sends of the forward take from a node to another, with two GPUs a node."""
    layout, ops = step.layouts[0], step.templates[1].operations
    tensor = layout.number["wq"]
    home, count = layout.tensors[tensor].home, 0
    for row in ops.table[(ops.what == tensor) & np.isin(ops.kind, (GATHER, SEND))].tolist():
        cells = [layout.lists[row[4]], layout.lists[row[5]]]
        for at in home.reshape(layout.shape(tensor))[np.ix_(*cells)].reshape(-1).tolist():
            ends = [(at, place) for place in layout.lists[row[3]].tolist()] if row[0] == GATHER else [(row[2], row[3])]
            count += sum(a // 2 != b // 2 for a, b in ends)
    return count


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("zero", "batches"),
    [("3", ([9, 7],)), ("2", ([1], [5])), ("1", ([1], [5])), ("none", ([3, 1],)), ("2", ([16], [1]))],
)
def test_exact(zero: str, batches: tuple[list[int], ...], tied: bool) -> None:
    """Tied embeddings with ZeRO-2 and a second micro-batch: a GPU without tokens has its shards' sums, and nothing to
    move of others'."""
    plans = [plan_of(lengths, 4, 4, first=at) for at, lengths in enumerate(batches)]
    model = replace(MODEL, tied_embeddings=tied)
    flat = whole_step(model, plans, 1, zero)
    step = in_two_levels(flat, 2)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, 1, model) < 1e-12
    if zero == "3":
        shards = len(step.layouts[0].index["zwq"])
        assert (between_nodes(flat), between_nodes(step)) == (2 * shards, shards)
    rng = np.random.default_rng(len(batches))
    for at in range(12):
        broken = step_mutant(step, KINDS[at % len(KINDS)], rng)
        if broken is not None:
            told = fault(broken)
            assert bool(told) == bool(unrolled_fault(broken)), told
            assert told or execute(broken, plans, 1, model) < 1e-12


def test_what_is_in_one_node_stays() -> None:
    step = whole_step(MODEL, [plan_of([9, 7], 4, 4)], 1, "3")
    for node in (1, 4):
        same = in_two_levels(step, node)
        assert all(
            np.array_equal(a.operations.table, b.operations.table)
            for a, b in zip(step.templates, same.templates, strict=True)
        )
    assert QUEUES[int(step.templates[1].operations.queue[0])] == "parameters"
    with pytest.raises(ValueError, match="there are 3 GPUs a node; it has to divide the step's 4"):
        in_two_levels(step, 3)
