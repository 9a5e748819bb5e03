"""The command: composed configurations, sweeps, exit codes, and one sentence for each mistake."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from omegaconf import OmegaConf

from tests.helpers.processes import until
from zbench import __main__, __version__
from zbench.console import jobs
from zbench.describe.strategy import MODEL_FIELDS, STRATEGY_GROUPS
from zbench.record.fingerprint import ROOT
from zbench.record.record import Run, read
from zbench.record.rows import SAME, label, rows

SMALL = ["steps=1", "tracker=none", "baseline=null", "model=tiny", "tokens_per_gpu=64", "cluster.num_nodes=1"]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, and no environment of the user's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    return tmp_path


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["zbench", *arguments])
    return __main__.main()


def recorded(path: str = "r.jsonl") -> list[Run]:
    runs, problems = read(path)
    assert problems == []
    return runs


def test_one_command(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "system=allgather", *SMALL, "baseline=ring") == 0
    assert "SIMULATED on a800_4x8: 1 node x 8" in capsys.readouterr().out
    assert [path.name for path in here.iterdir()] == ["results"]
    ring, own = recorded("results/runs.jsonl")
    assert own.start["config"]["choices"]["system"] == "allgather"
    assert ring.start["config"]["choices"]["system"] == "ring"
    assert own.start["config"]["changes"]["cluster"] == {"num_nodes": 1}
    assert own.start["command"].startswith("python -m zbench system=allgather steps=1")
    row = rows([ring, own])[1]
    assert row["cluster"] == "a800_4x8 num_nodes=1"
    assert row["speedup"] > 0


def test_what_a_system_takes_from_its_workload_is_no_change_of_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["workload.context_limit=65536", *SMALL, "baseline=null"]
    assert call(monkeypatch, "system=mesh", *words) == 0
    assert call(monkeypatch, "system=mesh", "system.context_limit=65536", *words) == 0
    taken, given = recorded("results/runs.jsonl")
    assert taken.start["config"]["system"] == given.start["config"]["system"]
    assert taken.start["config"]["changes"]["workload"]["context_limit"] == 65536
    assert (taken.start["config"]["changes"]["system"], given.start["config"]["changes"]["system"]) == (
        {},
        {"context_limit": 65536},
    )


@pytest.mark.parametrize("words", [["--version"], ["--vers"], [*SMALL, "--version"]])
def test_its_version_is_its_own_and_not_hydra_s(
    words: list[str], here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *words) == 0
    assert capsys.readouterr().out == f"zbench {__version__}\n"
    assert list(here.iterdir()) == []


def test_a_sweep_runs_the_baseline_once_and_ends_with_one_table(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sweep = ["system=allgather,ring", "-m", *SMALL, "baseline=ring", "out=r.jsonl"]
    assert call(monkeypatch, *sweep) == 0
    assert [run.start["config"]["choices"]["system"] for run in recorded()] == ["ring", "allgather", "ring"]
    out, _ = capsys.readouterr()
    assert out.count("tokens/s") == out.count("MFU by convention") == out.count("Record: r.jsonl") == 1
    assert [line.split()[:2] for line in out.splitlines() if line[:1].isdigit()] == [
        ["1", "ring"],
        ["2", "allgather"],
        ["3", "ring"],
    ]
    assert out.count("SIMULATED on a800_4x8: 1 node ") == 1
    assert [path.name for path in here.iterdir()] == ["r.jsonl"]


def test_a_baseline_has_keys_of_its_own(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two of them in one record each run's speed-up is over its own, which is the same as a run of that system."""
    words = [*SMALL, "baseline=mesh", "baseline_system.method=ulysses", "out=r.jsonl"]
    assert call(monkeypatch, "-m", "system=ring", *words, "baseline_system.degree=2,4") == 0
    assert call(monkeypatch, "system=mesh", "system.method=ulysses", "system.degree=4", *SMALL, "out=r.jsonl") == 0
    two, over_two, four, over_four, alone = recorded()
    for base, own, degree in ((two, over_two, 2), (four, over_four, 4)):
        told = base.start["config"]["system"]
        assert (told["method"], told["degree"], told["batching"]) == ("ulysses", degree, "best_fit")
        assert own.start["baseline"] == {"name": f"mesh method=ulysses degree={degree}", "system": told}
        assert own.start["config"]["system"] == OmegaConf.load(ROOT / "conf/system/ring.yaml")
    assert alone.start["config"]["system"] == four.start["config"]["system"]
    found = rows([two, over_two, four, over_four])
    seconds = [row["step_seconds"] for row in found]
    assert len(set(seconds)) == 3
    assert [row["speedup"] for row in found] == [1, seconds[0] / seconds[1], 1, seconds[2] / seconds[3]]
    assert [row["system"] for row in found] == [row["baseline"] if row["speedup"] == 1 else "ring" for row in found]


