"""What goes wrong on a desk, and what a run makes of it, where this machine allows it."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from tests.desk.desks import command, start, steps
from tests.helpers.processes import all_gone, children, descendants, until

pytestmark = pytest.mark.usefixtures("namespaces")
NET = Path("/sys/class/net")
LONG = "steps=500"  # longer than anybody waits


def fleet_of(pid: int) -> tuple[int, list[int]]:
    """(the launcher that a process waits for, its ranks in order)."""
    (launcher,) = [child for child in descendants(pid) if len(children(child)) == 4]
    return launcher, sorted(children(launcher))


def broken(out: Path, number: signal.Signals, which: Callable[[int, list[int]], int]) -> str:
    """Sends a signal to a process of a fleet after a step, and returns what the command, in this process, tells of it.
    which: takes the launcher and its ranks. None of them is left."""
    fleet: list[int] = []

    def send() -> None:
        if until(lambda: bool(steps(out)), 120):
            launcher, ranks = fleet_of(os.getpid())
            os.kill(which(launcher, ranks), number)
            fleet.extend([launcher, *ranks])

    sending = Thread(target=send)
    sending.start()
    done = command(out, LONG, "executor.timeout=5")
    sending.join()
    assert done.returncode == 1
    assert len(fleet) == 5
    assert all_gone(fleet)
    return done.stderr


def longest_silence(step: dict[str, Any], nic: int) -> float:
    """Seconds in which a NIC sent nothing without a break, by what was read of its counter while the step ran."""
    series = step["nic_series"]
    runs = "".join("." if sent else "0" for sent in series["tx"][nic]).split(".")
    return max(map(len, runs)) * float(series["interval"])


def test_a_nic_that_goes_down_for_good_is_named(tmp_path: Path) -> None:
    fault = "executor.fault={nic: 2, step: 1}"
    done = command(tmp_path / "runs.jsonl", "steps=3", "system=ring", fault, "executor.timeout=5")
    assert done.returncode == 1
    assert "made no progress for 5 s" in done.stderr
    assert "; NIC 2 (of node 1) is down" in done.stderr
    assert len(steps(tmp_path / "runs.jsonl")) == 1


def test_a_nic_that_is_down_for_three_seconds_is_survived(tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    done = command(out, "steps=2", "system=ring", "executor.fault={nic: 2, step: 1, seconds: 3}")
    assert done.returncode == 0, done.stderr
    before, during = steps(out)
    assert during["seconds"] > 3
    assert longest_silence(before, 2) < 2.5 <= longest_silence(during, 2)


def test_a_slow_nic_shows_in_its_series(tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    # Messages that take a while: a tenth of the rate, and more of it than a bucket of tokens lets pass at once.
    words = ("workload.context_limit=1024", "tokens_per_gpu=256", "system=ring")
    done = command(out, "steps=2", "executor.fault={nic: 2, step: 1, share: 0.1}", *words)
    assert done.returncode == 0, done.stderr
    before, after = steps(out)
    assert after["seconds"] > 1.5 * before["seconds"]
    assert peak(after, 2) < 0.3 * peak(before, 2)
    assert peak(after, 1) > peak(after, 2)


def peak(step: dict[str, dict[str, list[list[int]]]], nic: int) -> int:
    return max(step["nic_series"]["tx"][nic] + step["nic_series"]["rx"][nic])


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (signal.SIGSTOP, "rank 1 is stopped"),
        (signal.SIGKILL, "rank 1 was killed by signal 9"),
    ],
)
def test_a_rank_that_stops_or_dies_is_named(tmp_path: Path, number: signal.Signals, told: str) -> None:
    assert told in broken(tmp_path / "runs.jsonl", number, lambda launcher, ranks: ranks[1])


def test_a_killed_launcher_leaves_nothing_and_another_desk_starts(tmp_path: Path) -> None:
    links = sorted(NET.iterdir())
    told = broken(tmp_path / "first.jsonl", signal.SIGKILL, lambda launcher, ranks: launcher)
    assert "launcher of the ranks was killed by signal 9" in told
    assert sorted(NET.iterdir()) == links
    done = command(tmp_path / "second.jsonl", "steps=1")
    assert done.returncode == 0, done.stderr


def test_a_killed_command_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "first.jsonl"
    started = start(out, LONG, "executor.timeout=8")
    assert until(lambda: bool(steps(out)) or started.poll() is not None, 120)
    assert started.poll() is None, started.communicate()[1]
    launcher, ranks = fleet_of(started.pid)
    every = descendants(started.pid)
    started.kill()
    started.communicate()
    assert all_gone([launcher, *ranks, *every])


def test_two_desks_at_once(tmp_path: Path) -> None:
    outs = [tmp_path / f"{number}.jsonl" for number in range(2)]
    both = [start(out, "steps=2", "system=ring", "check=bytes") for out in outs]
    for one in both:
        told, errors = one.communicate(timeout=200)
        assert one.returncode == 0, errors
        assert "check=bytes holds" in told
    first, second = (steps(out)[0] for out in outs)
    for way in ("nic_tx_bytes", "nic_rx_bytes"):  # each counts its own traffic only
        assert first[way] == pytest.approx(second[way], rel=0.03)
