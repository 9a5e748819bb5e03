"""Which of many failures is named."""

import signal
from collections.abc import Sequence

import pytest

from zbench.runtime.processes import verdict
from zbench.runtime.processes.fleet import Failure, RankFailed
from zbench.runtime.processes.verdict import GRACE, LATE_STATUS, Troubles, stuck

OWN = Failure("raised ValueError", "odd", "step 3", "trainer.py:7", "Traceback ...", False)
PEERS = Failure("raised RuntimeError", "Connection closed by peer", "step 3", "", "", True)
LOST = "in step 3, forward"


def cause(*troubles: tuple[int, Failure | str], status: dict[int, int], words: Sequence[str] = ()) -> RankFailed:
    found = Troubles()
    assert not found
    for rank, trouble in troubles:
        if isinstance(trouble, Failure):
            found.raised(rank, trouble)
        else:
            found.lost(rank, trouble)
    assert found
    return found.cause(status.get, lambda rank: words)


@pytest.mark.parametrize(
    ("troubles", "status", "named"),
    [
        ([(0, PEERS), (1, OWN), (2, LOST)], {2: -signal.SIGKILL}, 2),
        ([(0, PEERS), (2, LOST), (1, OWN)], {2: 1}, 1),
        ([(0, PEERS), (2, LOST), (1, OWN)], {2: -signal.SIGABRT}, 1),
        ([(0, PEERS), (2, LOST), (1, PEERS)], {}, 2),
        ([(3, PEERS), (1, PEERS)], {}, 3),
        ([(3, OWN), (1, OWN)], {}, 3),
        ([(1, LOST), (0, LOST)], {0: -signal.SIGKILL, 1: -signal.SIGKILL}, 1),
        ([(1, OWN), (1, LOST)], {1: -signal.SIGKILL}, 1),
    ],
)
def test_the_likeliest_cause_is_named_and_of_equals_the_first(troubles, status, named) -> None:
    assert cause(*troubles, status=status).rank == named


def test_sentences() -> None:
    assert str(cause((1, OWN), status={})) == "rank 1 raised ValueError in step 3: odd (trainer.py:7)"
    killed = cause((1, LOST), status={1: -signal.SIGKILL}, words=["a warning"])
    assert str(killed).endswith("(SIGKILL; the system may be out of memory) in step 3, forward")
    assert killed.__notes__ == ["a warning"]
    left = cause((1, LOST), status={1: 3}, words=["a warning", "bad luck"])
    assert str(left) == "rank 1 ended with exit code 3 in step 3, forward: it last printed 'bad luck'"
    unknown = cause((1, LOST), status={}, words=["bad luck"])
    assert str(unknown) == "rank 1 was lost (its process or its machine ended) in step 3, forward"


def test_the_verdict_waits_a_moment(monkeypatch) -> None:
    now = [10.0]
    monkeypatch.setattr(verdict.time, "monotonic", lambda: now[0])
    found = Troubles()
    assert not found.is_ripe()
    now[0] += GRACE / 2
    assert not found.is_ripe()
    now[0] += GRACE
    assert found.is_ripe()


def test_the_verdict_waits_for_how_a_lost_rank_ended(monkeypatch) -> None:
    now, told = [10.0], set()
    monkeypatch.setattr(verdict.time, "monotonic", lambda: now[0])
    found = Troubles()
    found.lost(1, LOST)
    assert not found.is_ripe(told.__contains__)
    now[0] += 2 * GRACE
    assert not found.is_ripe(told.__contains__)
    told.add(1)
    assert found.is_ripe(told.__contains__)
    now[0] += LATE_STATUS
    assert found.is_ripe(lambda rank: False)


@pytest.mark.parametrize(
    ("stopped", "is_waiting", "sentence"),
    [
        (None, False, "rank 2 made no progress for 30 s in step 2: a longer executor.timeout waits for it"),
        (None, True, "rank 2 made no progress for 30 s in step 2, waiting for others, as do all"),
        (1, False, "rank 1 is stopped and made no progress for 30 s in step 1"),
        (1, True, "rank 1 is stopped and made no progress for 30 s in step 1"),
    ],
)
def test_who_is_stuck(stopped: int | None, is_waiting: bool, sentence: str) -> None:
    def stillness(rank: int) -> str:
        return "is stopped" if rank == stopped else ""

    assert str(stuck([2, 0, 1], stillness, is_waiting, "in step {}".format, 30.0)) == sentence
