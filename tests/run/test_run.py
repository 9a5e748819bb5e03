"""The loop over steps, with the real core on a small cluster."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.utils import get_class
from omegaconf import OmegaConf

from zbench.cost.cost import Cost
from zbench.cost.memory.needs import least_bytes
from zbench.cost.memory.peak import peak_bytes
from zbench.describe.batch import Batch
from zbench.interfaces.dealt import ChangedPlans, undealt
from zbench.interfaces.protocols import Ready, Tracked
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan
from zbench.proof.verify import PlanError
from zbench.record.record import Run, read
from zbench.record.rows import rows
from zbench.run.parts import Parts
from zbench.run.request import Request
from zbench.run.run import run_with_baseline
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.simulated.executor import Simulated
from zbench.systems.allgather import AllGather
from zbench.systems.ring import Ring

DEVICE = {
    "_target_": "zbench.describe.device.Device",
    "name": "D",
    "peak_flops": "300 TFLOP/s",
    "memory_bytes": "80 GB",
    "copy_bandwidth": "1600 GB/s",
    "strided_rate": "200 GB/s",
    "matmul_flops": "200 TFLOP/s",
    "attention_forward_flops": "200 TFLOP/s",
    "attention_backward_flops": "170 TFLOP/s",
    "kernel_seconds": "5 us",
    "call_seconds": "60 us",
}
CLUSTER = {
    "_target_": "zbench.describe.cluster.Cluster",
    "name": "small",
    "num_nodes": 2,
    "gpus_per_node": 2,
    "nics_per_node": 1,
    "nic_bandwidth": "200 Gbit/s",
    "nic_efficiency": 0.8,
    "nic_latency": "15 us",
    "nvlink_bandwidth": "200 GB/s",
    "nvlink_efficiency": 0.6,
    "nvlink_latency": "10 us",
    "device": DEVICE,
}
MODEL = {
    "_target_": "zbench.describe.model.Model",
    "name": "small",
    "num_layers": 2,
    "hidden": 64,
    "num_heads": 4,
    "num_kv_heads": 2,
    "head_dim": 16,
    "ffn_hidden": 128,
    "vocab": 100,
}
OF_STRATEGY = "zbench.describe.strategy"
STRATEGY = {
    "sharding": {"_target_": f"{OF_STRATEGY}.Sharding", "strategy": "zero1"},
    "recompute": {"_target_": f"{OF_STRATEGY}.Recompute", "granularity": "none"},
    "memory": {"_target_": f"{OF_STRATEGY}.TrainingMemory"},
    "parallel": {"_target_": f"{OF_STRATEGY}.Parallel"},
    "overlap": {"_target_": "zbench.describe.exchanges.ExchangeOverlap", "method": "none"},
    "experts": {"_target_": "zbench.describe.expert_schedule.Experts"},
    "sync": {"_target_": "zbench.describe.sync.RoundSync", "method": "every_step"},
    "job": {"_target_": "zbench.describe.job.RolloutJob", "algorithm": "none"},
}
RING = {"_target_": "zbench.systems.ring.Ring"}


class Lengths:
    """A workload of a third party: the step's number of tokens in one sequence, the rest in others."""

    def __init__(self, seed: int, tokens: int) -> None:
        self.seed, self.tokens = seed, tokens

    def batch(self, step: int) -> Batch:
        head = 40 + step + self.seed
        return Batch(np.array([head, self.tokens - head], np.int64), self.seed, step)


