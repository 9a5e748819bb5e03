"""The workflow of docs/ci.md, done: a repository with a planner of its own, zbench in a folder of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.project.test_tutorial import ROOT, blocks

SHORT = {
    "workload=longtail_128k,github": "workload=wikipedia",
    "steps=2": "steps=1",
}  # of its runs, for the time it takes


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the planner of the tutorial as system=mine."""
    files = dict(
        text.split("\n", 1)
        for kind, text in blocks(ROOT / "docs" / "tutorial" / "system.md")
        if kind in ("python", "yaml")
    )
    (tmp_path / "mine" / "conf" / "system").mkdir(parents=True)
    (tmp_path / "mine" / "node_rings.py").write_text(files["# mine/node_rings.py"])
    (tmp_path / "mine" / "conf" / "system" / "mine.yaml").write_text(files["# mine/conf/system/node_rings.yaml"])
    (tmp_path / "zbench").symlink_to(ROOT)
    return tmp_path


def commands() -> list[str]:
    """Returns the command lines that the workflow runs once it has installed zbench."""
    (text,) = [text for kind, text in blocks(ROOT / "docs" / "ci.md") if kind == "yaml"]
    job = yaml.safe_load(text)["jobs"]["gate"]
    assert job["env"] == {"PYTHONPATH": "mine"}
    install, *runs = [step["run"] for step in job["steps"] if "run" in step]
    assert install == "pip install -c zbench/constraints.txt -e zbench"
    return [" ".join(command.split()) for command in runs]


def done(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Runs a command where the folder `zbench` is a repository, not the package, which comes later on the path."""
    path = os.pathsep.join(("mine", str(ROOT)))
    words = [sys.executable if word == "python" else SHORT.get(word, word) for word in command.split()]
    return subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )


def test_the_workflow_passes_as_it_was_and_fails_on_a_slower_planner(repository: Path) -> None:
    run, compare = commands()
    assert set(SHORT) <= set(run.split())
    baseline = done(run.replace("out=new.jsonl", "out=baseline.jsonl"), repository)
    assert baseline.returncode == 0, baseline.stderr
    assert done(run, repository).returncode == 0
    same = done(compare, repository)
    assert (same.returncode, same.stdout.splitlines()[-1]) == (
        0,
        "2 runs compared by step_seconds, peak_bytes; worse by more than 2%: 0",
    )
    yaml_file = repository / "mine" / "conf" / "system" / "mine.yaml"
    yaml_file.write_text(yaml_file.read_text().replace("power: 1.0", "power: 2.0"))
    assert done(run, repository).returncode == 0
    worse = done(compare, repository)
    assert worse.returncode == 1
    assert worse.stdout.startswith("worse: mine on wikipedia, a800_4x8, llama_7b, simulated: step_seconds from ")
