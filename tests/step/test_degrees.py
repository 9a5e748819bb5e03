"""Parameters, gradients and optimizer state in nested degrees: exact, with the bytes of the law of degrees."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from tests.helpers.steps import EXPERTS, MODEL, execute, fault, plan_of, rejected_mutants
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.degrees import WORLD, ShardDegrees
from zbench.describe.model import Model
from zbench.describe.overlap import StepOverlap
from zbench.step.byte_law import stated_bytes
from zbench.step.operations import GATHER, REDUCE, Operations, homes_among
from zbench.step.passes.build import whole_step
from zbench.step.passes.parameters.weights import outer_weights, weight_elements
from zbench.step.passes.parameters.zero import GRADIENT_BYTES, STAGES
from zbench.step.passes.routing import TOGETHER, ExpertParallel
from zbench.step.proof.prove import StepError, prove_step
from zbench.step.reading.read import read_step
from zbench.step.template import Step
from zbench.step.text import step_text

SIZES = (1, 2, 4)
NESTED = [
    ShardDegrees(weights, secondary, gradients, optimizer)
    for weights, secondary, gradients, optimizer in product(SIZES, repeat=4)
    if secondary <= weights <= gradients <= optimizer
]
LEVELS = ShardDegrees(2, 2, 4, WORLD, 4)  # pairs, nodes of four, the world


def plans_of(batches: tuple[list[int], ...], ranks: int, heads: int = 4) -> list:
    return [plan_of(lengths, ranks, heads, first=10 * at) for at, lengths in enumerate(batches)]


@pytest.mark.parametrize("case", range(0, len(NESTED), 2))
def test_exact(case: int) -> None:
    """In the second micro-batch one GPU has no token; gradients are reduced layer by layer, or all in the end."""
    plans = plans_of(([5, 3], [1]), 4)
    overlap = StepOverlap(case % 3, "end" if case % 4 == 0 else "layer")
    step = whole_step(MODEL, plans, 1, NESTED[case], overlap, ("none", "full")[case // 2 % 2])
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, 1) < 1e-12


@pytest.mark.parametrize(
    ("model", "degree", "ranks", "experts", "degrees"),
    [
        (replace(MODEL, tied_embeddings=True), 1, 4, TOGETHER, ShardDegrees(2, 1, 2, 4)),
        (replace(MODEL, tied_embeddings=True), 1, 4, TOGETHER, ShardDegrees(2, 2, 2, 2)),
        (MODEL, 2, 4, TOGETHER, ShardDegrees(2, 2, 2, WORLD)),
        (EXPERTS, 1, 4, ExpertParallel(4, seed=0, skew=5.0), ShardDegrees(2, 2, 2, 2)),
        (EXPERTS, 1, 4, ExpertParallel(2, seed=0, skew=1.0), ShardDegrees(4, 2, 4, 4)),
        (replace(EXPERTS, num_kv_heads=4), 4, 4, ExpertParallel(2, seed=0, skew=1.0), ShardDegrees(1, 1, 1, 2)),
        (MODEL, 1, 8, TOGETHER, LEVELS),
    ],
    ids=str,
)
def test_exact_with_others(
    model: Model, degree: int, ranks: int, experts: ExpertParallel, degrees: ShardDegrees
) -> None:
    """Tied embeddings, tensor parallelism, experts on other GPUs than the rest of a run, or on fewer than a
    tensor-parallel group has, three levels of two nodes."""
    plans = plans_of(([9], [3, 2]), ranks, 4 // degree)
    step = whole_step(model, plans, degree, degrees, 1, "none", experts)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, degree, model, experts) < 1e-12


@pytest.mark.parametrize("stage", STAGES)
def test_stages_are_degrees(stage: str) -> None:
    world = {"none": (1, 1, 1, 1), "1": (1, 1, 1, 4), "2": (1, 1, 4, 4), "3": (4, 4, 4, 4)}[stage]
    plans = plans_of(([5, 3], [1]), 4)
    one, other = (whole_step(MODEL, plans, 1, zero) for zero in (stage, ShardDegrees(*world)))
    assert step_text(one) == step_text(other)


def received(step: Step) -> dict[str, int]:
    return {name: sum(of.get(name, (0, 0))[1] for of in stated_bytes(step)) for name in ("parameters", "gradients")}


@pytest.mark.parametrize("degrees", NESTED, ids=str)
def test_bytes_are_those_of_the_law(degrees: ShardDegrees) -> None:
    """Received by a GPU in the mean, of M bytes of parameters and G of gradients, of degrees w, s, g and o of N: in a
    micro-batch (1 - 1/w) M and for layers (1 - 1/s) M, (1 - 1/g) G; in a step (1/w - 1/o) M, (1/g - 1/N) G, and
    (1/o - 1/N) G to replicas, or M once where parameters then stay."""
    count, elements = 2, weight_elements(MODEL)
    layers = MODEL.num_layers * sum(elements[name] for name in ("g1", "wq", "wkv", "wo", "g2", "wz", "wd"))
    outside = sum(elements[name] for name in outer_weights("words"))
    w, s, g, o, n = (Fraction(1, size) for size in (*degrees.cut, 4))
    loss = 3 * count * MODEL.lse_bytes
    parameters = (layers + outside) * (w - o)
    if degrees.weights > 1:
        parameters += count * (layers * (1 - w) + layers * (1 - s) + outside * (1 - w))
    gradients = (layers + outside) * (count * (1 - g) + (g - n) + (o - n))
    found = received(whole_step(MODEL, plans_of(([5, 3], [4, 4]), 4), 1, degrees))
    each = max(GRADIENT_BYTES, MODEL.element_bytes)
    assert found == {"parameters": 4 * MODEL.element_bytes * parameters, "gradients": 4 * each * gradients + loss}


def into_nodes(step: Step, node: int, kind: int, queue: str) -> Iterator[int]:
    """Yields the bytes that come into all nodes from others by each collective of an instance."""
    for one in step.order:
        template, layout = step.templates[one.template], step.layouts[step.templates[one.template].layout]
        for row in template.operations.table.tolist():
            tensor = layout.tensors[row[1]]
            if row[0] != kind or tensor.name in ("loss",) or (tensor.name[0] == "d") != (queue == "gradients"):
                continue
            sides = [layout.lists[which] if which >= 0 else np.zeros(1, np.int64) for which in row[4:6]]
            cells = (sides[0][:, None] * layout.shape(row[1])[1] + sides[1]).reshape(-1)
            members = layout.lists[row[3]]
            home = homes_among(tensor.home[cells], members, row[2])
            other = home[:, None] // node != members // node
            size = int((tensor.cell_bytes(layout.index)[cells][:, None] * other).sum())
            there = [layer for layer in one.layers if tensor.layers == "none" or 0 <= layer + row[7] < step.num_layers]
            yield size * len(there)


@pytest.mark.parametrize(("node", "times"), [(WORLD, 2), (4, 1)])
def test_updated_parameters_come_into_a_node_once(node: int, times: int) -> None:
    """Two nodes of four: in pairs, every byte comes from the other node to both pairs, or to one of them that passes it
    on. Gradients come once a step, whatever the number of micro-batches."""
    plans = plans_of(([5, 3], [4, 4], [8]), 8)
    step = whole_step(MODEL, plans, 1, replace(LEVELS, node=node))
    total = MODEL.total_params
    parameters = sum(into_nodes(step, 4, GATHER, "parameters"))
    gradients = sum(into_nodes(step, 4, REDUCE, "gradients"))
    assert parameters == times * total * MODEL.element_bytes  # half of all into each of two nodes
    assert gradients == total * max(GRADIENT_BYTES, MODEL.element_bytes)


def test_text_reads_back_and_mutants_are_found() -> None:
    plans = plans_of(([5, 3], [1]), 4)
    step = whole_step(MODEL, plans, 1, ShardDegrees(2, 1, 2, 4))
    text = step_text(step)
    assert step_text(read_step(text)) == text
    assert ", homes every 2" in text
    assert rejected_mutants(step, 3, 60, lambda broken: execute(broken, plans, 1)) > 15


@pytest.mark.parametrize(
    ("every", "told"),
    [
        (3, "src is 3; it takes -1 of a collective, or what divides the GPUs"),
        (4, r"homes every 4\) brings wq\[0,0\] of layer \+1 on GPU 2, which is there already"),
        (-1, r"brings wq\[0,0\] of layer \+1 on GPU 2, which is there already"),
    ],
)
def test_homes_of_another_run_are_found(every: int, told: str) -> None:
    step = whole_step(MODEL, plans_of(([5, 3],), 4), 1, ShardDegrees(2, 2, 2, 2))
    forward = step.templates[1]
    rows = forward.operations.table
    wrong = np.flatnonzero((rows[:, 0] == GATHER) & (rows[:, 1] == step.layouts[0].number["wq"]))
    rows = rows.copy()
    rows[wrong, 2] = every
    mutant = replace(forward, operations=Operations.of(rows.tolist()))
    with pytest.raises(StepError, match=told):
        prove_step(replace(step, templates=(step.templates[0], mutant, *step.templates[2:])))


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            {"zero": ShardDegrees(2, 2, 4, 4), "window": StepOverlap("all")},
            "with parameters cut over 2 ranks a layer's",
        ),
        ({"zero": ShardDegrees(3, 3, 3, 3)}, "sharding.degrees.optimizer is 3; it has to divide the 4 ranks"),
    ],
)
def test_what_cannot_be_built(arguments: dict, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        whole_step(MODEL, plans_of(([5, 3],), 4), **arguments)


def test_experts_are_cut_over_gpus_that_fit() -> None:
    experts, plans = ExpertParallel(4, seed=0, skew=0.0), plans_of(([5, 3],), 12)
    with pytest.raises(ValueError, match=r"^all experts are on 4 GPUs .*; parameters cut over 6 GPUs"):
        whole_step(EXPERTS, plans, 1, ShardDegrees(6, 6, 6, 6), 1, "none", experts)
