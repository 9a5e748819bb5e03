"""A local fleet: what it returns, and how every way to fail ends - in one right sentence, with nobody left."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.processes import all_gone, children, descendants, lives, until
from zbench.runtime.processes import wired
from zbench.runtime.processes.fleet import RankFailed
from zbench.runtime.processes.launch import LocalFleet

RANKS = 3
HERE = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalFleet]:
    """A fleet for tests that do not end it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("OMP_NUM_THREADS", raising=False)
        fleet = LocalFleet(RANKS, "tests.runtime.dummies:Summer", {"any": "thing"})
    with fleet:
        yield fleet


@contextlib.contextmanager
def doomed(timeout: float = 60.0, argument: object = None) -> Iterator[LocalFleet]:
    """A fleet that is to end in the test; whether anybody is left is looked at here."""
    fleet = LocalFleet(RANKS, "tests.runtime.dummies:Summer", argument, timeout)
    pids = [fleet.launcher_pid, *fleet.pids]
    assert len(set(pids)) == RANKS + 1
    assert all(map(lives, pids))
    try:
        yield fleet
    finally:
        with contextlib.suppress(RankFailed):
            fleet.close()
        assert all_gone(pids), "processes are left"


@contextlib.contextmanager
def after(seconds: float, pid: int, number: int) -> Iterator[None]:
    """Sends a signal to `pid` after a while."""
    timer = threading.Timer(seconds, os.kill, (pid, number))
    timer.start()
    yield
    timer.join()


def failure(fleet: LocalFleet, method: str, *arguments: object) -> RankFailed:
    """The error of a call. That it is not the one of a timeout, its words tell."""
    with pytest.raises(RankFailed) as raised:
        fleet.call(method, *arguments)
    assert "\n" not in str(raised.value)
    return raised.value


# -- what works ---------------------------------------------------------------------------------------
def test_results_come_in_rank_order(shared: LocalFleet) -> None:
    assert shared.num_ranks == RANKS
    assert shared.call("echo", "a", 1) == [(rank, "a", 1) for rank in range(RANKS)]
    assert shared.call("echo", 7, per_rank="xyz") == [(0, 7, "x"), (1, 7, "y"), (2, 7, "z")]
    assert shared.call("echo", per_rank=[None] * RANKS) == [(rank, None) for rank in range(RANKS)]


def test_ranks_compute_together(shared: LocalFleet) -> None:
    assert shared.call("total", 1.0) == [6.0] * RANKS
    assert shared.call("loop", 20) == [20.0 * RANKS] * RANKS


