"""Fork servers: which fleets have one together, what is still each fleet's own, and when a server ends."""

import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from tests.helpers.processes import all_gone, lives
from zbench.runtime.processes.fleet import RankFailed
from zbench.runtime.processes.fork_server import _receive, ask_for
from zbench.runtime.processes.fork_servers import KEPT, Origin
from zbench.runtime.processes.launch import LocalFleet
from zbench.runtime.processes.launcher import Setup

SUMMER = "tests.runtime.dummies:Summer"


def made(target: str = SUMMER) -> tuple[int, dict[str, object]]:
    """The fork server of a fleet of one, and what the rank says of itself."""
    with LocalFleet(1, target) as fleet:
        return fleet.server_pid, fleet.call("about")[0]


def test_fleets_of_one_class_have_a_server_together_and_a_directory_each(tmp_path: Path, monkeypatch) -> None:
    (first, before), there = made(), tmp_path / "there"
    there.mkdir()
    monkeypatch.chdir(there)
    second, after = made()
    assert (first, after["directory"]) == (second, str(there))
    assert before["directory"] != after["directory"]
    assert before["pid"] != after["pid"]
    assert before["parent"] != after["parent"]


def test_what_a_new_process_would_see_otherwise_takes_a_server_of_its_own_and_the_latest_are_kept(monkeypatch) -> None:
    def made_with(mark: str | None) -> int:
        if mark is None:
            monkeypatch.delenv("MARK", raising=False)
        else:
            monkeypatch.setenv("MARK", mark)
        server, about = made()
        assert about["mark"] == mark
        return server

    assert KEPT == 2
    first, second = made_with(None), made_with("left")
    assert made_with(None) == first != second
    third = made_with("right")
    assert [lives(server) for server in (first, second, third)] == [True, False, True]


@pytest.mark.parametrize("change", ["target", "is_root", "environment", "path", "cores"])
def test_servers_are_told_apart_by(change: str, monkeypatch) -> None:
    target, is_root = "a:B", False
    before = Origin.here(target, is_root)
    assert before == Origin.here(target, is_root)
    if change == "target":
        target = "a:C"
    elif change == "is_root":
        monkeypatch.setattr("zbench.runtime.processes.fork_servers.as_root", lambda: ["unshare"])
        is_root = True
    elif change == "environment":
        monkeypatch.setenv("MARK", "")
    elif change == "path":
        monkeypatch.syspath_prepend("/nowhere")
    else:
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {999})
    assert Origin.here(target, is_root) != before


def test_a_server_that_was_killed_ends_its_fleets_and_another_takes_its_place() -> None:
    with LocalFleet(2, SUMMER) as fleet:
        pids = [fleet.server_pid, fleet.launcher_pid, *fleet.pids]
        os.kill(fleet.server_pid, signal.SIGKILL)
        with pytest.raises(RankFailed, match=r"^the fork server of the ranks was killed by signal 9"):
            fleet.call("loop")
        assert all_gone(pids)
    between = made()[0]
    assert between not in pids
    os.kill(between, signal.SIGKILL)
    assert all_gone([between])
    assert made()[0] != between


@pytest.mark.parametrize("which", ["server_pid", "launcher_pid"])
def test_whose_parent_was_killed_is_reaped_when_a_fleet_has_ended(which: str) -> None:
    with LocalFleet(2, SUMMER) as fleet:
        killed = getattr(fleet, which)
        pids = [pid for pid in (fleet.launcher_pid, *fleet.pids) if pid != killed]
        os.kill(killed, signal.SIGKILL)
        with pytest.raises(RankFailed, match=r"of the ranks was killed by signal 9"):
            fleet.call("loop")
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_a_thread_has_servers_of_its_own_which_end_with_it() -> None:
    servers = [made()[0]]
    thread = threading.Thread(target=lambda: servers.append(made()[0]))
    thread.start()
    thread.join()
    assert all_gone([servers[1]])
    assert made()[0] == servers[0]


def test_any_number_of_descriptors_is_handed_over() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, Path(__file__).open() as here:
        ranks = 256
        sent = Setup(1, *[here.fileno()] * 5, wires=[here.fileno()] * ranks, words=[here.fileno()] * ranks)
        ask_for(ours, sent)
        got = _receive(theirs)
        assert got is not None
        assert len(set(got.descriptors())) == 5 + 2 * ranks
        assert {os.fstat(found).st_ino for found in got.descriptors()} == {os.fstat(here.fileno()).st_ino}
        for found in got.descriptors():
            os.close(found)
        ours.close()
        assert _receive(theirs) is None
