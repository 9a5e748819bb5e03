"""A wheel in a fresh environment: what it holds, what it pulls in, and that its command works from any folder."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "build", "results", "tests", "docs", "wandb")


def ran(*words: str | Path, folder: Path, code: int = 0) -> str:
    """What a command prints, run in `folder` as a user's shell would, without this checkout on Python's path."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "NUMBA"))}
    done = subprocess.run(words, cwd=folder, env=known, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def pip_of(scripts: Path) -> tuple[str | Path, ...]:
    return sys.executable, "-m", "pip", "--python", scripts / "python"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, as building leaves a folder behind that later builds would take files from."""
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "zbench", symlinks=True, ignore=LEFT_OUT)
    ran(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", folder, folder / "zbench", folder=folder)
    (found,) = folder.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def scripts(wheel: Path) -> Path:
    """The folder of commands of a fresh environment that has the wheel and what it depends on. Its pip is ours."""
    ran(sys.executable, "-m", "venv", "--without-pip", "fresh", folder=wheel.parent)
    found = wheel.parent / "fresh" / "bin"
    install = ("install", "--quiet", "--no-compile", "-c", ROOT / "constraints.txt")
    ran(*pip_of(found), *install, wheel, folder=wheel.parent)
    return found


@pytest.fixture(scope="module")
def compiled(scripts: Path) -> None:
    """Functions that this checkout has compiled are the installed package's, too: compiling them takes a minute of a
    core, and is no matter of the wheel. numba takes them where a source has the time and the size that it had."""
    (installed,) = scripts.parent.glob("lib/python*/site-packages/zbench")
    for source in installed.rglob("*.py"):
        own = ROOT / "zbench" / source.relative_to(installed)
        shutil.copystat(own, source)
        for found in own.parent.glob(f"__pycache__/{own.stem}.*.nb?"):
            (source.parent / "__pycache__").mkdir(exist_ok=True)
            shutil.copy(found, source.parent / "__pycache__")


def test_it_holds_one_package_with_all_of_conf(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {name.split("/")[0].partition("-")[0] for name in names} == {"zbench"}
    inside = {name.removeprefix("zbench/") for name in names}
    sources = [path.relative_to(ROOT) for folder in ("systems", "workloads") for path in (ROOT / folder).glob("*.py")]
    yamls = [path.relative_to(ROOT) for path in (ROOT / "conf").rglob("*.yaml")]
    assert {path.as_posix() for path in sources + yamls} <= inside
    assert {path.relative_to(ROOT / "zbench").as_posix() for path in (ROOT / "zbench").rglob("*.py")} <= inside


def test_it_needs_neither_torch_nor_trackers(scripts: Path) -> None:
    listed = ran(*pip_of(scripts), "list", "--format", "json", folder=scripts)
    installed = {package["name"] for package in json.loads(listed.splitlines()[0])}
    assert "zbench" in installed
    assert not installed & {"torch", "wandb", "tensorboard", "matplotlib", "plotly", "pyarrow"}


@pytest.mark.usefixtures("compiled")
def test_its_command_works_from_any_folder(scripts: Path, tmp_path: Path) -> None:
    assert "python -m zbench.compare" in ran(scripts / "zbench", "--help", folder=tmp_path)
    words = ("system=ring", "workload=longtail_128k", "steps=1", "baseline=null")
    assert "SIMULATED on a800_4x8" in ran(scripts / "zbench", *words, folder=tmp_path)
    said = ran(scripts / "python", "-m", "zbench.compare", "results/runs.jsonl", folder=tmp_path)
    assert "ring" in said
    said = ran(scripts / "zbench", "executor=torch", "cluster=local_2x2", "model=tiny", folder=tmp_path, code=2)
    assert said.strip().endswith("pip install 'zbench[torch]'")
    assert len(said.strip().splitlines()) == 1
