"""The store of a place: cells as they were put, in one piece where they lie so, sums joined when they are read."""

from concurrent.futures import ThreadPoolExecutor
from time import sleep

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from zbench.runtime.handlers.formats import Fields, Format
from zbench.runtime.handlers.functions import merge_of
from zbench.runtime.handlers.store import Lacking, Slab, Store
from zbench.runtime.steps.instructions import Parts
from zbench.runtime.transport.arrivals import Arrival

SIZES = (np.array([2, 1, 3]), np.array([1, 2]))
FORMAT = Format((("thd", torch.float64), ("th", torch.float64)), ("t", "h"), SIZES, {"d": 2})
KEY = ("q", 0, 0)
WHOLE = (torch.arange(36.0, dtype=torch.float64).view(6, 3, 2), torch.arange(18.0, dtype=torch.float64).view(6, 3))
add = merge_of("dq", "add")


def cut(first: tuple[int, ...], second: tuple[int, ...]) -> Fields:
    """The cells of two lists, of WHOLE."""
    rows, columns = (
        np.concatenate([np.arange(size) + sizes[:part].sum() for part in parts for size in [sizes[part]]])
        for parts, sizes in ((first, SIZES[0]), (second, SIZES[1]))
    )
    return tuple(one[torch.from_numpy(rows)][:, torch.from_numpy(columns)] for one in WHOLE)


def slab(first: tuple[int, ...], second: tuple[int, ...]) -> Slab:
    return Slab.of(FORMAT, first, second, cut(first, second))


def same(found: Fields, wanted: Fields) -> bool:
    return all(torch.equal(one, other) for one, other in zip(found, wanted, strict=True))


@given(st.data())
def test_any_cells_are_read_however_they_were_put(data: st.DataObject) -> None:
    store, lists = Store(), [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)]
    parts = data.draw(st.sampled_from([[(0, 1, 2)], [(0,), (1, 2)], [(0, 2), (1,)], [(0,), (1,), (2,)]]))
    for first in parts:
        for second in data.draw(st.sampled_from([[(0, 1)], [(0,), (1,)]])):
            store.put(KEY, slab(first, second))
    first, second = data.draw(st.sampled_from(lists)), data.draw(st.sampled_from([(0,), (1,), (0, 1)]))
    assert same(store.read(KEY, FORMAT, first, second), cut(first, second))


def test_what_lies_together_is_not_copied() -> None:
    store = Store()
    one = slab((0, 1, 2), (0, 1))
    store.put(KEY, one)
    assert store.read(KEY, FORMAT, (0, 1, 2), (0, 1))[0] is one.fields[0]
    assert store.read(KEY, FORMAT, (1, 2), (0, 1))[0].data_ptr() == one.fields[0][2:].data_ptr()


def test_sums_are_joined_when_they_are_read_and_values_stay() -> None:
    store, whole = Store(), ((0, 1, 2), (0, 1))
    store.add(KEY, slab(*whole), add)
    store.add(KEY, slab(*whole), add)  # of the same cells
    store.add(KEY, slab((1,), (0, 1)), add)  # of some of them
    assert same(store.read(KEY, FORMAT, (1,), (0, 1)), tuple(3 * one for one in cut((1,), (0, 1))))
    assert same(store.read(KEY, FORMAT, (0, 2), (0, 1)), tuple(2 * one for one in cut((0, 2), (0, 1))))
    assert same(slab(*whole).fields, WHOLE)


def test_a_store_lacks_what_was_not_put_or_taken() -> None:
    store = Store()
    store.put(KEY, slab((0, 1), (0,)))
    with pytest.raises(Lacking, match=r"q \(2, 0\) of layer 0 is not there"):
        store.read(KEY, FORMAT, (0, 2), (0,))
    with pytest.raises(Lacking, match=r"q \(1, 0\) of layer 0 is there already"):
        store.put(KEY, slab((1,), (0,)))
    store.put(KEY, slab((1,), (0,)), over=True)
    assert same(store.take(KEY, FORMAT, (0,), (0,)), cut((0,), (0,)))
    with pytest.raises(Lacking, match=r"q \(0, 0\) of layer 0 is not there"):
        store.forget(KEY, [(0, 0)])


