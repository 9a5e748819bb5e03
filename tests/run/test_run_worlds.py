"""Runs in worlds: what is played, what planners see, what is recorded and told, and what is left out."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from tests.run.test_run import RING, recorded, request
from zbench import CONF, __main__
from zbench.console.meter import Sweep
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.plans.plan import Plan
from zbench.record.record import Run, read
from zbench.record.rows import rows
from zbench.run.parts import Parts
from zbench.run.replay import Replay
from zbench.run.run import run_with_baseline
from zbench.simulated.executor import Simulated
from zbench.standing.__main__ import main as standing
from zbench.systems.ring import Ring

SLOW = {"_target_": "zbench.describe.worlds.World", "latency": 1000}
SEEN: list[Cost] = []


class Spy(Ring):
    """A system that tells what it sees of the machine."""

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        SEEN.append(self.cost)
        return Ring.plan(self, batch)


SPY = {"_target_": "tests.run.test_run_worlds.Spy"}


def seen_and_played(out: Path, **changes: Any) -> tuple[Cost, Parts]:
    SEEN.clear()
    asked = request(out, SPY, RING, **changes)
    run_with_baseline(asked)
    first, *others = SEEN[-asked.settings.steps :]  # before them it is warmed, on a cluster of its own
    assert others == [first] * (asked.settings.steps - 1)
    return first, Parts.of(asked.config, asked.settings)


def test_planners_see_the_world_that_is_played(tmp_path: Path) -> None:
    seen, parts = seen_and_played(tmp_path / "r.jsonl", world=SLOW)
    assert seen.cluster == parts.cluster == parts.world.of(parts.nominal).cluster
    assert seen.cluster.nic_latency == 1000 * parts.nominal.cluster.nic_latency


def test_planners_of_the_nominal_machine_see_it_whatever_is_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seen, parts = seen_and_played(tmp_path / "r.jsonl", world=SLOW, planners_see="nominal")
    assert "world: latencies x 1000; planners know the nominal machine alone." in " ".join(
        capsys.readouterr().out.split()
    )
    assert seen.cluster == parts.nominal.cluster
    assert parts.cost.cluster == parts.executor.cost.cluster == parts.world.of(parts.nominal).cluster
    assert seen == replace(parts.cost, cluster=parts.nominal.cluster)


def test_the_nominal_world_is_to_the_bit_what_it_was_without_worlds(tmp_path: Path) -> None:
    asked = request(tmp_path / "r.jsonl")
    parts = Parts.of(asked.config, asked.settings)
    assert parts.cost is parts.seen
    assert (parts.cost.cluster, parts.cost.model) == parts.nominal
    assert "world" not in parts.facts()
    (done,) = run_with_baseline(asked)
    plain = Simulated(Cost(*parts.nominal))
    for step in done.steps:
        batch = parts.batch(step["step"])
        assert plain.step(batch, Ring(plain.cost).plan(batch)).seconds == step["seconds"]


def test_a_world_is_recorded_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.jsonl"
    run_with_baseline(request(out, world=SLOW))
    run_with_baseline(request(out))
    slow, nominal = recorded(out)
    assert slow.start["config"]["world"] == SLOW
    assert (slow.start["facts"]["world"], slow.start["config"]["planners_see"]) == ("latencies x 1000", "world")
    assert "world" not in nominal.start["facts"]
    assert slow.steps[0]["seconds"] > nominal.steps[0]["seconds"]
    assert capsys.readouterr().out.count("a node; world: latencies x 1000. Nothing here was measured") == 1


def test_a_recorded_world_is_made_again(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    for planners in ("world", "nominal"):
        run_with_baseline(
            request(out, world=SLOW, planners_see=planners, workload={"_target_": "tests.run.test_run.Lengths"})
        )
    for one in recorded(out):
        replay = Replay.of(one, trust=True)
        for line in one.steps:
            assert Simulated(replay.cost).step(*replay.step(line)).seconds == line["seconds"]
        nominal = replay.parts.nominal.cluster
        assert (replay.system.cost.cluster == nominal) == (one.start["config"]["planners_see"] == "nominal")


def test_a_baseline_of_another_world_is_run_anew_and_no_baseline(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    gather = {"_target_": "zbench.systems.allgather.AllGather"}
    run_with_baseline(request(out, gather, RING))
    run_with_baseline(request(out, gather, RING, world=SLOW))
    run_with_baseline(request(out, gather, RING, world=SLOW, planners_see="nominal"))
    found = recorded(out)
    assert len(found) == 6
    total = [sum(step["seconds"] for step in one.steps) for one in found]
    assert [one["speedup"] for one in rows(found)[1::2]] == [total[at] / total[at + 1] for at in (0, 2, 4)]
    assert total[0] < total[2]


def test_who_is_measured_has_no_world(tmp_path: Path) -> None:
    asked = request(tmp_path / "r.jsonl", world=SLOW, executor={"_target_": "tests.run.test_run.Measured"})
    told = r"world is not nominal \(latencies x 1000\); .* only executor=simulated has"
    with pytest.raises(ValueError, match=told):
        Parts.of(asked.config, asked.settings)


def test_what_is_no_world_is_refused(tmp_path: Path) -> None:
    asked = request(
        tmp_path / "r.jsonl", world={"_target_": "zbench.describe.batch.Batch", "lengths": 1, "seed": 1, "step": 1}
    )
    with pytest.raises(ValueError, match="world: Batch is no "):
        Parts.of(asked.config, asked.settings)


def test_a_world_that_the_machine_has_not_is_left_out_of_a_sweep_and_refused_alone(tmp_path: Path) -> None:
    asked = request(tmp_path / "r.jsonl", world={"_target_": "zbench.describe.worlds.World", "nic_channels": 1})
    sweep = Sweep(1)
    assert run_with_baseline(asked, sweep=sweep) == []
    (told,) = sweep.said
    assert told == "Left out: world is nominal; it changes nothing on small, where NIC channels 1 is nominal."
    assert not (tmp_path / "r.jsonl").exists()
    with pytest.raises(ValueError, match=r"it changes nothing on small, .*: use world=nominal"):
        run_with_baseline(asked)


# -- the experiment, smaller -----------------------------------------------------------------------
@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("worlds") / "r.jsonl"
    less = [
        "cluster=a800_4x8",
        "cluster.num_nodes=2",
        "workload=prolong64k",
        "system=ring,ulysses,zeppelin",
        "world=nominal,nic_3,nvlink_7,latency_3",
        "tokens_per_gpu=512",
        "baseline=ring",
        f"out={path}",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path.parent)
        patch.setattr(sys, "argv", ["zbench", "experiment=worlds", *less])
        assert __main__.main() == 0
    return str(path)


def test_the_experiment_names_worlds_that_there_are() -> None:
    params = OmegaConf.load(CONF / "experiment" / "worlds.yaml").hydra.sweeper.params
    named = params.world.split(",")
    assert named[0] == "nominal"
    left_out = {"nvlink_1", "compute_slowed", "compute_slowed_2", "longest_waiting", "shared", "matmul_shapes"}
    assert set(named) | left_out == {path.stem for path in (CONF / "world").glob("*.yaml")}


def test_the_experiment_leaves_out_what_a_cluster_has_not(record: str) -> None:
    runs = read(record)[0]
    assert {one["world"] for one in rows(runs)} == {"nominal", "nvlink_7", "latency_3"}
    assert {run.status for run in runs} == {"finished"}
    assert len(runs) == 9


def of(runs: list[Run], world: str, system: str) -> float:
    (found,) = [one for one in rows(runs) if (one["world"], one["system"]) == (world, system)]
    value: float = found["speedup"]
    return value


def test_ranges_are_of_the_worlds_own_speedups(record: str) -> None:
    runs = read(record)[0]
    for system in ("ulysses", "zeppelin"):
        gains = [of(runs, world, system) for world in ("nominal", "nvlink_7", "latency_3")]
        (nominal,) = [one for one in rows(runs) if (one["world"], one["system"]) == ("nominal", system)]
        assert (nominal["speedup_least"], nominal["speedup_greatest"]) == (min(gains), max(gains))
        assert nominal["worlds"] == 3
        assert len(set(gains)) > 1
    assert {one["speedup_least"] for one in rows(runs) if one["world"] != "nominal"} == {None}


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["standing", *arguments])
    return standing()


def test_standing_has_the_range_beside_the_interval(
    record: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, record, "--over", "ring", "--markdown") == 0
    out = capsys.readouterr().out
    assert out.count("| system |") == 1
    (line,) = [line for line in out.splitlines() if line.startswith("| ulysses")]
    (row,) = [one for one in rows(read(record)[0]) if (one["world"], one["system"]) == ("nominal", "ulysses")]
    assert f"[{row['speedup_least']:.2f}-{row['speedup_greatest']:.2f}]" in line
    assert f"{row['speedup']:.2f} ({row['speedup_low']:.2f}-{row['speedup_high']:.2f})" in line
    assert "[ranges over 3 worlds]" in out


def test_standing_tells_what_survives(
    record: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, record, "--over", "ring", "--worlds", "--markdown") == 0
    out = capsys.readouterr().out
    assert "Worlds: nominal, nvlink_7 (NVLink channels 7), latency_3 (latencies x 3)." in out
    assert "Survives all of them on prolong64k: " in out
    assert call(monkeypatch, record, "--worlds") == 0
    assert "zeppelin" in capsys.readouterr().out


def test_standing_of_one_world_has_nothing_to_survive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(Path(__file__).parents[2] / "results" / "paper" / "desk_systems.jsonl")
    assert call(monkeypatch, path, "--worlds") == 2
    assert "--worlds is of several worlds" in capsys.readouterr().err
