"""Asks a function in several processes, joined by a gloo group, and collects what each of them answered.

    python -m zbench.check.processes FOLDER RANK      # what each process runs; job.json in FOLDER says what it is to do

A process writes its answer to every case into FOLDER. Each case has a group of its own, so that one in which a process
raised does not upset the next. A process that waits longer than `seconds` for the others raises, and all that are left
are ended and told of where no answer has come for twice that and BETWEEN more: nothing hangs.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch

from zbench.check.kinds import function_kind
from zbench.check.pieces import find_function
from zbench.check.share import Share
from zbench.check.verdict import Answer, answer_of, as_dtype

STARTING = 120.0  # seconds for processes to import torch and the module under check, on a busy machine
BETWEEN = 10.0  # seconds between two answers besides those that are waited: a judgement
_UP = "up"  # how the file ends that a process makes when it begins to ask


@dataclass(frozen=True, slots=True)
class FunctionCheck:
    """A check of one function. kind: loss or attention. named: the function. over: how losses of processes are joined.
    seconds: that a process may wait for the others in a case."""

    kind: str
    named: str
    cases: tuple[str, ...]
    ranks: int = 1
    dtype: str = "float64"
    device: str = "cpu"
    over: str = "mean"
    seconds: int = 30


def ask_here(job: FunctionCheck) -> list[list[Answer]]:
    """Asks the function in this process; returns for every case a list of its one answer."""
    return [[_ask(job, case, Share(0, 1, as_dtype(job.dtype), job.device))] for case in job.cases]


def ask_processes(job: FunctionCheck) -> list[list[Answer]]:
    """Starts the processes and returns the answers of all of them to every case."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "job.json").write_text(json.dumps(asdict(job)))
        command = [sys.executable, "-m", "zbench.check.processes", folder]
        here = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        started = []
        for rank in range(job.ranks):
            with Path(folder, f"{rank}.err").open("w") as said:
                started.append(
                    subprocess.Popen([*command, str(rank)], env=here, stdout=subprocess.DEVNULL, stderr=said)
                )
        try:
            codes = _wait(started, Path(folder), job)
        finally:
            for process in started:
                process.kill()
                process.wait()
        return [
            [_answer(folder, job, number, rank, codes[rank]) for rank in range(job.ranks)]
            for number in range(len(job.cases))
        ]


def _wait(started: Sequence["subprocess.Popen[bytes]"], folder: Path, job: FunctionCheck) -> list[int | None]:
    """Returns the exit codes of the processes once all have ended, or no answer has come for too long; None: still at
    it."""
    seen, since = -1, time.monotonic()
    while any(process.poll() is None for process in started):
        found = len(list(folder.glob("*.pt"))) + len(list(folder.glob(f"*.{_UP}")))
        if found != seen:
            seen, since = found, time.monotonic()
        if time.monotonic() - since > (most_silent(job) if found >= job.ranks else STARTING):
            break
        time.sleep(0.05)
    return [process.poll() for process in started]


def most_silent(job: FunctionCheck) -> float:
    """Returns the seconds without an answer after which processes that are up are ended."""
    return 2 * job.seconds + BETWEEN


def _answer(folder: str, job: FunctionCheck, number: int, rank: int, code: int | None) -> Answer:
    path = Path(folder, f"{number}.{rank}.pt")
    if path.exists():
        tensors, told, refused = torch.load(path)
        return Answer(tensors, told, refused)
    if code is None:
        limit = most_silent(job) if Path(folder, f"{rank}.{_UP}").exists() else STARTING
        return Answer(None, f"process {rank} of {job.ranks} was ended, as no answer had come for {limit:g} s")
    last = Path(folder, f"{rank}.err").read_text().strip().splitlines()[-1:] or ["it said nothing"]
    return Answer(None, f"process {rank} of {job.ranks} ended by itself, with exit code {code}: {last[0][:300]}")


def _ask(job: FunctionCheck, case: str, share: Share) -> Answer:
    kind = function_kind(job.kind, job.over)
    function = find_function(job.kind, job.named, *kind.arguments(job.ranks))
    return answer_of(job.named, lambda: kind.ask(function, case, share))


def in_words(answer: Answer, job: FunctionCheck) -> Answer:
    """Returns the answer with a sentence in place of what torch.distributed says of a wait in vain."""
    said = answer.told.lower()
    if answer.tensors is not None or not any(word in said for word in ("gloo", "c10d", "distbackend", "process group")):
        return answer
    if "timed out" in said or "timeout" in said:
        told = f"waited {job.seconds} s for the other processes, which did not make the same call of torch.distributed"
    elif "connection" in said:
        told = "lost another process in a call of torch.distributed, which that one had left or not made"
    else:
        return answer
    return Answer(None, f"{job.named} {told}")


def _serve(folder: str, rank: int) -> int:
    """Runs one process: answers every case of the job."""
    from torch import distributed

    told = json.loads(Path(folder, "job.json").read_text())
    job = FunctionCheck(**{**told, "cases": tuple(told["cases"])})
    patience = timedelta(seconds=job.seconds)
    distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=job.ranks, timeout=3 * patience
    )
    Path(folder, f"{rank}.{_UP}").touch()
    alone, group = "", None
    for number, case in enumerate(job.cases):
        began = time.monotonic()
        try:
            group = None if alone else distributed.new_group(timeout=patience)
        except RuntimeError:  # another one is still in an earlier case, or has ended
            alone = f"was not asked, as others had not come out of an earlier case in {time.monotonic() - began:.0f} s"
        share = Share(rank, job.ranks, as_dtype(job.dtype), job.device, group)
        found = Answer(None, alone) if alone else in_words(_ask(job, case, share), job)
        path = Path(folder, f"{number}.{rank}.pt")
        torch.save((found.tensors, found.told, found.refused), path.with_suffix(".part"))
        path.with_suffix(".part").rename(path)
    distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(_serve(sys.argv[1], int(sys.argv[2])))