def test_rows_that_are_left_of_many_lie_by_themselves() -> None:
    """Parts of tokens have 2 and 1 rows for a slice of the experts, and 3 and 2 for another: without these a piece of
    its own has three rows, and before that all of them."""
    of = Format(
        (("rc", torch.float64),), ("t", "k"), (np.array([4, 2]), np.array([1, 1])), {"c": 3}, np.array([[2, 3], [1, 2]])
    )
    rows, store = torch.arange(24.0, dtype=torch.float64).view(8, 3), Store()
    store.put(KEY, Slab.of(of, (0, 1), (0, 1), (rows,)))
    store.forget(KEY, [(0, 1)])
    assert {one.fields[0].data_ptr() for one in store.held[KEY].values()} == {rows.data_ptr()}
    store.forget(KEY, [(1, 1)])
    (left,) = {id(one): one for one in store.held[KEY].values()}.values()
    assert left.fields[0].untyped_storage().nbytes() == 3 * 3 * 8
    assert same(store.read(KEY, of, (0, 1), (0,)), (rows[:3],))


@pytest.mark.parametrize("second", [(0, 1), (0,)])
def test_contributions_to_some_cells_are_not_kept_beside_the_sum(second: tuple[int, ...]) -> None:
    """Two attends have gradients of different tokens: what they come to takes as much memory as its cells, not theirs
    and the first attend's besides."""
    store, whole = Store(), ((0, 1, 2), (0, 1))
    store.add(KEY, slab(*whole), add)
    store.add(KEY, slab((1, 2), second), add)
    pieces = {one.untyped_storage().data_ptr(): one.nbytes for held in set(slabs(store)) for one in held.fields}
    left = FORMAT.num_bytes(*whole) if second == (0,) else 0  # four of six cells are no less than half of the piece
    assert sum(pieces.values()) == left + sum(
        FORMAT.num_bytes((a,), (b,)) for a in range(3) for b in range(2) if not left or (a and not b)
    )
    for a in range(3):
        for b in range(2):
            times = 2 if a and b in second else 1
            assert same(store.read(KEY, FORMAT, (a,), (b,)), tuple(times * one for one in cut((a,), (b,))))


def test_contributions_of_no_two_lists_and_new_cells_are_added() -> None:
    store = Store()
    for lists in (((0,), (0,)), ((1,), (1,))):
        store.add(KEY, slab(*lists), add)
    store.add(KEY, slab((0, 1, 2), (0, 1)), add)
    for a in range(3):
        for b in range(2):
            times = 2 if a == b else 1
            assert same(store.read(KEY, FORMAT, (a,), (b,)), tuple(times * one for one in cut((a,), (b,))))


def test_what_is_on_its_way_is_not_waited_for_when_something_is_added() -> None:
    asked = list[int]()

    def arrives() -> Fields:
        asked.append(1)
        return cut((1,), (0, 1))

    store = Store()
    store.add(KEY, slab((0, 1, 2), (0, 1)), add)
    store.add(KEY, Slab(FORMAT, (1,), (0, 1), arrives), add)
    assert not asked
    assert same(store.read(KEY, FORMAT, (1,), (0, 1)), tuple(2 * one for one in cut((1,), (0, 1))))


def on_its_way(first: Parts, second: Parts, arrival: Arrival) -> Slab:
    """Cells that a message brings, which says so when somebody waits for it."""

    def arrives() -> Fields:
        arrival.wait()
        return cut(first, second)

    found = Slab(FORMAT, first, second, arrives)
    found.coming = arrival
    return found


@pytest.mark.parametrize("takes", [False, True])
def test_what_leaves_is_put_together_when_contributions_have_come(takes: bool) -> None:
    """Of a sum of whole cells and one of some of them: nobody waits when it is asked for; what is taken is gone."""
    store, arrival = Store(), Arrival(torch.empty(0), [])
    store.add(KEY, slab((0, 1, 2), (0, 1)), add)
    store.add(KEY, on_its_way((0, 1, 2), (0, 1), arrival), add)
    found = store.leaving(KEY, FORMAT, (0, 1), (0, 1), takes)
    assert found is not None
    assert found[0] == [arrival]
    assert not arrival.is_here
    assert (KEY in store.held and (0, 0) in store.held[KEY]) != takes
    assert same(found[1](), tuple(2 * one for one in cut((0, 1), (0, 1))))
    assert arrival.is_here
    assert same(store.read(KEY, FORMAT, (2,), (0, 1)), tuple(2 * one for one in cut((2,), (0, 1))))


def test_what_is_there_leaves_at_once() -> None:
    store = Store()
    store.add(KEY, slab((0, 1, 2), (0, 1)), add)
    assert store.leaving(KEY, FORMAT, (0, 1), (0, 1), True) is None
    assert (0, 0) in store.held[KEY]


def test_threads_read_a_slab_at_a_time() -> None:
    made = list[int]()

    def arrives() -> Fields:
        made.append(1)
        sleep(0.01)
        return cut((0,), (0,))

    one = Slab(FORMAT, (0,), (0,), arrives)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: one.fields, range(4)))
    assert made == [1]
    assert all(fields is found[0] for fields in found)


def slabs(store: Store) -> list[Slab]:
    """Lists the pieces that a store has."""
    return [one for held in store.held.values() for one in held.values()]


