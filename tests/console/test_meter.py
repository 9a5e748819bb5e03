"""Progress of runs and sweeps."""

import io
import sys

import pytest

from zbench.console import meter
from zbench.console.meter import Meter, Sweep


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(meter.time, "monotonic", lambda: now[0])
    return now


def test_a_sweep_tells_its_job_and_what_is_left_by_the_mean_so_far(clock: list[float]) -> None:
    sweep = Sweep(5, job=1)
    assert sweep.told() == "1 of 5: "
    sweep.job, clock[0] = 3, 120.0
    assert sweep.told() == "3 of 5, about 30 s left: "
    clock[0] = 100.0 + 400
    assert sweep.told() == "3 of 5, about 10 min left: "
    clock[0] = 100.0 + 8000
    assert sweep.told() == "3 of 5, about 3.3 h left: "
    assert Sweep(None, job=7).told() == "job 7: "


def test_without_a_terminal_it_is_a_line_every_five_seconds_over_all_jobs(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = Sweep(4)
    for _ in range(4):
        sweep.job += 1
        with Meter(2, sweep) as one:
            for step in range(2):
                clock[0] += 1.0
                one.show("ring", step + 1, 2.5)
    said = capsys.readouterr().err.splitlines()
    assert said == ["3 of 4, about 5 s left: ring: step 1 of 2, loss 2.5000"]


def test_a_job_alone_tells_its_system(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with Meter(2) as one:
        one.show("ring", 0)
        clock[0] += 5.0
        one.show("ring", 1)
    assert capsys.readouterr().err == "ring: step 1 of 2\n"


def test_bars_of_a_sweep_go_away_and_a_runs_own_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    left = []
    for sweep in (None, Sweep(3, job=2)):
        out = Terminal()
        monkeypatch.setattr(sys, "stderr", out)
        monkeypatch.setenv("TERM", "xterm")
        with Meter(1, sweep) as one:
            one.show("ring", 1)
        left.append(out.getvalue())
    assert "ring" in left[0]
    assert "2 of 3, about" in left[1]
    assert [text.count("\x1b[2K") for text in left][1] > left[0].count("\x1b[2K")
