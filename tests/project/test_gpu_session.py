"""scripts/gpu_session.sh: all of it with tiny sizes on the CPU, and its own doings with a python that only pretends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "gpu_session.sh"
# answers what the script asks by -c; a module named in $FAILS fails, one in $HANGS never ends
PRETENDS = r"""#!/bin/sh
case "$*" in
    *source_digest*) echo "${SOURCES:-abc}" ;;
    *is_available*) exit ${NO_CUDA:-0} ;;
    *get_device_name*) echo h200 ;;
    *)
        echo "$*" >> "$CALLS"
        case "${UNWRITTEN:-}$*" in -m\ zbench.calibrate*) for last; do :; done; echo "name: x" > "$last" ;; esac
        case "$*" in *"${HANGS:-nothing}"*) exec sleep 900 ;; esac
        case "$*" in *"${FAILS:-nothing}"*) echo "it broke"; exit 1 ;; esac
        echo "all is well"
esac
"""


def started(tmp_path: Path, *options: str, **settings: str) -> "subprocess.Popen[str]":
    """In a process group of its own, as a terminal's foreground is."""
    pretends = tmp_path / "python"
    pretends.write_text(PRETENDS)
    pretends.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(pretends), "CALLS": str(tmp_path / "calls"), **settings}
    command = [str(SCRIPT), "--out", str(tmp_path / "out"), *options]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True)


def session(tmp_path: Path, *options: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    with started(tmp_path, *options, **settings) as process:
        told, complaints = process.communicate(timeout=240)
    return subprocess.CompletedProcess(process.args, process.returncode, told, complaints)


def calls(tmp_path: Path) -> list[str]:
    """Modules that were run since the last look, but for what is compiled beside them whenever that is."""
    path = tmp_path / "calls"
    lines = path.read_text().splitlines() if path.exists() else []
    path.unlink(missing_ok=True)
    return [line.split()[1].removeprefix("zbench.") for line in lines if line != "-m zbench.warm"]


ALL = ["correctness", "calibrate", "warm", *["predicted"] * 7, *["speed"] * 3, "correctness", "correctness", "speed"]


def test_parts_that_are_done_are_not_repeated(tmp_path: Path) -> None:
    done = session(tmp_path, FAILS="zbench.calibrate")
    assert done.returncode == 1
    assert calls(tmp_path) == ALL
    table = done.stdout[done.stdout.index("part  ") :].splitlines()
    assert [line.split()[0] for line in table[1:4]] == ["kernels", "calibration", "warm"]
    assert "failed (1)" in table[2]
    assert table[2].endswith("it broke")
    assert table[1].endswith("all is well")
    assert (
        table[-1]
        == f"To keep the device: cp {tmp_path}/out/conf/cluster/device/h200_measured.yaml conf/cluster/device/"
    )
    again = session(tmp_path)
    assert again.returncode == 0
    assert calls(tmp_path) == ["calibrate", "predicted"]  # what failed, and the table
    assert again.stdout.count("done before") == len(ALL) - 2
    assert session(tmp_path, SOURCES="changed").returncode == 0
    assert calls(tmp_path) == ALL


def test_a_part_has_its_time(tmp_path: Path) -> None:
    done = session(tmp_path, HANGS="--parts kernels", LIMIT="1")
    assert done.returncode == 1
    assert "stopped after 1 s" in done.stdout
    assert calls(tmp_path) == ALL


def test_a_session_ends_in_time_and_goes_on_later(tmp_path: Path) -> None:
    done = session(tmp_path, "--seconds", "25", HANGS="--parts kernels")
    assert done.returncode == 1
    assert calls(tmp_path) == ["correctness"]
    table = done.stdout[done.stdout.index("part  ") :]
    assert "stopped after" in table
    assert table.count("not begun") == 8  # nothing is predicted before the calibration
    assert session(tmp_path).returncode == 0
    assert calls(tmp_path) == ALL


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_ends_the_part_and_the_session(tmp_path: Path) -> None:
    with started(tmp_path, HANGS="zbench.calibrate") as process:
        assert process.stdout is not None
        while "== calibration" not in process.stdout.readline():
            pass
        while "zbench.calibrate" not in (tmp_path / "calls").read_text():
            time.sleep(0.01)
        began = time.monotonic()
        os.killpg(process.pid, signal.SIGINT)
        table = process.communicate(timeout=240)[0]
    assert process.returncode == 130
    assert time.monotonic() - began < 200  # the part would have taken a quarter of an hour
    assert calls(tmp_path) == ALL[:2]
    assert [line.split()[:2] for line in table.splitlines() if line.startswith(("kernels", "plans", "calib"))] == [
        ["kernels", "done"],
        ["calibration", "interrupted"],
        ["plans", "not"],
    ]


def test_without_a_calibration_nothing_is_predicted(tmp_path: Path) -> None:
    done = session(tmp_path, FAILS="zbench.calibrate", UNWRITTEN="1")
    assert done.returncode == 1
    assert calls(tmp_path) == [part for part in ALL if part != "predicted"]
    assert "since the calibration is not done" in done.stdout


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ((), "torch finds no CUDA device on this machine; --device cpu tries the parts with tiny sizes"),
        (("--device", "tpu"), "--device is 'tpu'; it takes cuda or cpu"),
        (("--fast",), "--fast is no option; there are --device cuda|cpu, --out DIR and --seconds N"),
        (("--seconds", "20"), "--seconds is '20'; it takes a whole number above 20"),
        (("--seconds", "soon"), "--seconds is 'soon'; it takes a whole number above 20"),
    ],
)
def test_what_cannot_be_is_one_sentence(tmp_path: Path, options: tuple[str, ...], told: str) -> None:
    done = session(tmp_path, *options, NO_CUDA="1")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"gpu_session: {told}\n"
    assert not calls(tmp_path)


@pytest.mark.timeout(900)
def test_all_parts_on_the_cpu(tmp_path: Path) -> None:
    out = tmp_path / "results"
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [str(SCRIPT), "--device", "cpu", "--out", str(out)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    table = done.stdout[done.stdout.index("part  ") :]
    for line in ("80 of 80 cases are within", "1 of 1 cases are within", "cpu_measured.yaml", "1 measured workloads"):
        assert line in table
    assert json.loads((out / "speed.jsonl").read_text().splitlines()[-1])
    lines = [json.loads(line) for line in (out / "correctness.jsonl").read_text().splitlines()]
    assert len(lines) == 81
    assert [(one["sharing"], one["staged"], one["backend"]) for one in lines[-1]["ranks"]] == [(1, False, "gloo")]
    assert json.loads((out / "attention.jsonl").read_text().splitlines()[0])["seconds"] > 0
    record = (out / "predicted" / "fixed_4k.jsonl").read_text()
    assert '"kind":"about"' in record
    assert '"attention_forward_causal":{"128":' in record  # simulated on the device that was measured