def test_partial_attentions_join_by_their_log_sum_exps() -> None:
    join = merge_of("o~", "softmax")
    nothing = (torch.zeros_like(WHOLE[0]), torch.full_like(WHOLE[1], -torch.inf))
    assert same(join(WHOLE, nothing), WHOLE)
    assert same(join(nothing, nothing), nothing)
    both = join(WHOLE, WHOLE)
    assert torch.allclose(both[0], WHOLE[0], rtol=1e-14, atol=0)
    assert torch.allclose(both[1], WHOLE[1] + np.log(2), rtol=1e-14, atol=0)
    assert torch.equal(merge_of("l", "softmax")(WHOLE, WHOLE)[0], 2 * WHOLE[0])
    assert torch.equal(merge_of("m", "max")(WHOLE, nothing)[1], WHOLE[1])


def test_what_is_left_of_a_piece_lies_by_itself_where_it_is_half_or_less() -> None:
    store, every = Store(), (0, 1, 2)
    one = slab(every, (0, 1))
    store.put(KEY, one)
    store.forget(KEY, [(0, 0)])
    assert store.held[KEY][1, 0] is one
    store.forget(KEY, [(0, 1), (1, 0), (1, 1)])  # half of the tokens are left
    left = store.held[KEY][2, 0]
    assert left is store.held[KEY][2, 1]
    assert left.fields[0].untyped_storage().nbytes() == cut((2,), (0, 1))[0].nbytes
    assert same(store.read(KEY, FORMAT, (2,), (0, 1)), cut((2,), (0, 1)))
    one = slab(every, (0, 1))
    store = Store()
    store.put(KEY, one)
    store.forget(KEY, [(0, 0), (1, 1), (2, 0)])  # of no two lists
    assert all(held is one for held in store.held[KEY].values())
    store.forget(KEY, [(0, 1)])
    assert same(store.read(KEY, FORMAT, (2,), (1,)), cut((2,), (1,)))
    assert store.held[KEY][2, 1] is one  # (1, 0) and (2, 1)


AMOUNTS = np.array([[2, 0], [0, 0], [1, 3]])  # of three parts and two experts, the tokens that go there
ROUTED = Format((("rc", torch.float64),), ("", ""), SIZES, {"c": 2}, AMOUNTS)
ROWS = {(a, b): torch.arange(float(2 * AMOUNTS[a, b])).view(-1, 2) + 100 * a + 10 * b for a in range(3) for b in (0, 1)}


def rows_of(first: tuple[int, ...], second: tuple[int, ...]) -> Fields:
    """The rows of cells: those of an expert together."""
    return (torch.cat([ROWS[a, b] for b in second for a in first]).double(),)


@given(st.data())
def test_any_rows_are_read_however_they_were_put(data: st.DataObject) -> None:
    """Cells without a row are nowhere, and nobody misses them."""
    store, lists = Store(), [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)]
    for first in data.draw(st.sampled_from([[(0, 1, 2)], [(0,), (1, 2)], [(0, 2)], [(0,), (2,)]])):
        for second in data.draw(st.sampled_from([[(0, 1)], [(0,), (1,)]])):
            store.put(KEY, Slab.of(ROUTED, first, second, rows_of(first, second)))
    assert set(store.held[KEY]) == {(0, 0), (2, 0), (2, 1)}
    first, second = data.draw(st.sampled_from(lists)), data.draw(st.sampled_from([(0,), (1,), (0, 1)]))
    assert same(store.read(KEY, ROUTED, first, second), rows_of(first, second))
    store.add(KEY, Slab.of(ROUTED, (2,), (1,), rows_of((2,), (1,))), add)
    store.add(KEY, Slab.of(ROUTED, (1,), (0, 1), rows_of((1,), (0, 1))), add)
    assert same(store.take(KEY, ROUTED, (2,), (0, 1)), (torch.cat([ROWS[2, 0], 2 * ROWS[2, 1]]).double(),))
    assert set(store.held[KEY]) == {(0, 0)}
    with pytest.raises(Lacking, match=r"q \(2, 0\) of layer 0 is not there"):
        store.read(KEY, ROUTED, (0, 2), (0, 1))


def test_rows_of_an_expert_are_not_copied() -> None:
    store, every = Store(), (0, 1, 2)
    one = Slab.of(ROUTED, every, (0, 1), rows_of(every, (0, 1)))
    store.put(KEY, one)
    assert store.read(KEY, ROUTED, every, (1,))[0].data_ptr() == one.fields[0][3:].data_ptr()
    assert store.read(KEY, ROUTED, (0, 2), (0, 1))[0].data_ptr() == one.fields[0].data_ptr()
