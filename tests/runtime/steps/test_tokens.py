"""The tokens of parts: as the passes number and size them."""

import numpy as np
import pytest

from tests.helpers.steps import MODEL, plan_of, sequences_of, tokens_of
from zbench.describe.exchanges import TokenSlices
from zbench.runtime.steps.tokens import TokenParts
from zbench.step.passes.overlap.token_slices import TokenCuts
from zbench.step.passes.parts import PlanParts


@pytest.mark.parametrize("by_area", [False, True])
@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("degree", [1, 2, 3])
def test_parts_have_the_tokens_that_a_step_says(degree: int, slices: int, by_area: bool) -> None:
    plan = plan_of([13, 1, 4, 2], 3, 4, "carry", 1, 5)
    parts = PlanParts(plan, MODEL, degree, token_slices=TokenSlices(slices, by_area))
    found = TokenParts.of(parts)
    assert found.sizes.tolist() == parts.indices()[0].sizes.tolist()
    wanted = tokens_of(plan, sequences_of([plan], MODEL), degree, cuts=TokenCuts(slices, by_area=by_area))
    assert len(found.sizes) == len(wanted.sequence)
    for part in range(len(found.sizes)):
        sequence, position = found.rows((part,))
        assert sequence.tolist() == wanted.sequence[part].tolist()
        assert position.tolist() == wanted.position[part].tolist()


def test_segments_count_what_queries_see() -> None:
    found = TokenParts.of(PlanParts(plan_of([6, 3], 1, 4), MODEL, 2))
    every = tuple(range(len(found.sizes)))
    first, whole = found.segments([((0,), (1,)), (every, every)])
    seen = (whole.queries * whole.before).sum() + (whole.queries * (whole.queries + 1) // 2)[whole.diagonal].sum()
    assert seen == 6 * 7 // 2 + 3 * 4 // 2
    assert len(first.queries) == 0 or first.before.max() <= np.max(found.sizes)
