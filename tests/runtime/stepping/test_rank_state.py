"""What a rank keeps between two steps: a checkpoint that is written lacks nothing, one that is read finds room."""

import pytest
import torch

from tests.runtime.handlers.test_runner import RING, prepared
from zbench.runtime.handlers.store import Lacking, Store
from zbench.runtime.stepping.rank_state import RankState


def test_what_is_lacking_is_no_zeros_unless_it_is_to_be_filled() -> None:
    case = RING.case(0)
    step = prepared(case.step, case.tokens)
    stores = {place: Store() for place in step.places}
    with pytest.raises(Lacking, match=r"^g1 \(0, 0\) of layer 0 is not there$"):
        RankState(0, step, stores).state()
    room = RankState(0, step, stores, to_fill=True)
    room.load({name: torch.full_like(one, 3) for name, one in room.state().items()})
    kept = RankState(0, step, stores, room.updates).state()
    assert room.updates == 3
    assert len(kept) > 1
    assert all((one == 3).all() for one in kept.values())
