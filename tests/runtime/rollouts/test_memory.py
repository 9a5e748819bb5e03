"""The memory of weights: what is generated with is one piece, training's shard a view of it where it is part of it."""

import numpy as np
import pytest
import torch

from zbench.describe.arrays import Flags
from zbench.runtime.handlers.formats import Format
from zbench.runtime.handlers.store import Lacking, Slab
from zbench.runtime.rollouts.memory import WeightStore

SIZES = np.array([2, 3, 4, 1])
OF = Format((("z", torch.float64),), ("z", ""), (SIZES, np.ones(1, np.int64)), {})
KEY = ("w_0", 0, -1)
WHOLE = torch.arange(10.0, dtype=torch.float64)


def flags(*parts: int) -> Flags:
    return np.isin(np.arange(4), parts)


def store_with(*parts: int) -> WeightStore:
    found = WeightStore()
    own = torch.cat([WHOLE.split(SIZES.tolist())[part] for part in parts])
    found.put(KEY, Slab.of(OF, parts, (0,), (own,)))
    return found


def arrive(store: WeightStore, part: int) -> None:
    """A message: its bytes are written where there is room, and it is put."""
    room = store.room(KEY, OF, (part,), (0,))
    assert room is not None
    value = WHOLE.split(SIZES.tolist())[part]
    room.copy_(value.view(torch.uint8))
    store.put(KEY, Slab.of(OF, (part,), (0,), (room.view(torch.float64),)))


def test_a_shard_that_is_generated_with_is_a_view() -> None:
    store = store_with(2)
    before = store.read(KEY, OF, (2,), (0,))[0]
    store.make_room(KEY, OF, (flags(2), flags(1, 2), flags(1, 2)))
    shard = store.read(KEY, OF, (2,), (0,))[0]
    assert store.is_inside(KEY, shard)
    assert not store.is_inside(KEY, before)
    arrive(store, 1)
    assert store.num_bytes() == 8 * 7
    assert store.generated[KEY].memory.tolist() == [2, 3, 4, 5, 6, 7, 8]
    store.generated[KEY].memory[3:].mul_(2)  # what generation has is what training has
    assert shard.tolist() == [10, 12, 14, 16]
    store.end_generation(KEY, OF, flags(2))
    assert store.num_bytes() == 8 * 4
    assert store.read(KEY, OF, (2,), (0,))[0].tolist() == [10, 12, 14, 16]
    with pytest.raises(Lacking):
        store.read(KEY, OF, (1,), (0,))


def test_a_shard_apart_stays_where_it_is_and_what_passes_goes() -> None:
    store = store_with(0)
    before = store.read(KEY, OF, (0,), (0,))[0]
    store.make_room(KEY, OF, (flags(0), flags(2), flags(0, 1, 2, 3)))
    for part in (3, 1, 2):
        arrive(store, part)
    assert store.num_bytes() == 8 * 10
    store.drop_passing(KEY)
    assert store.num_bytes() == 8 * (4 + 2)
    assert store.generated[KEY].memory.tolist() == [5, 6, 7, 8]
    shard = store.read(KEY, OF, (0,), (0,))[0]
    assert shard.data_ptr() == before.data_ptr()
    assert not store.is_inside(KEY, shard)
    store.end_generation(KEY, OF, flags(0))
    assert store.read(KEY, OF, (0,), (0,))[0].data_ptr() == before.data_ptr()
    assert store.num_bytes() == 8 * 2


def test_messages_of_others_have_memory_of_their_own() -> None:
    store = store_with(0)
    assert store.room(KEY, OF, (1,), (0,)) is None
    store.make_room(KEY, OF, (flags(0), flags(), flags(0, 1, 3)))
    assert store.room(KEY, OF, (1, 3), (0,)) is None  # not one behind the other
    assert store.room(("w_1", 0, -1), OF, (1,), (0,)) is None
