"""Steps of which some layers are recomputed: exact, proven, and played as all of their layers are."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.steps import MODEL, execute, plan_of
from tests.step.test_exact import CLUSTER, MODES, TOLERANCE
from zbench.cost.cost import Cost
from zbench.plans.plan import Plan
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.play import play_layers, play_step
from zbench.simulator.steps.program import StepParts
from zbench.step.passes.build import whole_step
from zbench.step.passes.parameters.zero import STAGES
from zbench.step.passes.recompute import SomeLayers
from zbench.step.proof.prove import StepError, prove_step
from zbench.step.reading.read import read_step
from zbench.step.template import Step
from zbench.step.text import step_text

DEEP = replace(MODEL, num_layers=5)
COST = Cost(cluster=CLUSTER, model=replace(MODEL, num_layers=40, mlp_chunk_tokens="whole"))


def plans_of(ranks: int, heads: int, mode: str = "carry") -> list[Plan]:
    return [plan_of([5, 3], ranks, heads, mode), plan_of([4], ranks, heads, mode, first=2)]  # type: ignore[arg-type]


@pytest.mark.parametrize("case", range(12))
def test_the_loss_and_the_gradients_are_one_process_s(case: int) -> None:
    degree, stages = 1 + case % 2, 1 + case // 2 % 2
    zero = ("none", "1")[case % 2] if stages > 1 else STAGES[case % 4]
    level = ("full", "selective", "elementwise")[case % 3]
    layers = ((case % 6,), (case % 3, (case + 1) % 3))[stages - 1]
    plans = plans_of(2, 4 // degree, MODES[case % 3])
    step = whole_step(DEEP, plans, degree, zero, 1 + case % 3, SomeLayers(level, layers), stages=stages)
    prove_step(step)
    assert execute(step, plans, degree, DEEP) < TOLERANCE


def test_all_and_none_are_the_levels_of_all_layers() -> None:
    for layers, level in ((5, "full"), (0, "none")):
        plans = plans_of(4, 4)
        some, alike = (whole_step(DEEP, plans, recompute=how) for how in (SomeLayers("full", (layers,)), level))
        memory = [step_memory(StepParts(step, plans, COST)).peak.tolist() for step in (some, alike)]
        assert memory[0] == memory[1]


def test_a_step_with_layers_left_out_is_played_as_all_layers_are() -> None:
    plans = [plan_of([64, 32], 4, 4)]
    step = whole_step(COST.model, plans, recompute=SomeLayers("full", (14,)))
    prove_step(step)
    played = play_step(step, plans, COST)
    _, timeline = play_layers(step, plans, COST)
    assert played.settled
    assert played.seconds == pytest.approx(float(timeline.done.max()), rel=1e-9)


def test_each_layer_more_takes_its_forward_once_more_and_less_memory() -> None:
    plans = [plan_of([64, 32], 4, 4)]
    seconds, peak = [], []
    for layers in (0, 10, 20, 30, 40):
        played = play_step(whole_step(COST.model, plans, recompute=SomeLayers("full", (layers,))), plans, COST)
        seconds.append(played.seconds)
        peak.append(int(played.memory.peak.max()))
    assert np.all(np.diff(seconds) > 0)
    assert np.all(np.diff(peak) < 0)


def test_the_text_of_a_step_reads_as_the_step() -> None:
    step = whole_step(DEEP, plans_of(2, 4), recompute=SomeLayers("full", (2,)))
    again = read_step(step_text(step))
    prove_step(again)
    assert step_text(again) == step_text(step)


def test_a_layer_that_keeps_and_is_recomputed_and_one_that_is_neither_are_refused() -> None:
    step = whole_step(DEEP, plans_of(2, 4), recompute=SomeLayers("full", (2,)))
    names = [template.name for template in step.templates]

    def faulty(name: str, other: str) -> Step:
        """The step in which other layers' template is played in place of one."""
        one, instead = names.index(name), names.index(other)
        order = tuple(replace(entry, template=instead) if entry.template == one else entry for entry in step.order)
        return replace(step, order=order)

    for name, other in (
        ("kept_backward.0", "backward.0"),
        ("backward.0", "kept_backward.0"),
        ("forward.0", "kept_forward.0"),
        ("kept_forward.0", "forward.0"),
    ):
        with pytest.raises(StepError):
            prove_step(faulty(name, other))


def test_formulas_of_one_template_that_are_alternatives_count_twice() -> None:
    """A backward that adds to a gradient by both of two alternatives has a contribution too many."""
    step = whole_step(DEEP, plans_of(2, 4), recompute=SomeLayers("full", (2,)))
    layout = step.layouts[0]
    alike = np.flatnonzero(layout.form.alternatives != np.arange(len(layout.formulas)))
    assert len(alike) > 4
    for at in alike.tolist():
        one, other = layout.formulas[at], layout.formulas[int(layout.form.alternatives[at])]
        assert one != other
        assert one.results == other.results
    assert not whole_step(DEEP, plans_of(2, 4), recompute="full").layouts[0].form.is_optional.any()


@pytest.mark.parametrize(("layers", "stages"), [((6,), 1), ((-1,), 1), ((1,), 2), ((1, 4), 2)])
def test_layers_that_a_stage_has_not_are_refused(layers: tuple[int, ...], stages: int) -> None:
    with pytest.raises(ValueError, match=r"recomputed layers are .*; of stages of .* layers each takes 0 to all"):
        whole_step(DEEP, plans_of(2, 4), zero="1", recompute=SomeLayers("full", layers), stages=stages)
