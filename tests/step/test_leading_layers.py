"""First layers that are dense where the others have experts: exact, proven, and played as all of their layers are."""

from dataclasses import replace

import pytest

from tests.helpers.step_text import is_read_as_written
from tests.helpers.steps import EXPERTS, execute, fault, plan_of, rejected_mutants
from tests.step.test_exact import CLUSTER, TOLERANCE
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.cost.cost import Cost
from zbench.describe.expert_schedule import TOKEN_CHOICE, ExpertChunks, GradientPieces
from zbench.describe.overlap import StepOverlap
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.play import play_layers, play_step
from zbench.simulator.steps.program import StepParts
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.routing import ExpertParallel
from zbench.step.template import Instance, Step
from zbench.step.tensor import FOLLOWING, LAYER, LEADING

DEEP = replace(EXPERTS, num_layers=4, shared_experts=1, dense_layers=1, dense_ffn_hidden=20)
PLAIN, SKEWED = ExpertParallel(2, 1), ExpertParallel(2, 1, skew=1.0)
SEATS = ExpertParallel(2, 1, capacity=0.75, padded=True, routing=TOKEN_CHOICE)
# Dense layers, ranks, tensor-parallel degree, stages, ZeRO's stage, recomputation, what goes beside what, experts.
CASES = (
    (2, 2, 1, 1, "3", "selective", StepOverlap(), SKEWED),
    (3, 2, 1, 1, "2", "full", StepOverlap(2, "end"), SEATS),
    (1, 1, 2, 1, "1", "elementwise", StepOverlap("all", 900), PLAIN),
    (3, 1, 2, 2, "none", "chunked", StepOverlap(0, "end"), PLAIN),
    (1, 2, 1, 4, "1", "none", StepOverlap(experts=ExpertChunks(2, 3)), SKEWED),
    (2, 2, 1, 1, "1", "none", StepOverlap(experts=ExpertChunks(gradients=GradientPieces(2, 1, 1))), PLAIN),
)


def built(number: int, batches: tuple[list[int], ...] = ([4, 3], [1])) -> tuple[Step, float]:
    """A step, and its error."""
    dense, ranks, degree, stages, zero, recompute, overlap, how = CASES[number]
    model = replace(DEEP, dense_layers=dense)
    plans = [plan_of(lengths, ranks, 4 // degree, first=2 * at) for at, lengths in enumerate(batches)]
    step = whole_step(model, plans, degree, zero, overlap, recompute, how, stages)
    return step, execute(step, plans, degree, model, how, overlap.token_slices)


@pytest.mark.parametrize("number", range(len(CASES)))
def test_exact_and_read_back(number: int) -> None:
    step, error = built(number)
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert error < TOLERANCE
    assert is_read_as_written(step)


def test_mutants() -> None:
    """The proof and the unrolled walk agree."""
    step, _ = built(0, ([3, 2],))
    assert rejected_mutants(step, 3) > 6


def test_parameters_have_the_bytes_of_the_model() -> None:
    step, _ = built(0, ([3, 2],))
    layout, layers = step.layouts[0], {LAYER: 4, LEADING: 2, FOLLOWING: 2}
    weights = [layout.tensors[at] for at in set(step.begins.tensor.tolist())]
    sizes = [
        layers.get(one.layers, 1) * int(one.cell_bytes(layout.index).sum()) for one in weights if one.name[0] != "s"
    ]
    model = replace(DEEP, dense_layers=2)
    assert sum(sizes) == model.total_params * model.element_bytes


def test_each_kind_of_layers_has_its_formulas() -> None:
    """The proof says which layer lacks what it is of, or has what it is not of."""
    step, _ = built(0, ([3, 2],))
    name = {one.name: at for at, one in enumerate(step.templates)}
    wrong = [
        replace(one, template=name["forward"]) if one.template == name["dense_forward"] else one for one in step.order
    ]
    told = "micro-batch 0: formula m is computed 1 times for layer 0, not at all, as it is of another kind"
    assert fault(replace(step, order=tuple(wrong))) == told
    more = [*step.order, Instance(name["dense_forward"], 2)]
    assert (
        fault(replace(step, order=tuple(more))) == "micro-batch 0: formula n is computed 2 times for layer 2, not once"
    )
    assert "formula m is computed 1 times for layer 2, not at all" in fault(replace(step, leading=3))
    assert fault(replace(step, leading=5)) == "a step of 4 layers has 5 first ones of another kind"
    layout = step.layouts[0]
    tensors = tuple(replace(one, layers=FOLLOWING) if one.name == "zf" else one for one in layout.tensors)
    assert "of the first layers and" in fault(replace(step, layouts=(replace(layout, tensors=tensors),)))


def test_a_step_with_layers_left_out_is_played_as_all_layers_are() -> None:
    model = replace(DEEP, num_layers=40, dense_layers=3)
    plans, how = [plan_of([64, 32], 4, 4)], ExpertParallel(4, 1)
    step = whole_step(model, plans, 1, "3", 1, "none", how)
    assert fault(step) == ""
    cost = Cost(cluster=CLUSTER, model=model)
    played = play_step(step, plans, cost)
    _, timeline = play_layers(step, plans, cost)
    assert played.settled
    assert played.seconds == pytest.approx(float(timeline.done.max()), rel=1e-9)
    alike = whole_step(replace(model, dense_layers=0, dense_ffn_hidden=0), plans, 1, "3", 1, "none", how)
    peak = [step_memory(StepParts(one, plans, cost)).peak.max() for one in (step, alike)]
    assert peak[0] < peak[1]
    shares = [sum(one["experts"][0] for one in stated_bytes(each)) for each in (step, alike)]
    assert shares[0] * 40 == shares[1] * 37  # dense layers send nothing to experts
    # Of messages with parameters of both kinds of layers those that are there are sent: as the byte law has it.
    for name in ("parameters", "gradients"):
        stated = [sum(one[name][0] for one in stated_bytes(each)) for each in (step, alike)]
        sent = [one.nic_tx[name].sum() + one.inside[name] for one in (played, play_step(alike, plans, cost))]
        assert sent[0] * stated[1] == sent[1] * stated[0]
