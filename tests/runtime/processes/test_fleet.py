"""How failures are told: one sentence that says who, what, where."""

import pickle
import signal

import pytest

from zbench.plans.plan import Plan
from zbench.runtime.processes.fleet import LONGEST_MESSAGE, Failure, RankFailed, ending, failure_sentence, one_line


def caught(error: BaseException, place: str = "step 3, backward") -> Failure:
    try:
        raise error
    except BaseException as raised:
        return Failure.of(raised, place, "tests")


def test_a_sentence_says_who_what_and_where() -> None:
    told = failure_sentence("rank 1", "raised ValueError", "in step 3, backward", "it is odd", "trainer.py:12")
    assert told == "rank 1 raised ValueError in step 3, backward: it is odd (trainer.py:12)"
    assert failure_sentence("rank 1", "ended with exit code 3") == "rank 1 ended with exit code 3"


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (3, "ended with exit code 3"),
        (0, "ended with exit code 0"),
        (-signal.SIGKILL, "was killed by signal 9 (SIGKILL; the system may be out of memory)"),
        (-signal.SIGSEGV, "was killed by signal 11 (SIGSEGV)"),
        (-40, "was killed by signal 40 (a signal)"),
    ],
)
def test_how_a_process_ended(status: int, words: str) -> None:
    assert ending(status) == words


def test_a_failure_holds_the_line_of_ours_and_survives_pickling() -> None:
    failure = caught(ValueError("not\n  today"))
    assert failure.what == "raised ValueError"
    assert failure.message == "not today"
    assert failure.where.startswith("test_fleet.py:")
    assert "raise error" in failure.details
    assert pickle.loads(pickle.dumps(failure)) == failure


def test_the_innermost_line_of_ours_is_told_not_a_library_s() -> None:
    with pytest.raises(TypeError) as raised:
        Plan()  # type: ignore[call-arg]
    assert Failure.of(raised.value, "", "tests").where.startswith("test_fleet.py:")
    assert Failure.of(raised.value, "", "elsewhere").where == ""


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (MemoryError(), True),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory"), True),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 7 bytes"), True),
        (RuntimeError("no memory of it"), False),
    ],
)
def test_out_of_memory_is_told_as_such(error: BaseException, is_memory: bool) -> None:
    assert (caught(error).what == "ran out of memory") == is_memory


@pytest.mark.parametrize(
    ("error", "of_peers"),
    [
        (RuntimeError("[gloo/transport/tcp/pair.cc:538] Connection closed by peer [127.0.0.1]:1"), True),
        (ConnectionResetError("it was reset"), False),
        (ConnectionResetError("Connection reset by peer"), True),
        (ValueError("gloo"), False),
        (RuntimeError("shapes differ"), False),
    ],
)
def test_what_another_rank_s_end_explains(error: BaseException, of_peers: bool) -> None:
    assert caught(error).of_peers == of_peers


def test_long_messages_are_cut() -> None:
    assert len(one_line("word " * 1000)) == LONGEST_MESSAGE


def test_details_are_notes_and_the_sentence_stays_one_line() -> None:
    error = RankFailed("rank 1 failed", 1, "Traceback ...\n")
    assert str(error) == "rank 1 failed"
    assert error.__notes__ == ["Traceback ..."]
    assert not hasattr(RankFailed("rank 1 failed"), "__notes__")