class Troubled(Ring):
    """A system that goes wrong in step 1."""

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        plans = Ring.plan(self, batch)
        if batch.step == 1:
            return self.go_wrong(plans)
        return plans

    def go_wrong(self, plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
        raise KeyboardInterrupt


class Compiled(Troubled):
    """Ctrl-C inside compiled code comes out as something else."""

    def go_wrong(self, plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()


class Wrong(Troubled):
    def go_wrong(self, plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
        return (replace(plans[0], forward=plans[0].forward.take(np.arange(len(plans[0].forward) - 1))),)


class Refusing(Troubled):
    def go_wrong(self, plans: tuple[Plan, ...]) -> tuple[Plan, ...]:
        raise ValueError("a sequence is too odd")


class Measured:
    """Stands for an executor that trains: what it measures is the day's. GPUs are as full as planners reckon."""

    first_step = 0

    def __init__(self, cost: Cost, workload: Lengths, check: Sequence[str], resume: str | None) -> None:
        self.played = Simulated(cost)

    def start(self) -> Ready:
        return Ready()

    def step(self, batch: Batch, plans: tuple[Plan, ...]) -> StepResult:
        result = self.played.step(batch, plans)
        peak = peak_bytes(plans, self.played.cost)
        return replace(result, peak_bytes=peak.tolist(), out_of_memory=bool(peak.max() > result.capacity_bytes))

    def stop(self) -> None:
        pass


def request(
    out: Path, system: dict[str, Any] = RING, baseline: dict[str, Any] | None = None, **changes: Any
) -> Request:
    config = OmegaConf.create(
        {
            "steps": 3,
            "seed": 0,
            "tokens_per_gpu": 64,
            "out": str(out),
            "baseline": "ring" if baseline else None,
            "trace": None,
            "check": None,
            "resume": None,
            "rerun": True,
            "planners_see": "world",
            "free_groups": [],
            "mask": "causal",
            "world": {"_target_": "zbench.describe.worlds.World"},
            "system": system,
            "workload": {"_target_": "tests.run.test_run.Lengths"},
            "cluster": CLUSTER,
            "model": MODEL,
            **STRATEGY,
            "executor": {"_target_": "zbench.simulated.executor.Simulated"},
            "tracker": {"_target_": "zbench.track.Nothing"},
            **changes,
        }
    )
    other = None
    if baseline:
        other = config.copy()
        other["system"] = OmegaConf.create(baseline)
    choices = {"system": "mine", "workload": "w", "cluster": "c", "model": "m", "executor": "e", "world": "nominal"}
    return Request(Settings.of(config), config, choices, {"system": {}}, other, "python -m zbench", "command id")


def degrees(**of: int) -> dict[str, Any]:
    return {**STRATEGY["parallel"], **of}


def nothing(cost: Cost) -> None:
    """A system's class that makes nothing."""


def target(kind: type) -> dict[str, Any]:
    return {"_target_": f"tests.run.test_run.{kind.__name__}"}


def recorded(path: Path) -> list[Run]:
    runs, problems = read(str(path))
    assert problems == []
    return runs


def test_every_step_is_in_the_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.jsonl"
    (done,) = run_with_baseline(request(out))
    (kept,) = recorded(out)
    assert kept.steps == json.loads(json.dumps(done.steps))
    assert (kept.status, len(kept.steps)) == ("finished", 3)
    first = kept.steps[0]
    assert (first["tokens"], first["sum_squared"], first["num_sequences"]) == (256, 40**2 + 216**2, 2)
    assert (first["max_length"], first["num_micro_batches"], len(first["nic_tx_bytes"])) == (216, 1, 2)
    assert kept.start["facts"]["simulated"] is True
    assert kept.start["facts"]["nic_bandwidth"] == 25e9
    assert kept.start["config"]["choices"]["system"] == "mine"
    printed = capsys.readouterr().out
    assert "SIMULATED on small: 2 nodes x 2 D, 1 NIC of 200 Gbit/s a node" in printed
    assert "MFU by convention zbench" in printed
    assert f"Record: {out}" in printed


def test_the_baseline_runs_first_on_the_same_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.jsonl"
    run_with_baseline(request(out, {"_target_": "zbench.systems.allgather.AllGather"}, RING))
    ring, own = recorded(out)
    assert [step["batch"] for step in ring.steps] == [step["batch"] for step in own.steps]
    assert ring.start["config"]["choices"]["system"] == "ring"
    assert own.start["baseline"] == {"name": "ring", "system": RING}
    assert capsys.readouterr().out.count(" x ") >= 2


def test_a_recorded_baseline_is_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.jsonl"
    gather = {"_target_": "zbench.systems.allgather.AllGather"}
    run_with_baseline(request(out, gather, RING))
    run_with_baseline(request(out, gather, RING))
    assert "Baseline ring was not run again: the record has it, from line 1 on." in capsys.readouterr().out
    assert len(recorded(out)) == 3
    for number, changes in enumerate(
        ({"seed": 1}, {"steps": 2}, {"tokens_per_gpu": 65}, {"model": {**MODEL, "vocab": 9}})
    ):
        run_with_baseline(request(out, gather, RING, **changes))
        assert len(recorded(out)) == 5 + 2 * number


def test_a_stopped_sweep_goes_on_with_again_false(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "r.jsonl"
    first = run_with_baseline(request(out))
    (known,) = run_with_baseline(request(out, rerun=False))
    assert known.start["run"] == first[0].start["run"]
    assert "mine was not run again: the record has it, from line 1 on." in capsys.readouterr().out
    run_with_baseline(request(out, rerun=False, seed=1))
    run_with_baseline(request(out))
    assert len(recorded(out)) == 3


def test_a_baseline_from_outside_the_tree_is_run_again(tmp_path: Path) -> None:
    """The fingerprint knows nothing of its sources."""
    out = tmp_path / "r.jsonl"
    mine = target(Troubled)
    for _ in range(2):
        run_with_baseline(request(out, RING, mine, steps=1))
    assert len(recorded(out)) == 4


def test_a_measured_baseline_is_taken_from_the_same_command_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, gather = tmp_path / "r.jsonl", {"_target_": "zbench.systems.allgather.AllGather"}
    measured = {"executor": target(Measured)}
    earlier = run_with_baseline(request(out, gather, RING, **measured))
    assert len(earlier) == 2
    ring, _ = run_with_baseline(request(out, gather, RING, **measured), earlier)
    assert ring is earlier[0]
    assert f"Baseline ring was not run again: this sweep measured it, {ring.start['run']}." in capsys.readouterr().out
    assert len(recorded(out)) == 3
    for number, changes in enumerate(({}, {"seed": 1}, {"steps": 2}, {"check": "bytes"}, {"resume": "there"})):
        found = run_with_baseline(request(out, gather, RING, **measured, **changes), earlier if changes else ())
        assert found[0] not in earlier
        assert len(recorded(out)) == 5 + 2 * number
    found = run_with_baseline(request(tmp_path / "other.jsonl", gather, RING, **measured), earlier)
    assert found[0] not in earlier  # it would be missing from that record


def test_versions_of_packages_are_recorded_and_another_one_is_another_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, gather = tmp_path / "r.jsonl", {"_target_": "zbench.systems.allgather.AllGather"}
    monkeypatch.setattr(AllGather, "packages", ("numpy", "no-such-package"), raising=False)
    run_with_baseline(request(out, RING, gather, steps=1))
    run_with_baseline(request(out, RING, gather, steps=1))
    assert len(recorded(out)) == 3
    told = {"numpy": np.__version__, "no-such-package": None}
    gathered, ring, _ = recorded(out)
    assert gathered.start["fingerprint"]["packages"] == ring.start["baseline"]["packages"] == told
    assert "packages" not in ring.start["fingerprint"]
    assert [row["speedup"] is None for row in rows([gathered, ring])] == [False, False]
    monkeypatch.setattr("zbench.run.cases.versions", lambda names: dict.fromkeys(names, "another"))
    run_with_baseline(request(out, RING, gather, steps=1))
    assert len(recorded(out)) == 5


@pytest.mark.parametrize(
    ("baseline", "told"),
    [
        (
            target(Lengths),
            r"tests\.run\.test_run\.Lengths is called with the keys of its yaml and cost, and does not take that: ",
        ),
        ({"_target_": "tests.run.test_run.nothing"}, r"system: NoneType has no plan "),
        ({}, r"system has no _target_; "),
    ],
)
def test_a_faulty_baseline_is_told_as_one(baseline: dict[str, Any], told: str, tmp_path: Path) -> None:
    asked = request(tmp_path / "r.jsonl", baseline=RING)
    config = asked.config.copy()
    config["system"] = baseline
    with pytest.raises(ValueError, match=rf"^baseline=ring: {told}"):
        run_with_baseline(replace(asked, baseline=config))
    assert not (tmp_path / "r.jsonl").exists()


def test_the_baseline_itself_runs_once(tmp_path: Path) -> None:
    (only,) = run_with_baseline(request(tmp_path / "r.jsonl", RING, RING))
    assert only.start["baseline"]["name"] == "ring"


@pytest.mark.parametrize(
    ("kind", "error", "status", "message"),
    [
        (Troubled, KeyboardInterrupt, "interrupted", "step 1: stopped by the user"),
        (Compiled, SystemError, "interrupted", "step 1: stopped by the user"),
        (Wrong, PlanError, "failed", "step 1: PlanError: mine made a wrong plan in step 1: "),
        (Refusing, ValueError, "failed", "step 1: ValueError: a sequence is too odd"),
    ],
)
def test_how_a_run_ended_is_recorded(
    kind: type, error: type[BaseException], status: str, message: str, tmp_path: Path
) -> None:
    out = tmp_path / "r.jsonl"
    with pytest.raises(error):
        run_with_baseline(request(out, target(kind)))
    (kept,) = recorded(out)
    assert (kept.status, len(kept.steps)) == (status, 1)
    assert kept.end is not None
    assert kept.end["message"].startswith(message)


def test_out_of_memory_stands_in_place_of_a_throughput(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = {"_target_": "tests.run.test_run.Measured"}
    (done, *_) = run_with_baseline(request(tmp_path / "big.jsonl", executor=measured))
    peak = max(done.steps[0]["peak_bytes"])
    small = {**CLUSTER, "device": {**DEVICE, "memory_bytes": peak - 1}}
    run_with_baseline(request(tmp_path / "r.jsonl", cluster=small, executor=measured))
    printed = capsys.readouterr().out
    assert "mine runs out of memory: needs" in printed
    assert "tokens/s" in printed


def test_memory_that_no_plan_fits_is_refused(tmp_path: Path) -> None:
    small = {**CLUSTER, "device": {**DEVICE, "memory_bytes": "1 kB"}}
    with pytest.raises(ValueError, match=r"model is .* one token need at least .* GiB on every GPU"):
        run_with_baseline(request(tmp_path / "r.jsonl", cluster=small))
    assert not (tmp_path / "r.jsonl").exists()


def test_memory_is_judged_by_the_layout_that_a_system_chooses(tmp_path: Path) -> None:
    chooses = {
        "_target_": "zbench.systems.static_best.planner.StaticBest",
        "batching": "balanced",
        "search": "uniform",
        "free_groups": [],
    }
    usual = request(tmp_path / "r.jsonl")
    room = least_bytes(Parts.of(usual.config, usual.settings).cost, 1) - 1
    given: dict[str, Any] = {
        "cluster": {**CLUSTER, "device": {**DEVICE, "memory_bytes": room}},
        "workload": {"_target_": "zbench.workloads.fixed.Fixed", "length": 16},
    }
    with pytest.raises(ValueError, match="one token need at least"):
        run_with_baseline(request(tmp_path / "r.jsonl", **given))
    (done,) = run_with_baseline(request(tmp_path / "r.jsonl", chooses, **given))
    assert done.start["chosen"]["model"]["pipeline_parallel"] == 2
    assert not done.steps[0]["out_of_memory"]
    with pytest.raises(ValueError, match=r"^baseline=ring: model is small; .* one token need at least"):
        run_with_baseline(request(tmp_path / "r.jsonl", chooses, RING, **given))


def test_a_tracker_gets_every_steps_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class Listening:
        def start(self, run: Tracked) -> None:
            calls.append((run.name, run.group, run.kind, run.tags))

        def log(self, step: int, metrics: dict[str, float]) -> None:
            calls.append((step, sorted(metrics)))

        def attach(self, name: str, path: str) -> None:
            calls.append((name, Path(path).is_file()))

        def finish(self, status: str, figures: dict[str, float]) -> None:
            calls.append((status, figures["steps"]))

        def where(self) -> str:
            return "in a list"

    monkeypatch.setattr("zbench.track.Nothing", Listening)
    whole = {"_target_": "zbench.simulated.executor.Simulated"}
    run_with_baseline(request(tmp_path / "r.jsonl", trace=str(tmp_path / "t.json"), executor=whole))
    start = "mine w c", "command id", "e", ("mine", "w", "c", "m")
    assert (calls[0], calls[2], calls[-1], len(calls)) == (start, ("timeline", True), ("finished", 3.0), 6)
    assert {f"nic/node{node}/nic0/{way}" for node in range(2) for way in ("tx", "rx")} <= set(calls[1][1])
    assert calls[1][0] == 0
    assert {"tokens_per_second", "mfu", "nic_utilization", "tokens", "bound_ratio"} <= set(calls[1][1])


def test_two_runs_are_the_same_but_for_clocks(tmp_path: Path) -> None:
    first, second = (
        run_with_baseline(request(tmp_path / "1.jsonl"))[0],
        run_with_baseline(request(tmp_path / "2.jsonl"))[0],
    )
    clocks = {"plan_seconds", "verify_seconds", "execute_seconds", "run"}
    for one, other in zip(first.steps, second.steps, strict=True):
        assert {key: one[key] for key in one.keys() - clocks} == {key: other[key] for key in other.keys() - clocks}


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"steps": 0}, "steps is 0; it takes a whole number of at least 1"),
        ({"steps": True}, "steps is True; it takes"),
        ({"seed": "x"}, "seed is 'x'; it takes a whole number of at least 0"),
        ({"tokens_per_gpu": -1}, "tokens_per_gpu is -1; it takes"),
        ({"trace": 3}, "trace is 3; it takes the name of a file or null"),
        ({"trace": "/missing/t.json"}, "trace is '/missing/t.json'; its folder /missing does not exist"),
        ({"cluster": {**CLUSTER, "num_nodes": 0}}, "cluster.num_nodes is 0; it takes"),
        ({"model": {"name": "m"}}, "model has no _target_"),
        (
            {"model": {**MODEL, "extra": 1}},
            "model.extra is not a key of zbench.describe.model.Model; there are name, num_layers",
        ),
        ({"workload": {"_target_": "builtins.dict"}}, "workload: dict has no batch"),
        ({"executor": {"_target_": "builtins.dict"}}, "executor: dict has no step"),
        ({"system": {"_target_": "builtins.dict"}}, "system: dict has no plan"),
    ],
)
def test_bad_input_is_a_sentence_before_any_work(changes: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    with pytest.raises(ValueError, match=sentence):
        run_with_baseline(request(out, **changes))
    assert not out.exists()


def test_facts_count_active_experts(tmp_path: Path) -> None:
    experts = {**MODEL, "num_experts": 4, "experts_per_token": 1, "tied_embeddings": True}
    asked = request(tmp_path / "r.jsonl", model=experts)
    parts = Parts.of(asked.config, asked.settings)
    facts = parts.facts()
    ffn = 3 * 64 * 128
    assert facts["total_params"] - facts["active_params"] == 2 * 3 * ffn
    assert facts["embedding_params"] == 0
    assert facts["context_limit"] is None


class Noting(Ring):
    """A system that has something to say of its plans."""

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        return tuple(plan.with_(notes={"gap": 0.5, "method": "guess"}) for plan in Ring.plan(self, batch))


def test_what_a_planner_notes_is_in_the_step_line_and_nowhere_else(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    run_with_baseline(request(out, system={"_target_": f"{__name__}.Noting"}))
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    noted = [line["plan_notes"] for line in steps if "plan_notes" in line]
    assert len(noted) == 3
    assert all(note == [{"gap": 0.5, "method": "guess"}] for note in noted)
    by_ring = tmp_path / "ring.jsonl"
    run_with_baseline(request(by_ring, system=RING))
    assert not any("plan_notes" in line for line in map(json.loads, by_ring.read_text().splitlines()))


def test_a_model_with_tensor_parallelism_has_as_many_ranks_tokens_and_flops_in_groups(tmp_path: Path) -> None:
    asked = [request(tmp_path / "r.jsonl", parallel=degrees(tensor_parallel=tp)) for tp in (1, 2)]
    plain, grouped = (Parts.of(one.config, one.settings) for one in asked)
    assert (plain.cost.cluster.num_ranks, grouped.cost.cluster.num_ranks) == (4, 2)
    assert grouped.workload.batch(0).num_tokens == plain.workload.batch(0).num_tokens
    ours, theirs = grouped.facts(), plain.facts()
    assert (ours["tensor_parallel"], theirs["tensor_parallel"]) == (2, 1)
    assert {name for name in theirs if ours[name] != theirs[name]} == {"tensor_parallel"}
    assert ours.keys() - theirs.keys() == {"num_tensor_parallel_groups"}
    assert (ours["num_ranks"], ours["num_tensor_parallel_groups"], ours["num_gpus"]) == (4, 2, 4)


def test_a_model_with_stages_has_the_whole_cluster_and_a_cost_of_one(tmp_path: Path) -> None:
    model, parallel = {**MODEL, "micro_batches": 2}, degrees(pipeline_parallel=2)
    asked = request(tmp_path / "r.jsonl", model=model, parallel=parallel)
    parts = Parts.of(asked.config, asked.settings)
    assert (parts.cluster.num_ranks, parts.cost.cluster.num_ranks) == (4, 2)
    assert (parts.facts()["num_ranks"], parts.facts()["pipeline_parallel"]) == (4, 2)
    system = make_system(asked.config, parts.cost)
    assert parts.repeats(system)
    assert len(system.plan(parts.workload.batch(0))) == 2
    done = run_with_baseline(asked)
    assert len(done[-1].steps[0]["linear_seconds"]) == 4
    assert 0 < max(done[-1].steps[0]["seconds_for"]["waiting_stages"]) < done[-1].steps[0]["seconds"]


def test_a_system_s_plans_get_the_homes_that_experts_want(tmp_path: Path) -> None:
    model = {**MODEL, "num_experts": 4, "experts_per_token": 2}
    experts = {**STRATEGY["experts"], "homes": "attention"}
    asked = request(tmp_path / "r.jsonl", model=model, parallel=degrees(expert_parallel=2), experts=experts)
    asked.config["executor"] = {"_target_": "zbench.simulated.executor.Simulated"}
    parts = Parts.of(asked.config, asked.settings)
    system = make_system(asked.config, parts.cost)
    assert isinstance(system, ChangedPlans)
    assert parts.repeats(system)
    assert undealt(system) is system.system


@pytest.mark.parametrize("kind", ["tensor", "pipeline"])
def test_only_the_clocks_have_tensor_and_pipeline_parallelism(kind: str, tmp_path: Path) -> None:
    parallel = degrees(**{f"{kind}_parallel": 2})
    asked = request(tmp_path / "r.jsonl", parallel=parallel, executor={"_target_": "mine.Trainer"})
    told = f"parallel.{kind}_parallel is 2; only executor=simulated, torch and desk have"
    with pytest.raises(ValueError, match=f"^{told}"):
        Parts.of(asked.config, asked.settings)


@pytest.mark.parametrize(
    ("group", "key", "value"),
    [("sharding", "window", 2), ("parallel", "expert_parallel", 2), ("experts", "skew", 0.5)],
)
def test_what_whole_steps_alone_play_is_refused_by_others(group: str, key: str, value: float, tmp_path: Path) -> None:
    own = {**STRATEGY[group], key: value}
    asked = request(tmp_path / "r.jsonl", **{group: own}, executor={"_target_": "tests.run.test_run.Measured"})
    told = rf"^{group}.{key} is {value}; only runs with executor=simulated, torch or desk have"
    with pytest.raises(ValueError, match=told):
        Parts.of(asked.config, asked.settings)


def test_a_trace_takes_an_executor_that_traces_steps(tmp_path: Path) -> None:
    asked = request(tmp_path / "r.jsonl", trace="t.json", executor={"_target_": "tests.run.test_run.Measured"})
    with pytest.raises(ValueError, match=r"^trace is t.json; the run's executor traces no steps, executor=simulated"):
        Parts.of(asked.config, asked.settings)


@pytest.mark.parametrize("group", STRATEGY)
def test_a_group_of_the_strategy_takes_its_own_class_alone(group: str, tmp_path: Path) -> None:
    asked = request(tmp_path / "r.jsonl", **{group: {"_target_": "zbench.track.Nothing"}})
    own = get_class(STRATEGY[group]["_target_"])
    with pytest.raises(
        ValueError, match=rf"^{group}: Nothing is no {own.__module__}\.{own.__name__}, whose keys are what"
    ):
        Parts.of(asked.config, asked.settings)


@pytest.mark.parametrize(
    ("field", "value", "today"),
    [
        ("sharding", "zero3", "sharding"),
        ("recompute", "full", "recompute"),
        ("tensor_parallel", 2, "parallel.tensor_parallel"),
        ("pipeline_parallel", 4, "parallel.pipeline_parallel"),
    ],
)
def test_what_was_a_key_of_the_model_is_told_where_it_is_today(
    field: str, value: object, today: str, tmp_path: Path
) -> None:
    asked = request(tmp_path / "r.jsonl", model={**MODEL, field: value})
    with pytest.raises(ValueError, match=rf"^model.{field} is called {today} today, as in {today}={value}$"):
        run_with_baseline(asked)
    assert not (tmp_path / "r.jsonl").exists()


def test_the_strategy_is_what_the_model_is_trained_by(tmp_path: Path) -> None:
    groups = {
        "sharding": {**STRATEGY["sharding"], "strategy": "none"},
        "recompute": {**STRATEGY["recompute"], "granularity": "full"},
        "parallel": degrees(tensor_parallel=2),
    }
    asked = request(tmp_path / "r.jsonl", **groups)
    model = Parts.of(asked.config, asked.settings).model
    assert (model.sharding, model.recompute, model.tensor_parallel, model.pipeline_parallel) == ("none", "full", 2, 1)
