"""A joined fleet: real processes under torchrun, or with variables as Slurm sets them."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import pytest

from tests.helpers.processes import all_gone, descendants
from zbench.runtime.processes.fleet import RankFailed
from zbench.runtime.processes.join import JoinedFleet, lead
from zbench.runtime.processes.world import ProcessPlace

PROGRAM = str(Path(__file__).parents[1] / "joined.py")
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "MASTER_"))}


def free_port() -> int:
    """Returns a port below those that the system hands out by itself: of these another test may be given the same one
    before our rank 0 listens, and rank 1 then waits at a stranger's."""
    while True:
        port = random.randrange(20_000, 30_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def torchrun(*arguments: str, ranks: int = 2) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--rdzv-backend=c10d"]
    command += ["--rdzv-endpoint=127.0.0.1:0", PROGRAM, *arguments]
    return subprocess.Popen(command, env=CLEAN, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def srun(*arguments: str, num_nodes: int = 1) -> list["subprocess.Popen[str]"]:
    """What srun does for two tasks, on one node or on what we say are two; it ends no task when another fails."""
    common = {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURM_STEP_NODELIST": "no-name",
        "SLURM_STEP_TASKS_PER_NODE": "2" if num_nodes == 1 else "1(x2)",
        "MASTER_PORT": str(free_port()),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    if num_nodes == 2:
        common["MASTER_ADDR"] = "127.0.0.1"
    return [
        subprocess.Popen(
            [sys.executable, PROGRAM, *arguments],
            env={
                **CLEAN,
                **common,
                "SLURM_PROCID": str(rank),
                "SLURM_NODEID": str(rank if num_nodes == 2 else 0),
                "SLURM_LOCALID": str(rank if num_nodes == 1 else 0),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]


def pids_of(stream: TextIO | None) -> list[int]:
    """Reads the line that says who the ranks are."""
    assert stream is not None
    line = stream.readline()
    assert line.startswith("up ["), line
    return [int(pid) for pid in line.removeprefix("up [").rstrip("]\n").split(",")]


def told(shown: str) -> Sequence[str]:
    return [line.removeprefix("told: ") for line in shown.splitlines() if line.startswith("told: ")]


# -- torchrun -----------------------------------------------------------------------------------------
def test_torchrun_serves_fleets_one_after_another() -> None:
    with torchrun("20") as job:
        out, errors = job.communicate(timeout=240)
        assert job.returncode == 0, errors
    lines = [line for line in out.splitlines() if line.startswith("result")]
    assert lines == ["result [4.0, 4.0]"] * 2


def test_torchrun_an_exception_of_a_follower_is_told_once() -> None:
    with torchrun("20", "unless", "1", '"raise_error"') as job:
        pids = pids_of(job.stdout)
        _, errors = job.communicate(timeout=240)
    assert job.returncode != 0
    (sentence,) = told(errors)
    assert sentence.startswith("rank 1 raised ValueError in step 7, reduction: not today (dummies.py:")
    assert "terminate called" not in errors
    assert all_gone(pids)


def test_torchrun_a_killed_follower_is_told_before_torchrun_ends_the_job() -> None:
    with torchrun("20", "loop") as job:
        pids = pids_of(job.stdout)
        time.sleep(1.0)
        os.kill(pids[1], signal.SIGKILL)
        _, errors = job.communicate(timeout=240)
    assert job.returncode != 0
    (sentence,) = told(errors)
    assert sentence.startswith("rank 1 was lost (its process or its machine ended) in step ")
    assert all_gone(pids)


# -- Slurm --------------------------------------------------------------------------------------------
@pytest.mark.parametrize("num_nodes", [1, 2])
def test_slurm_serves_fleets_one_after_another(num_nodes: int) -> None:
    tasks = srun("20", num_nodes=num_nodes)
    results = [task.communicate(timeout=240) for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], results
    assert results[0][0].count("result [4.0, 4.0]") == 2
    assert results[1] == ("", "")


@pytest.mark.parametrize(
    ("victim", "words"),
    [
        (1, "rank 1 does not answer (it is stopped, or its machine is gone) and made no progress for 3 s in step "),
        (0, ""),
    ],
)
def test_slurm_a_stopped_rank_ends_the_job(victim: int, words: str) -> None:
    """Nobody can tell for a stopped rank 0 but the others; and srun, in its own time, ends what is left."""
    tasks = srun("3", "loop")
    pids = pids_of(tasks[0].stdout)
    time.sleep(1.0)
    os.kill(pids[victim], signal.SIGSTOP)
    other = 1 - victim
    try:
        _, errors = tasks[other].communicate(timeout=240)
    finally:
        os.kill(pids[victim], signal.SIGCONT if victim == 1 else signal.SIGKILL)
    assert tasks[other].returncode == 1
    if victim == 0:
        assert errors.startswith("zbench: rank 0 has not been heard of for 6 s; rank 1 was in step "), errors
    else:
        assert told(errors)[0].startswith(words), errors
    tasks[victim].communicate(timeout=240)
    assert tasks[victim].returncode in (1, -signal.SIGKILL)
    assert all_gone(pids)


def test_slurm_an_exception_of_rank_0_ends_the_job() -> None:
    tasks = srun("20", "unless", "0", '"raise_error"')
    results = [task.communicate(timeout=240) for task in tasks]
    assert [task.returncode for task in tasks] == [1, 1]
    assert told(results[0][1])[0].startswith("rank 0 raised ValueError in step 7, reduction: not today (dummies.py:")
    assert "zbench" not in results[1][1]


@pytest.mark.parametrize("victim", [0, 1])
def test_slurm_a_killed_rank_ends_the_job(victim: int) -> None:
    tasks = srun("20", "loop")
    pids = pids_of(tasks[0].stdout)
    os.kill(pids[victim], signal.SIGKILL)
    results = [task.communicate(timeout=240) for task in tasks]
    assert [task.returncode for task in tasks] == [1 if rank != victim else -signal.SIGKILL for rank in (0, 1)], results
    if victim == 1:
        assert told(results[0][1])[0].startswith("rank 1 was lost")
    else:
        assert "zbench" not in results[1][1]
    assert all_gone(pids)


# -- in this process ----------------------------------------------------------------------------------
@pytest.fixture
def loopback(monkeypatch) -> None:
    """So that the fleet need not set it, and it is taken back."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")


@pytest.mark.usefixtures("loopback")
def test_a_world_of_one_needs_nobody() -> None:
    before = descendants(os.getpid())  # other tests' fork server, which Python keeps
    world = ProcessPlace(0, 1, 0, 1, "127.0.0.1", free_port(), False, "0", False)
    with lead(world), JoinedFleet(world, "tests.runtime.dummies:Summer", "mine") as fleet:
        assert fleet.call("total", 2.0) == [2.0]
        (about,) = fleet.call("about")
        assert (about["pid"], about["argument"]) == (os.getpid(), "mine")
    assert descendants(os.getpid()) == before


@pytest.mark.usefixtures("loopback")
def test_ranks_that_do_not_come_are_named() -> None:
    world = ProcessPlace(0, 3, 0, 3, "127.0.0.1", free_port(), False, "0", False)
    with lead(world):
        with pytest.raises(RankFailed, match=r"^ranks 1, 2 did not join within 0\.5 s$"):
            JoinedFleet(world, "tests.runtime.dummies:Summer", start_timeout=0.5)
        with pytest.raises(RankFailed, match="an earlier fleet of this job failed"):
            JoinedFleet(world, "tests.runtime.dummies:Summer", start_timeout=0.5)


def test_a_port_that_is_taken_is_told() -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        world = ProcessPlace(0, 2, 0, 2, "127.0.0.1", server.getsockname()[1], False, "0", False)
        with pytest.raises(RankFailed, match="rank 0 cannot serve the store at 127"), lead(world):
            pass
