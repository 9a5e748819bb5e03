"""The sequences that a GPU computes with are those of the tokens in its own instructions, for every way to train."""

import numpy as np
import pytest

from tests.runtime.steps.test_compiler import programs_of
from zbench.correctness.loop.cases import Loop, LoopSteps
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import DS_CHAT, HYBRIDFLOW
from zbench.runtime.steps.instructions import Compute
from zbench.runtime.steps.reads import sequences_read
from zbench.runtime.steps.tokens import TokenParts
from zbench.step.template import Step

LENGTHS = [5, 30, 8, 3, 12, 9, 28]


def compiled(step: Step, tokens: tuple[TokenParts, ...]) -> list[set[int]]:
    """Returns the sequences in the instructions of every process."""
    found = []
    for process in range(step.num_gpus):
        mine = set[int]()
        for program in programs_of(step, process).values():
            formulas = step.layouts[program.layout].formulas
            for one in program.instructions:
                if isinstance(one, Compute) and "t" in (slots := formulas[one.formula].slots):
                    mine |= set(tokens[program.layout].rows(one.slots[slots.index("t")])[0].tolist())
        found.append(mine)
    return found


@pytest.mark.parametrize("scores", [True, False])
@pytest.mark.parametrize("system", ["verl_balance", "zeppelin", "nodewise"])
@pytest.mark.parametrize(("engine", "train"), [(DS_CHAT, "1-2-2"), (HYBRIDFLOW, "1-2-2"), (HYBRIDFLOW, "2-1-2")])
def test_sequences_are_those_of_instructions(engine: str, train: str, system: str, scores: bool) -> None:
    loop = Loop(engine, TrainDegrees.of(train), GenerateDegrees(1, 1), 1, system)
    steps = LoopSteps.of(system, loop.cost)
    _, step, tokens = (steps.of_scores if scores else steps.of_rollouts)(LENGTHS, 0)
    found = sequences_read(step, tokens, len(LENGTHS))
    assert [set(np.flatnonzero(row).tolist()) for row in found] == compiled(step, tokens)
    assert found.any(axis=0).all()
    if system == "verl_balance":  # whole sequences, so that no GPU computes with all
        assert not found.all(axis=1).any()
