"""What a round ends with is proven for every shape of workers, and broken ones are refused; so are wrong ages."""

import re
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.steps import MODEL
from zbench.describe.sync import CO2, SLOWMO, RoundSync
from zbench.step.operations import COMPUTE, GATHER, REDUCE, Operations
from zbench.step.passes.rounds.order import prove_ages, round_kind, rounds_text
from zbench.step.passes.rounds.outer_step import FIRST, LATER, NOW, PHASES, OuterParameters, outer_step
from zbench.step.proof.prove import StepError, prove_step
from zbench.step.reading import read_step
from zbench.step.template import Step
from zbench.step.text import step_text

LATE, IN_TIME = RoundSync(CO2, 2, penalty="constant"), RoundSync(SLOWMO, 2)


def made(kind: str, gpus: int = 4, worker: int = 2, stage: str = "none") -> Step:
    return outer_step(MODEL, OuterParameters.of(MODEL, gpus, worker, stage), kind)


@pytest.mark.parametrize("kind", PHASES)
@pytest.mark.parametrize(("gpus", "worker"), [(2, 1), (4, 1), (4, 2), (6, 3), (8, 2)])
def test_every_shape_of_workers(kind: str, gpus: int, worker: int) -> None:
    for stage in ("none", "1", "3"):
        step = made(kind, gpus, worker, stage)
        assert prove_step(step).touches > 0
        assert step_text(read_step(step_text(step))) == step_text(step)


def test_outer_parameters_are_divided_over_all_gpus() -> None:
    """Each element has one home, of the GPUs that have its share inside their workers; all have about as many."""
    of = OuterParameters.of(MODEL, 8, 2, "1")
    held = np.zeros(8)
    for weight, (sizes, _) in of.shards.items():
        np.add.at(held, of.home(weight), sizes)
        assert (of.home(weight) % 2 == of.inside(weight)).all()
    assert held.max() <= 1.5 * held.min()


def broken(step: Step, name: str, kind: int, change: str) -> Step:
    """A step of which one template lacks its first operation of a kind, or has it twice."""
    number = next(at for at, one in enumerate(step.templates) if one.name == name)
    template = step.templates[number]
    rows = template.operations.table
    at = int(np.flatnonzero(rows[:, 0] == kind)[0])
    rows = np.delete(rows, at, 0) if change == "lacks" else np.insert(rows, at, rows[at], 0)
    mutant = replace(template, operations=Operations.of(rows.tolist()))
    return replace(step, templates=(*step.templates[:number], mutant, *step.templates[number + 1 :]))


@pytest.mark.parametrize(
    ("name", "kind", "change", "told"),
    [
        ("contribute", COMPUTE, "lacks", "is computed by no operation"),
        ("contribute", COMPUTE, "twice", "a second time"),
        ("reduce", REDUCE, "lacks", "leaves d"),
        ("take", GATHER, "lacks", "before an earlier operation brought it there"),
        ("update", COMPUTE, "lacks", "version 1; at the end it is version 0"),
        ("update", COMPUTE, "twice", "it names update 0"),
    ],
)
def test_broken_ends_of_rounds_are_refused(name: str, kind: int, change: str, told: str) -> None:
    for which in (NOW, LATER):
        with pytest.raises(StepError, match=re.escape(told)):
            prove_step(broken(made(which), name, kind, change))


def test_workers_go_on_before_the_next_average_is_there() -> None:
    names = [one.name.removesuffix("_ends") for one in made(LATER).templates[::2]]
    assert names == ["update", "contribute", "take", "reduce"]
    assert [one.name for one in made(FIRST).templates[::2]] == ["contribute", "take", "reduce"]
    assert [round_kind(LATE, at) for at in range(3)] == [FIRST, LATER, LATER]
    assert {round_kind(IN_TIME, at) for at in range(3)} == {NOW}


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_ages_are_proven(workers: int) -> None:
    for sync in (LATE, IN_TIME):
        prove_ages(sync, workers)
        assert ", version -1" in rounds_text(sync, workers) or not sync.age


def test_another_age_is_refused() -> None:
    fresh = rounds_text(LATE, 2).replace(", version -1", "")
    with pytest.raises(StepError, match=r"round1, layer 0\) needs p .* update 1 and is there, after update 0"):
        prove_step(read_step(fresh))
    stale = rounds_text(IN_TIME, 2).replace(
        "needs p at 0-1\n  leaves p at 0-1\n  leaves d", "needs p at 0-1, version -1\n  leaves p at 0-1\n  leaves d"
    )
    with pytest.raises(StepError):
        prove_step(read_step(stale))
