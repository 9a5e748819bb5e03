"""The board: what is said can be seen; who stands still is known, and whom to blame."""

from hypothesis import given
from hypothesis import strategies as st

from zbench.runtime.processes import board as board_module
from zbench.runtime.processes.board import IDLE, SLOT_BYTES, WAITING, WORKING, Board, Sight, Watch, sight


@given(st.lists(st.text(), min_size=1, max_size=4))
def test_a_slot_shows_the_last_place_said_and_no_other_slot(places: list[str]) -> None:
    memory = bytearray(3 * SLOT_BYTES)
    board = Board(memory, 1)
    for place in places:
        board.say(place)
    seen = sight(memory, 1)
    assert seen.counter == len(places)
    assert seen.state == WORKING
    assert places[-1].startswith(seen.place)
    assert seen.place == places[-1] or len(places[-1].encode()) > SLOT_BYTES - 10
    assert sight(memory, 0) == sight(memory, 2) == Sight(0, IDLE, "")


def test_waiting_keeps_the_place_and_every_word_counts() -> None:
    memory = bytearray(SLOT_BYTES)
    board = Board(memory, 0)
    board.say("step 1")
    board.wait()
    assert sight(memory, 0) == Sight(2, WAITING, "step 1")
    board.resume()
    assert sight(memory, 0) == Sight(3, WORKING, "step 1")
    board.wait("step 1, reduction")
    assert sight(memory, 0) == Sight(4, WAITING, "step 1, reduction")
    assert board.place == "step 1, reduction"
    board.rest()
    assert sight(memory, 0) == Sight(5, IDLE, "")


class Clock:
    """In place of the time module."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_a_watch_counts_from_the_last_progress_of_anybody(monkeypatch) -> None:
    clock = Clock()
    monkeypatch.setattr(board_module, "time", clock)
    memory = bytearray(2 * SLOT_BYTES)
    boards = [Board(memory, 0), Board(memory, 1)]
    watch = Watch(memory, 2)
    assert watch.look() == 0.0
    for seconds in (1.0, 1.5):
        clock.now += seconds
        silent = watch.look()
    assert silent == 2.5
    boards[1].say("here")
    assert watch.look() == 0.0


def test_a_watch_that_was_stopped_itself_blames_nobody(monkeypatch) -> None:
    clock = Clock()
    monkeypatch.setattr(board_module, "time", clock)
    watch = Watch(bytearray(SLOT_BYTES), 1)
    watch.look()
    clock.now += 1000.0
    assert watch.look() == 0.0
    clock.now += 1.0
    assert watch.look() == 1.0


def test_who_does_not_wait_is_suspected_first_then_who_stands_longest(monkeypatch) -> None:
    clock = Clock()
    monkeypatch.setattr(board_module, "time", clock)
    memory = bytearray(4 * SLOT_BYTES)
    boards = [Board(memory, rank) for rank in range(4)]
    watch = Watch(memory, 4)
    watch.look()
    for rank, board in ((3, boards[3]), (0, boards[0]), (2, boards[2]), (1, boards[1])):
        clock.now += 1.0
        board.wait("all-reduce") if rank in (0, 3) else board.say("matmul")
        watch.look()
    assert watch.suspects([0, 1, 2, 3]) == [2, 1, 3, 0]
    assert watch.suspects([0, 3]) == [3, 0]
