"""Which tracker a run has where packages are missing, and what a sweep's runs have in common at a tracker."""

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.run.test_main import SMALL, call
from tests.track.test_track import FakeWandb
from zbench.console.extras import installed
from zbench.record.fingerprint import ROOT
from zbench.record.flops import Facts
from zbench.record.record import read
from zbench.track.names import nic_utilisation, step_figures, tracked

FEW = [word for word in SMALL if not word.startswith("tracker")]
WITHOUT = """
import sys
from importlib.abc import MetaPathFinder
class Missing(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from zbench.__main__ import main
code = main()
print("imported", sorted({{"wandb", "tensorboard"}} & set(sys.modules)))
sys.exit(code)
"""


def run(tmp_path: Path, *arguments: str, without: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """zbench in a process of its own, in which the packages `without` cannot be found."""
    (tmp_path / "run.py").write_text(WITHOUT.format(packages=without))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "WANDB_MODE": "offline"}
    line = [sys.executable, "run.py", "system=ring", *FEW, "out=r.jsonl", *arguments]
    return subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=240, check=False)


def test_without_wandb_the_default_is_none_and_says_so(tmp_path: Path) -> None:
    done = run(tmp_path, without=("wandb",))
    assert done.returncode == 0, done.stderr
    assert "Tracker: none, as wandb is not installed (pip install 'zbench[track]').\n" in done.stdout
    (found,) = read(str(tmp_path / "r.jsonl"))[0]
    assert found.start["config"]["choices"]["tracker"] == "none"
    assert found.start["config"]["tracker"] == {"_target_": "zbench.track.Nothing"}
    assert {path.name for path in tmp_path.iterdir()} == {"run.py", "r.jsonl"}


def test_with_wandb_the_default_is_wandb_under_the_same_keys(tmp_path: Path) -> None:
    done = run(tmp_path, "tracker.project=mine", "tracker.dir=here")
    assert done.returncode == 0, done.stderr
    assert "Tracker: wandb, offline in here/wandb.\n" in done.stdout
    (found,) = read(str(tmp_path / "r.jsonl"))[0]
    assert found.start["config"]["choices"]["tracker"] == "wandb"
    assert found.start["config"]["tracker"] == {"_target_": "zbench.track.Wandb", "project": "mine", "dir": "here"}
    assert list((tmp_path / "here" / "wandb").glob("offline-run-*"))


def test_a_tracker_by_name_says_where_its_runs_are(tmp_path: Path) -> None:
    done = run(tmp_path, "tracker=tensorboard", "tracker.dir=board")
    assert done.returncode == 0, done.stderr
    assert "Tracker: tensorboard, in board; tensorboard --logdir board shows them.\n" in done.stdout


@pytest.mark.parametrize("tracker", ["wandb", "tensorboard"])
def test_a_tracker_whose_package_is_missing_is_one_sentence_before_anything_runs(tracker: str, tmp_path: Path) -> None:
    done = run(tmp_path, f"tracker={tracker}", without=("wandb", "tensorboard"))
    assert done.returncode == 2
    told = f"tracker={tracker} needs the package {tracker}, which is not installed: pip install 'zbench[track]'"
    assert done.stderr == f"zbench: {told}\n"
    assert not (tmp_path / "r.jsonl").exists()


def test_without_a_tracker_no_package_of_one_is_imported(tmp_path: Path) -> None:
    done = run(tmp_path, "tracker=none")
    assert done.stdout.endswith("imported []\n")
    assert "Tracker:" not in done.stdout


def test_a_folder_of_a_packages_name_is_not_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nothing_of_this_name").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert not installed("nothing_of_this_name")
    assert installed("numpy")
    assert installed("json")


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeWandb:
    fake = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", fake)  # type: ignore[arg-type]
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.chdir(tmp_path)
    return fake


def test_the_runs_of_a_sweep_share_a_group_and_have_their_own_tags(
    wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(monkeypatch, "-m", "system=ring,allgather", *FEW, "out=r.jsonl") == 0
    assert call(monkeypatch, "system=ring", *FEW, "out=r.jsonl") == 0
    first, second, other = wandb.asked
    assert first["group"] == second["group"] != other["group"]
    assert {asked["job_type"] for asked in wandb.asked} == {"simulated"}
    assert second["tags"] == ["allgather", "longtail_128k", "a800_4x8", "tiny"]
    assert [run.start["group"] for run in read("r.jsonl")[0]] == [asked["group"] for asked in wandb.asked]


def test_the_runs_of_an_experiment_have_its_name_for_a_group(wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch) -> None:
    small = ["system=ring", "workload=github", "cluster=a800_4x8", "tokens_per_gpu=64", "model=tiny"]
    assert call(monkeypatch, "experiment=all_systems", *small, "steps=1", "out=r.jsonl", "tracker=wandb") == 0
    assert {asked["group"] for asked in wandb.asked} == {"all_systems"}


def test_every_nic_of_a_simulated_step_is_told_by_direction(wandb: FakeWandb, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [word for word in FEW if "num_nodes" not in word]
    assert call(monkeypatch, "system=ring", *few, "cluster.num_nodes=2", "out=r.jsonl") == 0
    ((_, told),) = wandb.run.logged
    names = {f"nic/node{node}/nic{nic}/{way}" for node in range(2) for nic in range(4) for way in ("tx", "rx")}
    assert {name for name in told if name.startswith("nic/")} == names
    assert sum(told[name] for name in names) / len(names) == pytest.approx(told["nic_utilization"])
    (run,) = read("r.jsonl")[0]
    size, rate = run.steps[0]["nic_tx_bytes"][5], run.start["facts"]["nic_bandwidth"]
    assert told["nic/node1/nic1/tx"] == pytest.approx(size / (rate * run.steps[0]["seconds"]))
    full = {**run.steps[0], "out_of_memory": True}  # such a step has no time
    assert not any(name.startswith("nic/") for name in step_figures(Facts.of(run.start["facts"]), full))


def test_nics_are_numbered_within_their_node() -> None:
    facts: Any = SimpleNamespace(nic_bandwidth=10.0, nics_per_node=2)
    line = {"seconds": 2.0, "nic_tx_bytes": [20, 10, 5], "nic_rx_bytes": [0, 0, 1]}
    assert nic_utilisation(facts, line) == {
        "nic/node0/nic0/tx": 1.0,
        "nic/node0/nic1/tx": 0.5,
        "nic/node1/nic0/tx": 0.25,
        "nic/node0/nic0/rx": 0.0,
        "nic/node0/nic1/rx": 0.0,
        "nic/node1/nic0/rx": 0.05,
    }


def test_runs_recorded_before_groups_have_their_command_in_common() -> None:
    def group(**changes: Any) -> str:
        config = {"choices": {"executor": "torch", **changes.pop("choices", {})}}
        return tracked({"run": "a", "config": config, "fingerprint": {}, "command": "one", **changes}).group

    assert group() == group(run="b") != group(command="two")
    assert group(choices={"experiment": "all_systems"}) == "all_systems"
    assert group(group="told") == "told"


def test_tags_are_no_longer_than_wandb_takes_and_each_there_once() -> None:
    choices = {"system": "s" * 70, "workload": "w", "cluster": "w", "model": None, "executor": "simulated"}
    assert tracked({"run": "a", "config": {"choices": choices}, "fingerprint": {}}).tags == ("s" * 64, "w")
