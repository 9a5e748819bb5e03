"""The frame of commands: signals at any moment, and standard output and error that are closed, full, or left early."""

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from tests.helpers.processes import all_gone, descendants, until
from tests.record.test_record import end_line, start_line, step_line, write
from zbench.console.command import Parser, known_words, ran
from zbench.console.signals import ENDING, Ended, exit_code, stop_in, stopped_by
from zbench.record.fingerprint import ROOT

SMALL = ("tracker=none", "baseline=null", "model=tiny", "tokens_per_gpu=64", "cluster.num_nodes=1", "out=r.jsonl")
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGHUP: 129}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruptible: None) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{ROOT}")
    return tmp_path


def raising(error: BaseException) -> int:
    raise error


def test_words_of_a_flag_are_known() -> None:
    assert known_words("--parts", "plans,kernels", ("kernels", "plans")) == ["plans", "kernels"]
    for given, wrong in (("plans,all", "all"), ("", ""), ("plans,", "")):
        with pytest.raises(ValueError, match=f"^--parts has {wrong!r}; it takes kernels, plans$"):
            known_words("--parts", given, ("kernels", "plans"))


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (OSError(13, "Permission denied", "a/b"), 2, "a/b: Permission denied"),
        (OSError(28, "No space left on device", "a/b"), 1, "a/b: No space left on device"),
        (OSError(24, "Too many open files"), 1, "Too many open files"),
        (MemoryError("Unable to allocate 7 TiB"), 1, "this machine has too little memory for that: Unable to allocate"),
        (OverflowError("int too large"), 2, "a number is too large: int too large"),
        (RecursionError(), 2, "something is nested too deeply to be read"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), 2, "a file that has to be text (UTF-8) is"),
        (ValueError("steps is 0;\nit takes more"), 2, "steps is 0; it takes more"),
        (KeyboardInterrupt(), 130, "stopped; all is kept"),
        (Ended(signal.SIGTERM), 143, "stopped; all is kept"),
    ],
    ids=lambda one: type(one).__name__ if isinstance(one, BaseException) else "",
)
def test_errors_are_sentences(error: BaseException, code: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert ran(lambda: raising(error), "all is kept") == code
    assert capsys.readouterr().err.startswith(f"zbench: {told}")


class Interrupted:
    """An object that gets a signal while Python lets go of it, where exceptions are ignored."""

    def __del__(self) -> None:
        signal.raise_signal(signal.SIGTERM)


def test_a_signal_that_comes_where_exceptions_are_ignored_is_not_lost(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        Interrupted()
        time.sleep(20)
        return 0

    assert ran(work, "all is kept") == 143
    assert capsys.readouterr().err == "zbench: stopped; all is kept\n"


def test_what_fails_as_a_callback_was_stopped_is_the_stop(capsys: pytest.CaptureFixture[str]) -> None:
    def work() -> int:
        Interrupted()
        raise RuntimeError("no compiled object yet")

    assert ran(work, "all is kept") == 143
    assert capsys.readouterr().err == "zbench: stopped; all is kept\n"
    with pytest.raises(RuntimeError):  # by itself it is none
        ran(lambda: raising(RuntimeError("no compiled object yet")), "")


@pytest.mark.parametrize("bug", [AssertionError("no"), TypeError("no"), KeyError("no"), ZeroDivisionError("no")])
def test_bugs_are_not(bug: Exception) -> None:
    with pytest.raises(type(bug)):
        ran(lambda: raising(bug), "")


def test_a_stop_is_known_by_what_came_of_it() -> None:
    """Compiled code makes a SystemError of a signal."""
    error = SystemError("cpython")
    error.__cause__ = Ended(signal.SIGTERM)
    stop = stop_in(error)
    assert stop is not None
    assert (exit_code(stop), stopped_by(stop)) == (143, "stopped by SIGTERM")
    assert stop_in(ValueError("no")) is None


def test_handlers_are_as_before_afterwards() -> None:
    before = [signal.getsignal(number) for number in ENDING]
    assert ran(lambda: 3, "") == 3
    assert [signal.getsignal(number) for number in ENDING] == before


def test_options_that_cannot_be_are_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    parser = Parser(prog="zbench")
    parser.add_argument("--steps", type=int)
    assert ran(lambda: parser.parse_args(["--steps", "x"]).steps, "") == 2
    assert capsys.readouterr().err == "zbench: argument --steps: invalid int value: 'x' (see --help)\n"


@pytest.mark.parametrize("number", ENDING)
@pytest.mark.parametrize(("module", "imported"), [("zbench", "hydra"), ("zbench.compare", "statistics")])
def test_a_signal_while_modules_are_imported_ends_silently(
    here: Path, number: signal.Signals, module: str, imported: str
) -> None:
    ended = f"import os\nos.kill(os.getpid(), {int(number)})\nraise ImportError('went on')\n"
    (here / f"{imported}.py").write_text(ended)
    command = [sys.executable, "-m", module, "x"]
    unheeded = partial(signal.signal, number, signal.SIG_DFL)  # nohup has SIGHUP ignored, here and in all children
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, preexec_fn=unheeded)
    assert (done.returncode, done.stdout, done.stderr) == (CODES[number], "", "")


def test_sigterm_ends_a_run_and_its_record(here: Path) -> None:
    command = [sys.executable, "-m", "zbench", "-m", "system=ring,allgather", *SMALL, "steps=100000"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert until(lambda: Path("r.jsonl").exists() and Path("r.jsonl").read_bytes().count(b"\n") > 3, 200)
            running.terminate()
            _, told = running.communicate(timeout=200)
        finally:
            running.kill()
    assert running.returncode == 143
    assert told.splitlines()[-1] == "zbench: stopped; finished steps are kept in r.jsonl"  # after progress, if any
    last = json.loads(Path("r.jsonl").read_text().splitlines()[-1])
    assert (last["kind"], last["status"]) == ("end", "interrupted")
    assert last["message"].endswith(": stopped by SIGTERM")


def test_sigterm_ends_the_ranks_too(here: Path) -> None:
    own = [
        "executor=torch",
        "executor.device=cpu",
        "cluster.gpus_per_node=2",
        "cluster.nics_per_node=1",
        "steps=100000",
    ]
    command = [sys.executable, "-m", "zbench", "system=ring", *SMALL, *own]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert until(lambda: Path("r.jsonl").exists() and Path("r.jsonl").read_bytes().count(b"\n") > 3, 200)
            ranks = descendants(running.pid)
            running.terminate()
            _, told = running.communicate(timeout=200)
        finally:
            running.kill()
    assert running.returncode == 143
    assert told.splitlines()[-1] == "zbench: stopped; finished steps are kept in r.jsonl"  # after progress, if any
    assert len(ranks) >= 4  # a fork server, a launcher and two ranks
    assert all_gone(ranks)
    assert json.loads(Path("r.jsonl").read_text().splitlines()[-1])["status"] == "interrupted"


@pytest.fixture
def record(here: Path) -> Path:
    path = here / "r.jsonl"
    write(path, start_line(), step_line(), end_line())
    return path


@pytest.mark.parametrize(
    ("line", "code", "told"),
    [
        ("compare r.jsonl | head -c 1", 0, ""),
        ("compare r.jsonl | true", 0, ""),
        ("compare r.jsonl >&-", 0, ""),
        ("compare r.jsonl 2>&-", 0, ""),
        ("compare r.jsonl <&- >&- 2>&-", 0, ""),
        ("compare r.jsonl >/dev/full", 1, "zbench: standard output: No space left on device\n"),
        ("compare --help >/dev/full", 1, "zbench: standard output: No space left on device\n"),
        ("compare r.jsonl s.jsonl 2>/dev/full", 2, ""),
        ("compare r.jsonl s.jsonl 2>&-", 2, ""),
    ],
)
def test_standard_streams_may_be_closed_full_or_left(record: Path, line: str, code: int, told: str) -> None:
    command = f"set -o pipefail; {sys.executable} -m zbench.{line}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stderr) == (code, told)


def test_what_an_encoding_lacks_is_an_escape(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")
    command = [sys.executable, "-m", "zbench.compare", "nö.jsonl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "record file 'n\\xf6.jsonl' cannot be read" in done.stderr
