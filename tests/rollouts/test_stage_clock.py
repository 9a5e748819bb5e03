"""Passes through stages, beside a table of all of them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from zbench.rollouts.generation_cost import GenerationPass
from zbench.rollouts.stage_clock import DecodingBatch, StageClock

PASS = st.tuples(st.floats(0, 5), st.floats(0, 5), st.floats(0, 2)).map(lambda one: GenerationPass(*one))


@given(st.integers(1, 5), st.lists(st.tuples(PASS, st.floats(0, 20)), max_size=9))
def test_a_pass_waits_for_its_stage_and_for_the_stage_before(
    stages: int, passes: list[tuple[GenerationPass, float]]
) -> None:
    clock, ends = StageClock([0.0] * stages), np.zeros((len(passes) + 1, stages + 1))
    for number, (one, ready) in enumerate(passes, 1):
        for stage in range(1, stages + 1):
            seconds = one.last if stage == stages else one.stage
            there = ready if stage == 1 else ends[number, stage - 1] + one.send
            ends[number, stage] = max(there, ends[number - 1, stage]) + seconds
        assert clock.run(ready, one) == ends[number, stages]
    assert clock.free == ends[-1, 1:].tolist()


def test_equal_passes_lose_a_round_of_stages() -> None:
    """Nine passes on four stages: three more are the bubble."""
    clock, one = StageClock([0.0] * 4), GenerationPass(2.0, 2.0, 0.0)
    assert [clock.run(0.0, one) for _ in range(9)][-1] == (9 + 3) * 2.0
    assert one.alone(4) == 8.0


def test_sequences_end_in_their_turn() -> None:
    one = DecodingBatch(100)
    for sequence, words in enumerate((3, 1, 3, 0)):
        one.join(sequence, 10, words)
    assert (one.ended(), one.context) == ([3], 40)
    one.advance(1)
    assert (one.ended(), one.context) == ([1], 43)
    one.advance(2)
    assert (one.ended(), one.passes) == ([0, 2], 3)