def test_ranks_are_processes_of_the_launcher_and_got_the_argument(shared: LocalFleet) -> None:
    told = shared.call("about")
    assert [about["pid"] for about in told] == list(shared.pids)
    assert {about["parent"] for about in told} == {shared.launcher_pid}
    assert {about["torch threads"] for about in told} == {max(1, len(os.sched_getaffinity(0)) // RANKS)}
    assert shared.launcher_pid in children(shared.server_pid)
    assert shared.server_pid in children(os.getpid())
    assert [about["argument"] for about in told] == [{"any": "thing"}] * RANKS
    assert {os.getpgid(pid) for pid in (*shared.pids, shared.launcher_pid, shared.server_pid)} == {os.getpgid(0)}


def test_large_arguments_and_results(shared: LocalFleet) -> None:
    data = os.urandom(20_000_000)
    assert shared.call("echo", data, per_rank=[data[:100]] * RANKS) == [
        (rank, data, data[:100]) for rank in range(RANKS)
    ]


def test_what_ranks_print_is_shown_with_their_name(shared: LocalFleet, capsys) -> None:
    shared.call("talk")
    shown = ""

    def complete() -> bool:
        nonlocal shown
        shared.call("echo")
        shown += capsys.readouterr().err
        return all(f"rank {rank}: {word}\n" in shown for rank in range(RANKS) for word in ("a word", "another"))

    assert until(complete), shown


def test_a_rank_that_works_longer_than_the_timeout_and_says_so_is_left_alone(shared: LocalFleet) -> None:
    with LocalFleet(2, "tests.runtime.dummies:Summer", timeout=1.0) as fleet:
        assert fleet.call("unless", 1, "work") == [1.0 + 2.0] * 2


def test_two_fleets_at_once(shared: LocalFleet) -> None:
    with LocalFleet(2, "tests.runtime.dummies:Summer") as other:
        assert other.call("total", 1.0) == [3.0] * 2
        assert shared.call("total", 1.0) == [6.0] * RANKS
        pids = [other.launcher_pid, *other.pids]
    assert all_gone(pids)
    assert shared.call("total", 2.0) == [9.0] * RANKS


def test_closing_leaves_no_process_no_port_and_no_descriptor() -> None:
    def open_descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    with LocalFleet(2, "tests.runtime.dummies:Summer") as fleet:
        server = fleet.server_pid  # kept, with a socket to it
    before, of_server = open_descriptors(), len(list(Path(f"/proc/{server}/fd").iterdir()))
    fleet = LocalFleet(2, "tests.runtime.dummies:Summer")
    port = fleet.call("about")[0]["port"]
    pids = [fleet.launcher_pid, *fleet.pids]
    with pytest.raises(OSError, match="in use"):
        socket.create_server(("127.0.0.1", port))
    fleet.close()
    assert not any(map(lives, pids))
    assert open_descriptors() == before
    assert len(list(Path(f"/proc/{server}/fd").iterdir())) == of_server
    socket.create_server(("127.0.0.1", port)).close()
    fleet.close()  # again: nothing


def test_torch_takes_the_threads_the_user_asks_for(monkeypatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    with LocalFleet(2, "tests.runtime.dummies:Summer") as fleet:
        assert [about["torch threads"] for about in fleet.call("about")] == [3, 3]


# -- what raises --------------------------------------------------------------------------------------
def test_an_exception_of_one_rank_is_told_with_place_and_line() -> None:
    with doomed() as fleet:
        error = failure(fleet, "unless", 1, "raise_error")
        assert error.rank == 1
        assert str(error).startswith("rank 1 raised ValueError in step 7, reduction: not today (dummies.py:")
        assert "in raise_error" in error.__notes__[0]


@pytest.mark.parametrize(
    ("deed", "words"),
    [
        ("raise_memory", "ran out of memory in step 7, reduction: a page too many"),
        ("leave_orderly", "raised SystemExit in step 7, reduction: 4"),
        ("leave", "ended with exit code 3 in step 7, reduction: it last printed 'so long'"),
        ("crash", "was killed by signal 11 (SIGSEGV) in step 7, reduction"),
    ],
)
def test_other_ends_of_one_rank(deed: str, words: str) -> None:
    with doomed() as fleet:
        assert str(failure(fleet, "unless", 2, deed)).startswith(f"rank 2 {words}")


def test_a_result_that_cannot_be_sent_is_told() -> None:
    with doomed() as fleet:
        assert "what lambdas returned cannot be pickled" in str(failure(fleet, "lambdas"))


def test_after_a_failure_the_fleet_is_over() -> None:
    with doomed() as fleet:
        failure(fleet, "no_such_method")
        with pytest.raises(AssertionError, match="ended"):
            fleet.call("echo")


# -- who is killed ------------------------------------------------------------------------------------
@pytest.mark.parametrize("rank", range(RANKS))
def test_a_killed_rank_is_named_not_its_peers(rank: int, capsys) -> None:
    with doomed() as fleet, after(0.5, fleet.pids[rank], signal.SIGKILL):
        error = failure(fleet, "loop")
    assert error.rank == rank
    assert str(error).startswith(
        f"rank {rank} was killed by signal 9 (SIGKILL; the system may be out of memory) in step "
    )
    assert str(error).endswith(", all-reduce")
    assert capsys.readouterr().err == ""


KILLED = "rank 1 was killed by signal 9 (SIGKILL; the system may be out of memory)"


def test_a_rank_killed_between_calls_is_told_by_the_next() -> None:
    with doomed() as fleet:
        fleet.call("total", 1.0)
        os.kill(fleet.pids[1], signal.SIGKILL)
        assert all_gone([fleet.pids[1]])
        told = str(failure(fleet, "total", 1.0))
    # The launcher's word of the death and the driver's next call may cross.
    assert told in {f"{KILLED} {place}" for place in ("between calls", "in total()")}


def test_a_killed_launcher_ends_its_ranks(capsys) -> None:
    with doomed() as fleet, after(0.5, fleet.launcher_pid, signal.SIGKILL):
        error = failure(fleet, "loop")
    assert str(error).startswith("the launcher of the ranks was killed by signal 9")
    assert capsys.readouterr().err == ""


def test_a_stopped_launcher_leaves_nobody() -> None:
    with doomed() as fleet:
        os.kill(fleet.launcher_pid, signal.SIGSTOP)
        os.kill(fleet.pids[2], signal.SIGKILL)
        assert "rank 2" in str(failure(fleet, "loop"))


@contextlib.contextmanager
def driven() -> Iterator[tuple["subprocess.Popen[str]", list[int]]]:
    """A driver in a session of its own, its fork server, launcher and ranks; in a loop by now.

    A test that fails leaves nobody."""
    with subprocess.Popen(
        [sys.executable, str(HERE / "driver.py")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as driver:
        try:
            assert driver.stdout is not None
            *pids, has_torch = driver.stdout.readline().split()
            assert has_torch == "False"
            time.sleep(0.5)
            assert descendants(driver.pid) == list(map(int, pids))
            yield driver, list(map(int, pids))
        finally:
            driver.kill()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_killed_driver_leaves_nobody(number: int) -> None:
    with driven() as (driver, pids):
        driver.send_signal(number)
        assert driver.wait(240) == -number
        assert all_gone(pids)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_all_and_only_the_driver_speaks() -> None:
    with driven() as (driver, pids):
        os.killpg(driver.pid, signal.SIGINT)  # as a terminal does
        _, shown = driver.communicate(timeout=240)
        assert driver.returncode != 0
        assert all_gone(pids)
    assert shown.count("Traceback") == 1
    assert shown.rstrip().endswith("KeyboardInterrupt")


# -- who stands still ---------------------------------------------------------------------------------
def test_a_stopped_rank_is_named() -> None:
    with doomed(timeout=3.0) as fleet, after(0.5, fleet.pids[1], signal.SIGSTOP):
        error = failure(fleet, "loop")
    assert error.rank == 1
    assert str(error).startswith("rank 1 is stopped (by a signal or a debugger) and made no progress for 3 s in step ")


def test_of_ranks_that_stand_still_the_one_that_does_not_wait_is_named() -> None:
    with doomed(timeout=1.0) as fleet:
        told = "rank 1 made no progress for 1 s in step 7, reduction: a longer executor.timeout waits for it"
        assert str(failure(fleet, "unless", 1, "sleep")) == told


def test_ranks_that_wait_for_each_other_are_told_as_such() -> None:
    with doomed(timeout=1.0) as fleet:
        told = str(failure(fleet, "unless", 1, "wait_in_vain"))
    assert told.endswith(" made no progress for 1 s in step 7, reduction, waiting for others, as do all")


# -- start and end ------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("target", "argument", "words"),
    [
        (
            "no_such_module:Summer",
            None,
            "the ranks could not start: the launcher raised ModuleNotFoundError: ",
        ),
        ("tests.runtime.dummies:Nothing", None, "the ranks could not start: the launcher raised AttributeError: "),
        (
            "tests.runtime.dummies:Summer",
            "odd",
            "rank 1 raised ValueError in start-up: the argument is odd (dummies.py:",
        ),
    ],
)
def test_what_cannot_start_is_told(target: str, argument: object, words: str) -> None:
    with LocalFleet(2, "tests.runtime.dummies:Summer"):
        pass  # whose fork server may stay
    before = descendants(os.getpid())
    with pytest.raises(RankFailed) as raised:
        LocalFleet(2, target, argument)
    assert str(raised.value).startswith(words)
    assert set(descendants(os.getpid())) <= set(before)


def test_an_object_that_fails_to_close_is_told() -> None:
    with doomed(argument="clings") as fleet, pytest.raises(RankFailed, match="OSError in closing: it cannot let go"):
        fleet.close()


def test_an_object_that_hangs_while_closing_is_ended(monkeypatch) -> None:
    monkeypatch.setattr(wired, "CLOSE_SECONDS", 1.0)
    with doomed(argument="hangs") as fleet:
        fleet.close()  # it hangs for longer than a test may take


def test_leaving_with_an_error_ends_the_fleet_at_once_and_keeps_the_error(monkeypatch) -> None:
    monkeypatch.setattr(wired, "CLOSE_SECONDS", 1000.0)
    fleet = LocalFleet(2, "tests.runtime.dummies:Summer", "hangs")
    pids = [fleet.launcher_pid, *fleet.pids]
    with pytest.raises(KeyError, match="mine"), fleet:
        raise KeyError("mine")
    assert all_gone(pids)
