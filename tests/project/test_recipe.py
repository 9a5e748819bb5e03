"""docs/systems/adding.md, done by a new user: its files written to an empty folder, its commands run there."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def recipe() -> tuple[dict[str, str], list[str]]:
    """(files by the path in their first line, command lines) of the page."""
    section = (ROOT / "docs" / "systems" / "adding.md").read_text()
    files, commands = {}, []
    for kind, text in re.findall(r"```(\w*)\n(.*?)```", section, re.DOTALL):
        if kind in ("python", "yaml"):
            name = text.split("\n", 1)[0].removeprefix("# ")
            files[name] = text
        else:
            commands += text.strip().split("\n")
    return files, commands


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    where = tmp_path_factory.mktemp("user")
    for name, text in recipe()[0].items():
        path = where / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return where


def run(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command as typed, with this project and this interpreter found as if installed."""
    command = command.replace("PYTHONPATH=mine", f"PYTHONPATH=mine:{ROOT}")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={**os.environ, "PATH": path, "COLUMNS": "120"},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture(scope="module")
def runs(folder: Path) -> list[subprocess.CompletedProcess[str]]:
    """What the page's two runs say; the third command reads their records."""
    return [run(command, folder) for command in recipe()[1][:2]]


def test_it_is_one_short_file_and_one_yaml() -> None:
    files, commands = recipe()
    assert sorted(Path(name).suffix for name in files) == [".py", ".yaml"]
    assert all(len(text.split("\n")) < 40 for text in files.values())
    assert len(commands) == 3


def test_it_runs_and_is_compared_with_the_baseline(folder: Path, runs: list[subprocess.CompletedProcess[str]]) -> None:
    done = runs[0]
    assert done.returncode == 0, done.stderr
    assert "roundrobin" in done.stdout
    assert "static_best" in done.stdout
    assert "SIMULATED" in done.stdout
    assert "out of memory" not in done.stdout.lower()
    assert (folder / "results" / "runs.jsonl").is_file()


def test_a_setting_of_its_yaml_can_be_changed_and_memory_has_a_verdict(
    runs: list[subprocess.CompletedProcess[str]],
) -> None:
    done = runs[1]
    assert done.returncode == 0, done.stderr
    assert "out of memory" in done.stdout.lower()


@pytest.mark.usefixtures("runs")
def test_its_page_makes_its_plans_again_where_its_class_is_trusted(folder: Path) -> None:
    """Without --trust the page says why it does not look into the steps."""
    command = recipe()[1][2]
    done = run(command, folder)
    assert done.returncode == 0, done.stderr
    assert "--trust" not in done.stderr
    refused = run(command.replace(" --trust", ""), folder)
    assert "--trust runs it" in refused.stdout + refused.stderr


def test_a_setting_it_does_not_have_is_one_sentence(folder: Path) -> None:
    done = run(recipe()[1][1].replace("system.stride=3", "+system.pace=3"), folder)
    assert done.returncode != 0
    assert "pace" in done.stderr
    assert "Traceback" not in done.stderr
