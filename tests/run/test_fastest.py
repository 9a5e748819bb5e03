"""Settings that are chosen before a run: the best on other batches than the run's, in records, replays and tables."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np
import pytest
from omegaconf import OmegaConf

from tests.helpers.oracles import small
from zbench import CONF, __main__
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.interfaces import study
from zbench.interfaces.protocols import System
from zbench.interfaces.study import Sample, Study
from zbench.plans.plan import Plan
from zbench.record.record import Run, read
from zbench.record.rows import rows
from zbench.run.fastest import FREE, fastest, free_models
from zbench.run.replay import Replay
from zbench.simulated.expert_homes import InOtherHomes
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.dp_balanced import DpBalanced
from zbench.systems.mesh import Mesh

SMALL = ["cluster=a800_2x8", "model=llama_3b", "tokens_per_gpu=1024", "tracker=none", "steps=1", "out=r.jsonl"]
FREED = "free_groups=[sharding]"


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fewer batches than for a run, a cache and a folder of their own."""
    monkeypatch.setattr(study, "DRAWN", 40)
    monkeypatch.setattr(study, "PLAYED", 3)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)


def study_of(cost: Cost, *free: str) -> Study:
    def batch(number: int) -> Batch:
        rest = np.random.default_rng(number).integers(32, 256, 15)
        return Batch(np.append(rest, 4000 + number), 0, number)

    return Study(cost.cluster, cost.model, batch, lambda model: make_cost(cost.cluster, model), StepEstimate, free=free)


def meshes(cost: Cost, keys: Mapping[str, Any]) -> System:
    return Mesh(cost, "allgather", **{"degree": 4, **keys})


@pytest.mark.parametrize("memory", [20e9, 60e9])
def test_the_choice_is_the_best_of_all_settings(memory: float) -> None:
    """Of every sharding, recomputation and degree, played on all batches: the one with the fewest out of memory, then
    the fastest, where the batch that is there to fit, one in a thousand, has no part. With little memory it recomputes,
    or has fewer copies of the optimizer's states."""
    cost = small(2, 2, memory=memory)
    of = study_of(cost, "sharding", "recompute")
    degrees = [{"degree": degree} for degree in (1, 2, 4)]
    choice = fastest(of, meshes, lambda _, tokens: degrees)
    sample = Sample.of(of)

    def verdict(model: Mapping[str, Any], keys: Mapping[str, Any]) -> tuple[int, float]:
        laid = make_cost(cost.cluster, replace(cost.model, **model))
        system = meshes(laid, keys)
        every = (sample.hard, *sample.played)
        results = [StepEstimate(laid).compared_seconds(batch, system.plan(batch)) for batch in every]
        lacking = sum(seconds == inf for seconds in results)
        fitting = [seconds for seconds in results[1:] if seconds < inf]
        return lacking, sum(fitting) / max(len(fitting), 1)

    every = [verdict(model, keys) for model, _ in free_models(cost.model, tuple(FREE)) for keys in degrees]
    assert len(set(every)) > 6
    assert verdict(choice.model, choice.keys) == min(every)


def test_what_is_not_free_stays_and_words_tell_what_was_chosen() -> None:
    cost = small(2, 2)
    choice = fastest(study_of(cost, "recompute"), meshes, lambda *_: [{"pack_tokens": 5000}])
    assert choice.model == {"recompute": "none"}
    assert choice.keys == {"pack_tokens": 5000}
    assert choice.words == "recompute none, pack_tokens 5,000"


def test_a_setting_that_never_fits_is_behind_one_that_does() -> None:
    """However fast it would be."""

    @dataclass(frozen=True)
    class Sized:
        cost: Cost
        degree: int

        def plan(self, batch: Batch) -> tuple[Plan, ...]:
            return Mesh(self.cost, "ring", self.degree).plan(batch)

    cost = small(1, 4, memory=21e9)
    lengths = np.array([30_000, 64, 64, 64])
    of = Study(cost.cluster, cost.model, lambda number: Batch(lengths, 0, number), lambda _: cost, StepEstimate)
    found = {
        degree: (not StepEstimate(cost).fits(of.batch(0), Sized(cost, degree).plan(of.batch(0)))) for degree in (1, 4)
    }
    assert found == {1: True, 4: False}
    choice = fastest(
        of, lambda cost, keys: Sized(cost, **{"degree": 1, **keys}), lambda *_: [{"degree": 1}, {"degree": 4}]
    )
    assert choice.keys == {"degree": 4}


def call(monkeypatch: pytest.MonkeyPatch, *words: str) -> list[Run]:
    monkeypatch.setattr(sys, "argv", ["zbench", *SMALL, *words])
    assert __main__.main() == 0
    return read("r.jsonl")[0]


