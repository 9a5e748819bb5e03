"""Nested degrees among the GPUs of each of several pipeline stages: exact, with the bytes of their law."""

from dataclasses import replace
from fractions import Fraction

import pytest

from tests.helpers.steps import EXPERTS, MODEL, execute, fault, rejected_mutants
from tests.step.test_degrees import NESTED, plans_of, received
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.degrees import WORLD, ShardDegrees, TransferBits
from zbench.describe.model import Model
from zbench.describe.overlap import StepOverlap
from zbench.step.operations import GATHER
from zbench.step.passes.build import whole_step
from zbench.step.passes.parameters.weights import outer_weights, weight_elements
from zbench.step.passes.parameters.zero import GRADIENT_BYTES
from zbench.step.passes.recompute import SomeLayers
from zbench.step.passes.routing import TOGETHER, ExpertParallel
from zbench.step.proof.prove import StepError, prove_step
from zbench.step.reading.read import read_step
from zbench.step.template import Step
from zbench.step.text import step_text

THREE = replace(MODEL, num_layers=3)
BATCHES = ([5, 3], [1], [4, 4], [2, 2])  # in the second one GPU alone has a token
FULL = ([5, 3], [4, 4], [8])  # tokens on every GPU
LEVELS = ShardDegrees(2, 2, 4, WORLD, 4)  # pairs, nodes of four, the stage


@pytest.mark.parametrize("case", range(len(NESTED)))
def test_exact(case: int) -> None:
    """Two and three stages, of one layer and of two; windows of no layer to more than a stage has; gradients reduced
    layer by layer, or in the end of each micro-batch; layers recomputed and not."""
    plans, overlap = plans_of(BATCHES, 4), StepOverlap(case % 3, "end" if case % 4 == 0 else "layer")
    level = ("none", "full", "selective")[case // 2 % 3]
    step = whole_step(THREE, plans, 1, NESTED[case], overlap, level, stages=2 + case % 2)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, 1, THREE) < 1e-12


@pytest.mark.parametrize(
    ("model", "degree", "ranks", "experts", "degrees"),
    [
        (THREE, 2, 4, TOGETHER, ShardDegrees(2, 1, 2, WORLD)),
        (THREE, 1, 8, TOGETHER, LEVELS),
        (EXPERTS, 1, 4, ExpertParallel(2, seed=0, skew=1.0), ShardDegrees(4, 2, 4, 4)),
        (replace(EXPERTS, dense_layers=1, dense_ffn_hidden=6), 1, 4, TOGETHER, ShardDegrees(4, 1, 4, 4)),
    ],
    ids=str,
)
def test_exact_with_others(
    model: Model, degree: int, ranks: int, experts: ExpertParallel, degrees: ShardDegrees
) -> None:
    """Tensor parallelism, three levels of two nodes a stage, experts, a first layer that is dense."""
    plans = plans_of(([9], [3, 2], [7]), ranks, 4 // degree)
    step = whole_step(model, plans, degree, degrees, 1, "none", experts, 2)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, degree, model, experts) < 1e-12


def test_some_layers_recomputed() -> None:
    plans = plans_of(BATCHES, 4)
    step = whole_step(THREE, plans, 1, ShardDegrees(4, 2, 4, 4), 1, SomeLayers("full", (1, 0)), stages=2)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert execute(step, plans, 1, THREE) < 1e-12


@pytest.mark.parametrize("degrees", NESTED, ids=str)
def test_bytes_are_those_of_the_law(degrees: ShardDegrees) -> None:
    """Of m micro-batches, received by all GPUs of all stages: of the table and the head as without stages. Of layers
    what stays for backwards stays from the first forward to the last backward, so among w they are gathered once, and
    2 m - 1 times among s; where s is w both are m times."""
    count, elements = len(FULL), weight_elements(THREE)
    layers = THREE.num_layers * sum(elements[name] for name in ("g1", "wq", "wkv", "wo", "g2", "wz", "wd"))
    outside = sum(elements[name] for name in outer_weights("words"))
    w, s, g, o, n = (Fraction(1, size) for size in (*degrees.cut, 4))
    parameters = (layers + outside) * (w - o)
    if degrees.weights > 1:
        parameters += count * outside * (1 - w)
        parameters += layers * ((1 - w) + (2 * count - 1) * (1 - s))
    gradients = (layers + outside) * (count * (1 - g) + (g - n) + (o - n))
    step = whole_step(THREE, plans_of(FULL, 4), 1, degrees, stages=3)
    each, loss = max(GRADIENT_BYTES, THREE.element_bytes), 3 * count * THREE.lse_bytes
    found = received(step)
    assert found == {"parameters": 4 * THREE.element_bytes * parameters, "gradients": 4 * each * gradients + loss}


def encoded_gathers(step: Step) -> dict[str, int]:
    """How many gathers of a parameter of layers there are by the name of their encoding."""
    found: dict[str, int] = {}
    for one in step.order:
        template, layout = step.templates[one.template], step.layouts[step.templates[one.template].layout]
        rows = template.operations.table
        for row in rows[(rows[:, 0] == GATHER) & (rows[:, 1] == layout.number["wq"])].tolist():
            name = step.encodings[row[10]].name if row[10] >= 0 else ""
            begin = max(start.layer for start in step.stages if start.place <= one.place)
            end = min((start.layer for start in step.stages if start.place > one.place), default=step.num_layers)
            found[name] = found.get(name, 0) + sum(begin <= layer + row[7] < end for layer in one.layers)
    return found


def test_what_stays_is_encoded_as_for_backwards() -> None:
    """Two runs of two: the first forward's gather in eight bits, all others in four."""
    degrees = ShardDegrees(4, 2, 4, 4, bits=TransferBits(weights=8, secondary=4, block=5))
    step = whole_step(THREE, plans_of(BATCHES, 4), 1, degrees, stages=2)
    prove_step(step)
    shards = 2  # of a secondary part: each is gathered by itself in both runs
    assert encoded_gathers(step) == {
        "weights_int8": THREE.num_layers,
        "secondary_int4": THREE.num_layers * (2 * len(BATCHES) - 1) * shards,
    }


def test_text_reads_back_and_mutants_are_found() -> None:
    plans = plans_of(([5, 3], [1], [2, 2]), 4)
    step = whole_step(THREE, plans, 1, ShardDegrees(4, 2, 4, 4), stages=2)
    text = step_text(step)
    assert step_text(read_step(text)) == text
    assert {"fetch", "fetch_others", "fetch_backward"} <= {one.name for one in step.templates}
    assert rejected_mutants(step, 3, 60, lambda broken: execute(broken, plans, 1, THREE)) > 15


def test_a_forward_that_finds_copies_and_gathers_from_all_is_found() -> None:
    """The second micro-batch's layers as the first one's: what stays would come once more."""
    step = whole_step(THREE, plans_of(([5, 3], [4, 4]), 4), 1, ShardDegrees(4, 1, 4, 4), stages=2)
    names = [one.name for one in step.templates]
    first, other = (step.templates[names.index(f"forward.{number}")] for number in range(2))
    mutant = replace(other, operations=first.operations)
    templates = tuple(mutant if one is other else one for one in step.templates)
    with pytest.raises(StepError, match="which is there already"):
        prove_step(replace(step, templates=templates))
