"""Collectives in two levels come to the same, and send a shard once to every other node."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.steps import MODEL, execute, fault, plan_of
from tests.step.test_degrees import NESTED, plans_of
from zbench.correctness.steps.mutate import KINDS, step_mutant
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.degrees import WORLD, ShardDegrees, TransferBits
from zbench.describe.overlap import StepOverlap
from zbench.step.operations import GATHER, QUEUES, homes_among
from zbench.step.passes.build import whole_step
from zbench.step.passes.parameters.levels import check_levels
from zbench.step.passes.parameters.zero import ShardedParameters
from zbench.step.passes.two_levels import in_two_levels
from zbench.step.proof.prove import prove_step
from zbench.step.template import Step


def between_nodes(step: Step, number: int = 1) -> int:
    """Cells of wq that gathers of the forward take from a node to another, with two GPUs a node. number: of the
    forward's template."""
    layout, ops = step.layouts[0], step.templates[number].operations
    tensor = layout.number["wq"]
    count = 0
    for row in ops.table[(ops.what == tensor) & (ops.kind == GATHER)].tolist():
        members, cells = layout.lists[row[3]], [layout.lists[row[4]], layout.lists[row[5]]]
        homes = homes_among(layout.tensors[tensor].home, members, row[2]).reshape(layout.shape(tensor))
        count += int((homes[np.ix_(*cells)].reshape(-1, 1) // 2 != members // 2).sum())
    return count


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("zero", "batches"),
    [("3", ([9, 7],)), ("2", ([1], [5])), ("1", ([1], [5])), ("none", ([3, 1],)), ("2", ([16], [1]))],
)
def test_exact(zero: str, batches: tuple[list[int], ...], tied: bool) -> None:
    """Tied embeddings with ZeRO-2 and a second micro-batch: a GPU without tokens has its shards' sums, and nothing of
    others'."""
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


NODES = [  # degrees on eight GPUs, and GPUs a node
    (ShardDegrees(4, 4, 4, 4), 2),  # runs of two nodes, and replicas that sum once a step
    (ShardDegrees(4, 2, 4, WORLD), 2),
    (ShardDegrees(2, 1, 4, 4), 4),  # sums over the rest of what was reduced in the same backward
    (ShardDegrees(1, 1, 2, 4), 4),  # and gathered again by replicas
    (ShardDegrees(WORLD, 2, WORLD, WORLD), 4),
    (ShardDegrees(WORLD, 2, WORLD, WORLD, hop=4), 4),
]


@pytest.mark.parametrize(
    ("degrees", "ranks", "node"),
    [*((one, 4, 2) for one in NESTED[1::2]), *((one, 8, node) for one, node in NODES)],
    ids=str,
)
def test_exact_with_degrees(degrees: ShardDegrees, ranks: int, node: int) -> None:
    """In the second of three micro-batches some GPUs have no token, and nothing to add."""
    plans = plans_of(([5, 3], [1], [4, 4]), ranks)
    step = in_two_levels(whole_step(MODEL, plans, 1, degrees), node)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, 1) < 1e-12


@pytest.mark.parametrize("stages", [1, 2])
def test_a_shard_reaches_a_node_once_and_as_it_was_encoded(stages: int) -> None:
    """Weights of MiCS' runs of two nodes, by its hierarchical gather, and ZeRO++'s, whose lossy hops are as flat."""
    plans = plans_of(([5, 3], [4, 4]), 4)
    for degrees in (ShardDegrees(4, 2, 4, 4), ShardDegrees(4, 2, 4, 4, WORLD, 2, TransferBits(8, 8, 4, block=16))):
        flat = whole_step(MODEL, plans, 1, degrees, stages=stages)
        step = in_two_levels(flat, 2)
        assert unrolled_fault(step) == ""
        assert prove_step(step).hops == prove_step(flat).hops
        shards, number = len(step.layouts[0].index["zwq"]), [one.name for one in step.templates].index("forward.0")
        assert (between_nodes(flat, number), between_nodes(step, number)) == (2 * shards, shards)


def parameters_of(groups: int, degree: int, degrees: ShardDegrees) -> ShardedParameters:
    return ShardedParameters(MODEL, groups, degree, degrees, StepOverlap())


@pytest.mark.parametrize(
    ("groups", "degree", "degrees", "told"),
    [
        (8, 1, ShardDegrees(2, 2, 4, WORLD), ""),
        (8, 1, ShardDegrees(2, 2, 2, 2), ""),
        (4, 2, ShardDegrees(WORLD, 2, WORLD, WORLD), ""),
        (
            8,
            1,
            ShardDegrees(4, 4, 4, 4),
            "with sharding.degrees {weights: 4, secondary: 4, gradients: 4, optimizer: 4} on 8 GPUs every gather and "
            "reduction is inside a node or between single GPUs of nodes, so it takes flat",
        ),
        (4, 4, ShardDegrees(2, 2, 2, WORLD), "on 16 GPUs every gather and reduction is inside a node or between"),
        (12, 1, ShardDegrees(6, 6, 6, 6), "runs of sharding.degrees.weights are 6 GPUs, and two levels take whole"),
        (12, 1, ShardDegrees(3, 3, 3, 3), "runs of sharding.degrees.gradients are 12 GPUs, and two levels take whole"),
        (
            8,
            1,
            ShardDegrees(2, 2, 2, 2, bits=TransferBits(gradients=4)),
            "with sharding.bits.gradients=4 a second level would encode sums once more, so it takes flat, or sharding",
        ),
    ],
    ids=str,
)
def test_degrees_that_have_two_levels(groups: int, degree: int, degrees: ShardDegrees, told: str) -> None:
    """Collectives on nodes of four GPUs: a run of several nodes with several members in each has two levels."""
    parameters = parameters_of(groups, degree, degrees)
    if not told:
        check_levels(parameters, 4)
        return
    with pytest.raises(ValueError, match=r"^sharding.collectives is hierarchical; ") as found:
        check_levels(parameters, 4)
    assert told in str(found.value)


def test_sums_are_encoded_once() -> None:
    degrees = ShardDegrees(1, 1, 1, WORLD, bits=TransferBits(updates=8))
    in_two_levels(whole_step(MODEL, plans_of(([5, 3],), 4), 1, degrees), 2)
    degrees = ShardDegrees(1, 1, 2, WORLD, bits=TransferBits(gradients=4))
    step = whole_step(MODEL, plans_of(([5, 3],), 8), 1, degrees)
    with pytest.raises(
        ValueError, match=r"^d\w+ is reduced in fewer bits, and two levels would encode its sums once more"
    ):
        in_two_levels(step, 4)


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