def test_every_system_has_its_best_and_a_record_and_a_replay_have_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also the baseline; a run with nothing free is of another kind, and no baseline of theirs."""
    words = ("workload=wikipedia", "baseline=allgather", "system=ring")
    usual, _, gathers, rings = [*call(monkeypatch, *words), *call(monkeypatch, *words, FREED)[2:]]
    assert "chosen" not in usual.start
    for run in (gathers, rings):
        chosen = run.start["chosen"]
        assert set(chosen["model"]) == {"sharding"}
        assert chosen["keys"] == {}
    assert rings.start["chosen"]["words"] in capsys.readouterr().out
    found = rows([usual, gathers, rings])
    assert found[2]["speedup"] == gathers.steps[0]["seconds"] / rings.steps[0]["seconds"]
    assert [row["free"] for row in found] == [[], ["sharding"], ["sharding"]]
    assert found[1]["step_seconds"] <= found[0]["step_seconds"]
    monkeypatch.setattr("zbench.run.chosen.fastest", lambda *_: pytest.fail("the record has the choice"))
    replay = Replay.of(rings)
    batch, plans = replay.step(rings.steps[0])
    assert replay.parts.executor.step(batch, plans).seconds == rings.steps[0]["seconds"]
    assert replay.parts.model.sharding == rings.start["chosen"]["model"]["sharding"]


def test_what_every_system_has_to_be_tried_is_keys_of_its_own() -> None:
    """And nothing else of a system has that method's name."""
    targets = {path.stem: str(OmegaConf.load(path)["_target_"]) for path in (CONF / "system").glob("*.yaml")}
    classes = {name: resolve_name(target) for name, target in targets.items()}
    assert not [name for name, kind in classes.items() if "limits" in kind.__dataclass_fields__]
    narrow = small(2, 2)
    narrow = replace(narrow, cluster=replace(narrow.cluster, nic_bandwidth=1e9))  # where nodewise has something open
    found = {name: kind(narrow).limits(10_000) for name, kind in classes.items() if hasattr(kind, "limits")}
    assert set(found) == {"dp_balanced", "verl_balance", "slime_schedule", "nodewise"}
    for name, tried in found.items():
        assert {key for keys in tried for key in keys} <= set(classes[name].__dataclass_fields__)
        assert len(tried) > 1


def test_an_open_limit_is_chosen_and_a_given_one_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chosen one is at least as fast as what fits a GPU on the batches that were looked at."""
    words = ("workload=wikipedia", "system=dp_balanced", "system.degree=2", "baseline=null")
    (chosen,) = call(monkeypatch, *words)
    (most,) = chosen.start["chosen"]["keys"].values()
    assert most in [1024, 1280, 1536, 2048, 3072, 4096]
    assert chosen.start["config"]["system"]["pack_tokens"] is None
    replay = Replay.of(chosen)
    assert isinstance(replay.system, DpBalanced)
    assert replay.system.pack_tokens == most
    _, given = call(monkeypatch, *words, f"system.pack_tokens={most}")
    assert "chosen" not in given.start
    assert given.steps[0]["seconds"] == chosen.steps[0]["seconds"]
    old = {name: value for name, value in chosen.start.items() if name != "chosen"}
    before = Replay.of(replace(chosen, start=old)).system
    assert isinstance(before, DpBalanced)
    assert before.pack_tokens is None  # as a run was made before limits were chosen


def test_nodewise_settles_before_a_run_what_its_lengths_ask_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a narrow network pipelines are slower with long documents and faster with short ones."""
    words = ("cluster.nic_bandwidth=30 Gbit/s", "tokens_per_gpu=4096", "system=nodewise", "baseline=null")
    chosen = {}
    for kind, length in (("long", 65_536), ("short", 512)):
        *_, run = call(monkeypatch, *words, "workload=fixed", f"workload.length={length}")
        chosen[kind] = run.start["chosen"]["keys"]
    assert chosen == {"long": {"rival_pipelines": "never"}, "short": {"rival_pipelines": "usual"}}


def test_static_best_has_the_runs_free_keys_among_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def search(of: Study, free: list[str], batching: str) -> study.Choice:
        asked.append(free)
        return study.Choice({}, {"method": "ring", "degree": 16, "batching": batching, "pack_tokens": 4096}, "")

    monkeypatch.setattr("zbench.systems.static_best.planner.search_layouts", search)
    for words in (
        ["free_groups=[recompute]"],
        ["system.free_groups=[sharding]", "free_groups=[recompute]"],
    ):
        call(monkeypatch, "workload=wikipedia", "system=static_best", "baseline=null", *words)
    assert asked == [["recompute"], ["sharding", "recompute"]]


def test_static_best_judges_steps_with_homes_as_they_will_be(monkeypatch: pytest.MonkeyPatch) -> None:
    judges: list[object] = []

    def search(of: Study, free: list[str], batching: str) -> study.Choice:
        judges.append(of.clock(of.cost_of(of.model)))
        return study.Choice({}, {"method": "ring", "degree": 8, "batching": batching, "pack_tokens": 8192}, "")

    monkeypatch.setattr("zbench.systems.static_best.planner.search_layouts", search)
    words = ["model=moe_8x550m", "parallel.expert_parallel=8", "cluster.num_nodes=1", "experts.homes=fastest"]
    *_, run = call(monkeypatch, "workload=wikipedia", "system=static_best", "baseline=null", *words)
    assert [type(one) for one in judges] == [InOtherHomes]
    assert run.steps[0]["plan_notes"][0]["homes"] == "planned"  # a ring's tokens are even