def test_an_experiment_sets_and_sweeps_over_the_baselines_keys(
    here: Path, mine: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "mine" / "conf" / "experiment" / "b.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /system: ring\n"
        "baseline: mesh\nbaseline_system: {method: ulysses}\n"
        "hydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      ++baseline_system.degree: 2,8\n"
    )
    words = [word for word in mine if not word.startswith("baseline=")]
    assert call(monkeypatch, *words, "experiment=b") == 0
    assert [row["system"] for row in rows(recorded())] == [
        "mesh method=ulysses degree=2",
        "ring",
        "mesh method=ulysses degree=8",
        "ring",
    ]


@pytest.mark.parametrize(
    ("name", "less", "runs"),
    [
        ("ablation", ["cluster.num_nodes=2", "system.remap=true", "system.routed_transfers=serial"], 9),
        ("all_systems", ["system=static_best,flexsp", "workload=github,byted_2m", "cluster.num_nodes=1"], 12),
    ],
)
def test_the_projects_experiments_are_sweeps_that_leave_only_their_record(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    name: str,
    less: list[str],
    runs: int,
) -> None:
    assert call(monkeypatch, f"experiment={name}", *less, "steps=1", "tokens_per_gpu=64", "out=r.jsonl") == 0
    done = recorded()
    assert (len(done), {run.status for run in done}) == (runs, {"finished"})
    assert "SIMULATED" in capsys.readouterr().out
    assert [path.name for path in here.iterdir()] == ["r.jsonl"]


@pytest.mark.parametrize("experiment", ["all_systems", "free"])
def test_the_experiments_of_all_systems_have_all_systems(experiment: str) -> None:
    named = OmegaConf.load(ROOT / f"conf/experiment/{experiment}.yaml").hydra.sweeper.params.system.split(",")
    assert sorted(named) == sorted(path.stem for path in (ROOT / "conf/system").glob("*.yaml"))
    assert named[0] == "static_best"  # the baseline is then a run of its own, and is not run again


def test_the_experiment_of_standing_has_all_systems_but_peers_that_plan_as_another() -> None:
    named = OmegaConf.load(ROOT / "conf/experiment/nodewise.yaml").hydra.sweeper.params.system.split(",")
    every = {path.stem for path in (ROOT / "conf/system").glob("*.yaml")}
    assert sorted(named) == sorted(every - {"hybrid_dp_megatron", "ulysses_deepspeed"})


def test_a_sweep_goes_on_after_a_bad_job_and_says_so(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "-m", "system=ring", *SMALL, "out=r.jsonl", "seed=-1,1") == 2
    told = capsys.readouterr().err.splitlines()[0]  # below it may stand how far the sweep is
    assert told.startswith("zbench: system=ring steps=1 ")
    assert told.endswith("seed=-1: seed is -1; it takes a whole number of at least 0")
    assert len(recorded()) == 1


