"""Combinations of pipelines side by side."""

from collections.abc import Sequence
from itertools import combinations

from zbench.correctness.steps.covering import covering
from zbench.correctness.steps.pipelines import PIPELINE_CHOICES, PipelineCombination, every_pipeline_combination
from zbench.step.proof.prove import prove_step

ONE = PipelineCombination(((2, 1), (1, 2)), "own", "1", "full", 3, "uneven")


def test_a_cover_has_every_pair() -> None:
    every = every_pipeline_combination(4)
    assert len(every) == 5229
    assert max(one.num_gpus for one in every) == 4

    def pairs(some: Sequence[PipelineCombination]) -> set[tuple[str, object, str, object]]:
        return {(a, getattr(one, a), b, getattr(one, b)) for one in some for a, b in combinations(PIPELINE_CHOICES, 2)}

    chosen = covering(every, 0)
    assert pairs(chosen) == pairs(every)
    assert len(chosen) == 49
    nothing = every_pipeline_combination(1)
    assert [*nothing] == covering(nothing, 0) == []


def test_a_tied_table_is_on_two_stages_but_for_state_on_hosts() -> None:
    tied = [one for one in every_pipeline_combination(8) if one.head == "tied"]
    staged = {one.hosts for one in tied if any(pp > 1 for _, pp in one.shapes)}
    assert staged == {"nothing"}
    assert {one.hosts for one in tied} == {"nothing", "state"}


def test_pipelines_have_different_numbers_of_micro_batches() -> None:
    """The first pipeline has three micro-batches, the last one two: the middle one is the first's alone."""
    case = ONE.case(0)
    assert str(ONE) == "pipelines tp2 pp1 + tp1 pp2 zero 1, recompute full, 3 x uneven"
    assert len(case.tokens) == 3 + 2
    prove_step(case.step)
    assert sum(int(one.sizes.sum()) for one in case.tokens) == sum(map(len, case.sequences.values()))
