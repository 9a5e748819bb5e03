"""Numbers of tokens go to who wants them by a proven step, each once; its bytes are those of what was lacking."""

from dataclasses import replace

import numpy as np
import pytest

from zbench.rollouts.columns import NUMBER_BYTES, ColumnMoves, ColumnRuns
from zbench.step.byte_law import stated_bytes
from zbench.step.proof.prove import StepError, prove_step

RUNS = np.array([[0, 0, 3], [0, 3, 5], [2, 1, 8]])


@pytest.mark.parametrize("seed", range(20))
def test_a_gpu_receives_what_it_wants_and_lacks(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gpus, columns = int(rng.integers(1, 6)), []
    for name in ("tokens", "critic", "critic.returns")[: rng.integers(1, 4)]:
        begins = rng.integers(0, 5, 6)
        runs = np.stack([np.arange(6), begins, begins + rng.integers(1, 9, 6)], axis=1)
        has, wants = rng.random((2, gpus, 6)) < 0.4
        has[rng.integers(gpus, size=6), np.arange(6)] = True
        columns.append(ColumnRuns(name, runs, has, wants))
    lacked = [(one.wants & ~one.has) @ (one.runs[:, 2] - one.runs[:, 1]) for one in columns]
    moves = ColumnMoves.of(columns)
    if moves is None:
        assert not np.sum(lacked)
        return
    prove_step(moves.step)
    found = [one.get("parameters", (0, 0)) for one in stated_bytes(moves.step)]
    assert [received for _, received in found] == (NUMBER_BYTES * np.sum(lacked, axis=0)).tolist()
    assert sum(sent for sent, _ in found) == sum(received for _, received in found)
    assert moves.bytes_between(range(gpus)) == sum(received for _, received in found)  # each GPU is a set
    assert moves.bytes_between([0] * gpus) == 0


def test_bytes_between_sets_are_of_those_alone() -> None:
    """GPU 0 has all; 1, of its set, wants the first run, 2 all of sequence 0."""
    has = np.array([[True] * 3, [False] * 3, [False] * 3])
    wants = np.array([[False] * 3, [True, False, False], [True, True, False]])
    moves = ColumnMoves.of([ColumnRuns("values", RUNS, has, wants)])
    assert moves is not None
    assert moves.bytes_between([0, 0, 1]) == 5 * NUMBER_BYTES
    assert moves.bytes_between([0, 1, 1]) == 8 * NUMBER_BYTES
    assert moves.runs["values_0"].tolist() == RUNS[:2].tolist()  # what nobody lacks is no part of the step


def test_runs_of_what_gpus_say_they_have() -> None:
    held = [{(0, 0, 3), (2, 1, 8)}, {(0, 3, 5), (2, 1, 8)}]
    wants = np.array([[True, True, False], [False, False, True]])
    found = ColumnRuns.of_sets("critic", held, wants)
    assert found.runs.tolist() == RUNS.tolist()
    assert found.has.tolist() == [[True, False, True], [False, True, True]]
    assert found.wants.tolist() == [[True, True, False], [False, False, True]]


def test_nothing_to_move_is_no_step() -> None:
    every = np.ones((2, 3), bool)
    assert ColumnMoves.of([ColumnRuns("tokens", RUNS, every, every)]) is None
    nothing = ColumnRuns.of_sets("critic", [set(), set()], np.ones((2, 4), bool))
    assert ColumnMoves.of([nothing]) is None


def test_what_nobody_has_is_told() -> None:
    has, wants = np.array([[[True, True, False], [True, False, False]], [[False] * 3, [True] * 3]])
    with pytest.raises(ValueError, match=r"^no GPU has all of tokens that GPU 1 lacks$"):
        ColumnMoves.of([ColumnRuns("tokens", RUNS, has, wants)])


def test_a_step_that_sends_less_is_no_proof() -> None:
    has = np.array([[True] * 3, [False] * 3])
    moves = ColumnMoves.of([ColumnRuns("tokens", RUNS, has, ~has)])
    assert moves is not None
    (template,) = moves.step.templates
    fewer = replace(template, operations=template.operations.take(slice(0, -1)))
    with pytest.raises(StepError):
        prove_step(replace(moves.step, templates=(fewer,)))