def test_the_user_can_have_the_traceback(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(ValueError, match="steps is 0"):
        call(monkeypatch, "steps=0")
    with pytest.raises(Exception, match="Could not find 'system/nonesuch'"):
        call(monkeypatch, "system=nonesuch")


def test_a_full_disk_is_one_sentence(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = os.write

    def full(descriptor: int, data: bytes) -> int:
        if Path(f"/proc/self/fd/{descriptor}").resolve() == here / "full.jsonl":
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", full)
    assert call(monkeypatch, "system=ring", *SMALL, "out=full.jsonl") == 1
    assert capsys.readouterr().err == (
        "zbench: the record full.jsonl cannot be written: No space left on device; the steps already in it are kept\n"
    )


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["out=r.jsonl", "trace=r.jsonl"], "trace is 'r.jsonl'; that file is not a trace of zbench's"),
        (["out=new", "trace=new"], "trace is 'new', the same file as out; each takes one of its own"),
        (["out=new", "trace=./link"], "trace is './link', the same file as out; each takes one of its own"),
        (["out=r.jsonl", "trace=hard"], "trace is 'hard'; that file is not a trace of zbench's"),
        (["out=thesis.txt"], "out is 'thesis.txt'; that file is not a record of runs, so nothing is added to it"),
        (["out=t.json"], "out is 't.json'; that file is not a record of runs"),
        (["out=lengths.jsonl", "workload=lengths_file", "workload.path=lengths.jsonl"], "is not a record of runs"),
        (["out=new", "trace=/dev/full"], "trace is '/dev/full'; that is a device, and it takes a file"),
        (["out=/dev/null"], "out is '/dev/null'; that is a device, and it takes a file"),
        (["out=pipe"], "out is 'pipe'; that is a pipe, and it takes a file"),
        (["out=new", "trace=."], "trace is '.'; that is a folder, and it takes a file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_nothing_is_destroyed_by_a_slip(
    arguments: list[str], reason: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    contents = {
        "r.jsonl": '{"kind":"start","run":"r1"}\n',
        "thesis.txt": "all of it",
        "lengths.jsonl": '{"length": 3}\n',
        "t.json": '{"displayTimeUnit": "ms", "otherData": {"simulated": true, "cluster": "c"}, "traceEvents": []}',
    }
    for name, text in contents.items():
        Path(name).write_text(text)
    Path("hard").hardlink_to("r.jsonl")
    Path("link").symlink_to("new")
    os.mkfifo("pipe")
    before = sorted((path.name, path.lstat().st_mode) for path in here.iterdir())
    assert call(monkeypatch, "system=ring", *SMALL, *arguments) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert reason in err
    assert sorted((path.name, path.lstat().st_mode) for path in here.iterdir()) == before
    assert {name: Path(name).read_text() for name in contents} == contents


def test_a_run_of_an_older_record_stands_for_a_new_one(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It names its parts as they were called then."""
    assert call(monkeypatch, "system=ring", *SMALL, "out=r.jsonl") == 0
    text = Path("r.jsonl").read_text()
    assert "zbench.systems." in text
    Path("r.jsonl").write_text(text.replace("zbench.systems.", "systems.").replace("zbench.workloads.", "workloads."))
    assert call(monkeypatch, "system=allgather", *SMALL, "baseline=ring", "out=r.jsonl") == 0
    assert "Baseline ring was not run again: the record has it, from line 1 on." in capsys.readouterr().out


def as_before_strategies(line: str) -> str:
    """Returns a record's line as it was when sharding, recomputation and degrees were keys of the model."""
    start = json.loads(line)
    if start["kind"] == "start":
        config = start["config"]
        groups = {group: config.pop(group) for group in STRATEGY_GROUPS}
        config["model"] |= {field: groups[group][key] for field, (group, key) in MODEL_FIELDS.items()}
    return json.dumps(start) + "\n"


def test_a_strategy_is_named_with_its_model_as_records_had_it(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a run of such a record stands for the same one of today."""
    words = [
        "sharding=none",
        "recompute=full",
        "parallel.tensor_parallel=2",
        "model.micro_batches=3",
        "cluster=a800_2x8",
    ]
    assert call(monkeypatch, "system=ring", *SMALL, "out=plain.jsonl") == 0
    assert call(monkeypatch, "system=ring", *SMALL, *words, "out=r.jsonl") == 0
    (plain,), (own,) = recorded("plain.jsonl"), recorded()
    assert plain.start["config"]["changes"]["model"] == {}  # tiny's own yaml chooses ZeRO-1
    said = rows([own])[0]["model"]
    assert said == "tiny recompute=full sharding=none tensor_parallel=2 micro_batches=3"
    Path("r.jsonl").write_text("".join(map(as_before_strategies, Path("r.jsonl").read_text().splitlines())))
    (older,) = recorded()
    assert rows([older]) == rows([own])
    assert {key: older.start["config"][key] for key in SAME} == {key: own.start["config"][key] for key in SAME}
    assert (
        call(
            monkeypatch,
            "system=allgather",
            "baseline=ring",
            *SMALL[:1],
            *SMALL[3:],
            *words,
            "tracker=none",
            "out=r.jsonl",
        )
        == 0
    )
    assert [label(run.start, "system") for run in recorded()] == ["ring", "allgather"]


def test_a_group_s_own_keys_are_told_by_their_names(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["executor=simulated", "sharding=zero3", "sharding.window=2", "cluster=a800_2x8"]
    assert call(monkeypatch, "system=ring", *SMALL, *words, "out=r.jsonl") == 0
    (own,) = recorded()
    assert rows([own])[0]["model"] == "tiny sharding=zero3 sharding.window=2"
    assert (rows([own])[0]["executor"], own.start["config"]["executor"].keys()) == ("simulated", {"_target_"})


def test_help_lists_groups_and_keys(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as done:
        call(monkeypatch, "--help")
    assert done.value.code == 0
    told = capsys.readouterr().out.splitlines()
    for group in ("system", "workload", "cluster", "model", *STRATEGY_GROUPS, "executor", "tracker"):
        (line,) = [line for line in told if line.startswith(f"{group}: ")]
        names = {path.stem for path in (ROOT / "conf" / group).glob("*.yaml")}
        assert {name.strip() for name in line.partition(": ")[2].split(",")} == names
    for key in ("steps", "seed", "tokens_per_gpu", "out", "baseline", "baseline_system", "trace", "free_groups"):
        assert len([line for line in told if line.startswith(f"{key} ")]) == 1


MINE = """
from dataclasses import dataclass
from typing import Any

from zbench.systems.ring import Ring


@dataclass(frozen=True)
class Mine:
    cost: Any
    how: str

    def plan(self, batch):
        if self.how == "bug":
            raise KeyError("a bug of mine")
        return Ring(self.cost).plan(batch)
"""


@pytest.fixture
def mine(here: Path) -> list[str]:
    """A third party's folder: one file and one yaml, and an experiment."""
    for group in ("system", "experiment"):
        (here / "mine" / "conf" / group).mkdir(parents=True)
    (here / "mine" / "third_party_system.py").write_text(MINE)
    (here / "mine" / "conf" / "system" / "mine.yaml").write_text("_target_: third_party_system.Mine\nhow: well\n")
    (here / "mine" / "conf" / "experiment" / "e.yaml").write_text(
        "# @package _global_\ndefaults:\n  - override /system: mine\n  - override /cluster/device: h100_80g\n"
        "seed: 5\nsystem: {how: fast}\n"
    )
    return ["--config-dir", "mine/conf", *SMALL, "out=r.jsonl"]


def test_a_third_partys_system_and_experiment(
    here: Path, mine: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend("mine")
    assert call(monkeypatch, *mine, "system=mine", "baseline=ring") == 0
    assert call(monkeypatch, *mine, "system=ring", "baseline=mine") == 0
    assert call(monkeypatch, *mine, "experiment=e") == 0
    found = rows(recorded())
    assert [row["system"] for row in found] == ["ring", "mine", "mine", "ring", "mine how=fast"]
    assert [row["speedup"] for row in found[:4]] == [1.0, 1.0, 1.0, 1.0]
    assert found[4]["seed"] == 5
    assert found[4]["cluster"] == "a800_4x8 num_nodes=1 device=h100_80g"


def test_a_bug_of_a_system_is_told_with_its_line(
    here: Path, mine: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend("mine")
    assert call(monkeypatch, *mine, "system=mine", "system.how=bug") == 1
    told = capsys.readouterr().err
    assert told.startswith("zbench: third_party_system.Mine.plan failed with KeyError: 'a bug of mine' (/")
    assert told.endswith("/mine/third_party_system.py line 15); HYDRA_FULL_ERROR=1 shows the traceback\n")
    monkeypatch.setenv("HYDRA_FULL_ERROR", "1")
    with pytest.raises(ValueError, match="a bug of mine") as raised:
        call(monkeypatch, *mine, "system=mine", "system.how=bug")
    assert isinstance(raised.value.__cause__, KeyError)
    assert [run.status for run in recorded()] == ["failed", "failed"]


def test_a_process_of_its_own_needs_no_torch(here: Path, mine: list[str]) -> None:
    """It is started as a user starts it, from another folder, with torch out of reach."""
    (here / "mine" / "torch.py").write_text("raise ImportError('torch was imported')\n")
    command = [sys.executable, "-m", "zbench", *mine, "system=mine", "tracker=wandb"]
    environment = {**os.environ, "PYTHONPATH": f"mine{os.pathsep}{ROOT}", "WANDB_MODE": "offline", "HOME": str(here)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    told = re.sub(r"mine: step \d of 1.*\n", "", done.stderr)  # progress, which a slow machine shows
    assert (done.returncode, told) == (0, "")
    assert "SIMULATED" in done.stdout
    assert sorted(path.name for path in here.iterdir() if not path.name.startswith(".")) == [
        "mine",
        "r.jsonl",
        "results",
    ]
    assert [path.name for path in (here / "results").iterdir()] == ["wandb"]


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_keeps_what_is_done(here: Path) -> None:
    command = [sys.executable, "-m", "zbench", "-m", "system=ring,allgather", *SMALL, "steps=100000", "out=r.jsonl"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert until(lambda: Path("r.jsonl").exists() and Path("r.jsonl").read_bytes().count(b"\n") > 3, 200)
            running.send_signal(signal.SIGINT)
            _, told = running.communicate(timeout=200)
        finally:
            running.kill()
    stopped = told.splitlines()[-1]  # above it may stand how far the sweep was
    assert (running.returncode, stopped) == (130, "zbench: stopped; finished steps are kept in r.jsonl")
    (kept,) = recorded()
    assert kept.status == "interrupted"
    assert json.loads(Path("r.jsonl").read_text().splitlines()[-1])["kind"] == "end"


@pytest.mark.parametrize(
    ("arguments", "number"),
    [
        (["-m", "system=ring,usp", "workload=fixed,github", "+workload.length=range(1,4)", "steps=2"], 12),
        (["-m", "system=ring", "--config-dir=mine=conf"], 1),
        (["experiment=all_systems", "system=ring,usp"], 2 * 3 * 5),
        (["-m", "system=ring,usp", "seed=range(5,0,-2)", "workload.mu=range(0.5,2,0.5)"], 2 * 3 * 3),
    ],
)
def test_the_jobs_of_a_sweep_are_counted_before_they_run(
    arguments: list[str], number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    experiment = OmegaConf.load(ROOT / "conf/experiment/all_systems.yaml").hydra.sweeper.params
    target = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
    params = experiment if "experiment=all_systems" in arguments else None
    sweeper = OmegaConf.create({"_target_": target, "params": params})
    monkeypatch.setattr(jobs.HydraConfig, "get", lambda: SimpleNamespace(sweeper=sweeper))
    assert jobs.count(arguments) == number
    sweeper["_target_"] = "hydra_plugins.optuna.Sweeper"
    assert jobs.count(arguments) is None


def test_a_job_for_each_value_of_each_key_is_composed_before_the_first_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    target = "hydra._internal.core_plugins.basic_sweeper.BasicSweeper"
    sweeper = OmegaConf.create({"_target_": target, "params": {"system": "ring,usp,fcp", "seed": "range(0,2)"}})
    of = SimpleNamespace(sweeper=sweeper, job=SimpleNamespace(config_name="config"))
    composed: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(jobs.HydraConfig, "get", lambda: of)
    monkeypatch.setattr(jobs.hydra, "compose", lambda name, words: composed.append((name, words)))
    jobs.compose_values(["-m", "steps=range(2,300)", "seed=4,5", "hydra.sweep.dir=here"])
    told = [("usp", 4, 2), ("fcp", 4, 2), ("ring", 5, 2), ("ring", 4, 299)]
    words = [[f"system={system}", f"seed={seed}", f"steps={steps}"] for system, seed, steps in told]
    assert composed == [("config", some) for some in words]


def test_jobs_go_one_at_a_time_to_hydras_own_launcher_alone(tmp_path: Path) -> None:
    experiments = ROOT / "conf/experiment"
    assert jobs.is_one_at_a_time(["-m", "system=ring,usp"], experiments)
    assert jobs.is_one_at_a_time(["experiment=all_systems"], experiments)
    (tmp_path / "mine.yaml").write_text("defaults:\n  - override /hydra/launcher: ray\n")
    assert not jobs.is_one_at_a_time(["experiment=mine"], tmp_path)
    for word in ("hydra/launcher=ray", "hydra/sweeper=optuna", "--config-dir=mine", "hydra.sweeper.max_batch_size=4"):
        assert not jobs.is_one_at_a_time(["-m", "system=ring,usp", word], experiments)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["system=ring,nope"], "zbench: system is 'nope'; it takes one of "),
        (["system=zeppelin,ring", "system.partitioner=search"], "zbench: system.partitioner is not a key of system"),
    ],
)
def test_a_sweep_with_a_job_that_cannot_be_composed_runs_none(
    arguments: list[str], told: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "-m", *arguments, *SMALL) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith(told)
    assert list(here.iterdir()) == []
