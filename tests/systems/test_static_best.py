"""static_best: what it chooses, from what, and that the choice is kept, recorded and replayed."""

import json
import sys
from dataclasses import asdict, dataclass, replace
from math import ceil, inf
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from tests.helpers.oracles import small
from zbench import CONF, __main__
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.model import Model
from zbench.interfaces import study
from zbench.interfaces.study import Choice, Clock, Sample, Study
from zbench.plans.plan import Plan
from zbench.proof.verify import verify_step
from zbench.record.record import read
from zbench.record.rows import rows
from zbench.run.chosen import SEED, kept, settled
from zbench.run.parts import Parts
from zbench.run.replay import Replay
from zbench.run.settings import Settings
from zbench.simulated.compared import ComparedSteps
from zbench.simulated.executor import Simulated
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.mesh import Mesh
from zbench.systems.static_best import search as static_best_search
from zbench.systems.static_best.candidate import Candidate, KnownPlays
from zbench.systems.static_best.planner import StaticBest
from zbench.systems.static_best.search import (
    BEHIND,
    KNOWN,
    Race,
    Rival,
    divisors,
    last_batches,
    parallel_layouts,
    race_of,
    raced,
    ranked,
    ranked_layouts,
    search_layouts,
    sized,
)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fewer batches than for a run, and a cache of its own."""
    monkeypatch.setattr(study, "DRAWN", 60)
    monkeypatch.setattr(study, "PLAYED", 4)
    monkeypatch.setattr(static_best_search, "ROUNDS", ((2, 8), (4, 3)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def study_of(cost: Cost, *longest: int, trains: bool = False, clock: Clock = StepEstimate) -> Study:
    """Batches of sixteen sequences, the longest of which is one of `longest`."""

    def batch(number: int) -> Batch:
        rest = np.random.default_rng(number).integers(32, 256, 15)
        return Batch(np.append(rest, longest[number % len(longest)]), 0, number)

    return Study(cost.cluster, cost.model, batch, lambda model: make_cost(cost.cluster, model), clock, trains=trains)


@pytest.mark.parametrize("sharding", ["zero3", "zero2", "zero1"])
def test_the_choice_is_the_fastest_of_all_that_fit(sharding: str) -> None:
    """Against every candidate, played on all batches: few batches first lose nothing here, nor does it that stages
    whose micro-batches gather parameters are tried with one method. Stages have micro-batches of one to eight each."""
    cost = small(2, 2, memory=12e9)
    cost = replace(cost, model=replace(cost.model, sharding=sharding))
    study = study_of(cost, 4096, 700)
    choice = search_layouts(study, (), "balanced")
    drawn = sorted((study.batch(number) for number in range(60)), key=lambda batch: int(batch.lengths.max()))
    batches = [drawn[(2 * i + 1) * 60 // 8] for i in range(4)]

    def seconds(model: Model, mesh: Mesh) -> float:
        return Candidate(model, mesh).seconds(batches)

    layouts = list(parallel_layouts(study, ()))
    model = replace(cost.model, **choice.model)
    mine = seconds(model, Mesh(make_cost(cost.cluster, model), **choice.keys))
    even = {laid: max(batch.num_tokens for batch in batches) / laid.cluster.num_ranks for _, laid in layouts}
    every = [
        seconds(model, Mesh(laid, method, degree, "balanced", pack and ceil(even[laid] / pack)))
        for model, laid in layouts
        for method in ("ring", "allgather", "ulysses")
        for degree in divisors(laid.cluster.num_ranks)
        for pack in (None, *([1, 2, 4, 8] if model.pipeline_parallel > 1 else []))
    ]
    assert len(every) > 10
    assert any(model.pipeline_parallel > 1 for model, _ in layouts)
    assert mine <= min(every) * (1 + 1e-9)


@pytest.mark.parametrize("sharding", ["zero1", "zero2", "zero3"])
def test_stages_have_micro_batches_that_fill_them(sharding: str) -> None:
    """On NICs so slow that context parallelism and sharding stay inside nodes, two stages are best, and with one
    micro-batch of all that fits they would be slower than what is chosen."""
    cost = small(2, 2)
    cost = replace(cost, cluster=replace(cost.cluster, nic_bandwidth=2e8), model=replace(cost.model, sharding=sharding))
    study = study_of(cost, 3000, 2000)
    choice = search_layouts(study, (), "balanced")
    assert choice.model["pipeline_parallel"] == 2
    model = replace(cost.model, **choice.model)
    laid, batches = make_cost(cost.cluster, model), [study.batch(number) for number in range(4)]
    whole = Candidate(model, Mesh(laid, **{**choice.keys, "pack_tokens": None}))
    assert Candidate(model, Mesh(laid, **choice.keys)).seconds(batches) < 0.9 * whole.seconds(batches)


class DearTurns(StepEstimate):
    """A clock by which each micro-batch takes a hundredth more than planners' estimate has."""

    def compared_seconds(self, batch: Batch, plans: tuple[Plan, ...]) -> float:
        return StepEstimate.compared_seconds(self, batch, plans) * (1 + 0.01 * len(plans))


def test_the_runs_clock_judges_micro_batches_that_the_estimate_has_as_fast() -> None:
    """With stages, sizes of micro-batches that planners' estimate has within its error of each other are played."""
    cost = small(2, 2)
    cost = replace(cost, cluster=replace(cost.cluster, nic_bandwidth=2e8), model=replace(cost.model, sharding="zero1"))
    told = study_of(cost, 3000, 2000)
    usual = search_layouts(told, (), "balanced")
    told = replace(told, clock=DearTurns)
    judged = search_layouts(told, (), "balanced")
    assert usual.model == judged.model
    assert judged.model["pipeline_parallel"] == 2
    laid = make_cost(cost.cluster, replace(cost.model, **judged.model))
    race = race_of(told, Sample.of(told))
    one, *others = sized(Candidate(replace(cost.model, **usual.model), Mesh(laid, **usual.keys)), race)
    assert others
    assert all(other.seconds(race.few) <= KNOWN * one.seconds(race.few) for other in others)
    mean = {one.mesh.pack_tokens: one.seconds(Sample.of(told).played, DearTurns) for one in (one, *others)}
    assert judged.keys["pack_tokens"] == min(mean, key=lambda tokens: mean[tokens])
    assert judged.keys["pack_tokens"] > usual.keys["pack_tokens"]


@dataclass(frozen=True)
class Dear(StepEstimate):
    """A clock by which tensor parallelism of 2 takes a thousand times as long, and one of 4 is refused."""

    def __post_init__(self) -> None:
        if self.cost.tp == 4:
            raise ValueError("not played")

    def compared_seconds(self, batch: Batch, plans: tuple[Plan, ...]) -> float:
        return StepEstimate.compared_seconds(self, batch, plans) * (1000 if self.cost.tp == 2 else 1)


def test_the_better_ones_are_judged_by_the_runs_clock() -> None:
    cost = small(1, 4)
    usual = search_layouts(study_of(cost, 200), (), "balanced")
    judged = search_layouts(study_of(cost, 200, clock=Dear), (), "balanced")
    assert usual.model["tensor_parallel"] == 2
    assert judged.model["tensor_parallel"] == 1
    found = {model.tensor_parallel for model, _ in parallel_layouts(study_of(cost, 200, clock=Dear), ())}
    assert found == {1, 2}


def estimating(played: list[str]) -> Clock:
    """Planners' estimate; the digests of batches whose steps it plays are put into `played`."""

    class Estimating(StepEstimate):
        def compared_seconds(self, batch: Batch, plans: tuple[Plan, ...]) -> float:
            played.append(batch.digest)
            return StepEstimate.compared_seconds(self, batch, plans)

    return Estimating


def whole_steps(cost: Cost) -> ComparedSteps:
    return ComparedSteps(Simulated(cost))


def playing(played: list[str]) -> Clock:
    """Whole steps; the digests of batches whose steps are played are put into `played`."""

    class Playing(ComparedSteps):
        def compared_seconds(self, batch: Batch, plans: tuple[Plan, ...]) -> float:
            played.append(batch.digest)
            return ComparedSteps.compared_seconds(self, batch, plans)

    return lambda cost: Playing(Simulated(cost))


def test_no_step_is_played_twice() -> None:
    cost, played = small(2, 2), list[str]()
    clock = estimating(played)
    batches = [study_of(cost, 2000).batch(number) for number in range(4)]
    candidate = Candidate(cost.model, Mesh(cost, "ring", 2, "balanced"))
    every = [candidate.seconds([batch], clock) for batch in batches[:2]]
    assert candidate.seconds(batches[:2], clock) == sum(every) / 2
    candidate.seconds(batches, clock)
    assert played == [batch.digest for batch in batches]


def test_a_candidate_is_given_up_only_where_its_mean_is_over_the_limit() -> None:
    cost = small(2, 2)
    batches = [study_of(cost, 3000, 500, 2000).batch(number) for number in range(6)]
    mesh = Mesh(cost, "ring", 4, "balanced")
    mean = Candidate(cost.model, mesh).seconds(batches)
    assert Candidate(cost.model, mesh).seconds(batches, limit=mean * (1 + 1e-9)) == mean
    late = Candidate(cost.model, mesh)
    assert late.seconds(batches, limit=mean * 0.5) == float("inf")
    assert len(late.played) < len(batches)


def test_what_has_no_room_for_the_hard_batch_leaves_nothing_behind() -> None:
    """The fastest on few batches may be out of memory on the hard one; then the next one is the measure."""
    cost = small(2, 2, memory=20e9)
    narrow, wide = (Candidate(cost.model, Mesh(cost, "ulysses", degree, "balanced")) for degree in (1, 4))
    race = Race([study_of(cost, 300).batch(0)], study_of(cost, 40_000).batch(0), StepEstimate)
    timed = [(one.seconds(race.few), one) for one in (narrow, wide)]
    assert timed[0][0] < timed[1][0]
    assert (race.fits(narrow), race.fits(wide)) == (False, True)
    assert race.limit(timed) == BEHIND * timed[1][0]


def test_what_a_clock_tells_before_is_not_played() -> None:
    """Whether a candidate fits, and of one that cannot be among the best any more its other steps."""
    cost, played = small(2, 2, memory=20e9), list[str]()
    clock = playing(played)
    hard, batches = study_of(cost, 40_000).batch(0), [study_of(cost, 300, 9000).batch(number) for number in range(2)]
    race = Race([], hard, clock)
    some = [Candidate(cost.model, Mesh(cost, "ulysses", degree, "balanced")) for degree in (2, 4, 1)]
    steps = [Simulated(cost).step(hard, one.mesh.plan(hard)) for one in some]
    assert [race.fits(one) for one in some] == [not step.out_of_memory for step in steps]
    assert 0 < sum(step.out_of_memory for step in steps) < len(steps)
    assert not played
    seconds = [one.seconds(batches, whole_steps) for one in some]
    assert max(seconds) == seconds[2]
    timed = raced(some, batches, clock, 2)
    assert [found for found, _ in timed] == [*seconds[:2], float("inf")]
    assert ranked(timed) == sorted(some[:2], key=lambda one: one.seconds(batches, whole_steps))
    assert played.count(batches[1].digest) == 3
    assert played.count(batches[0].digest) == 2


def test_plans_that_are_the_same_are_played_once() -> None:
    """Limits of packs that come to the same packs, of one search; others have found nothing yet."""
    cost, played = small(2, 2), list[str]()
    clock = estimating(played)
    batch, known = study_of(cost, 2000).batch(0), KnownPlays()
    mesh = Mesh(cost, "ring", 4, "balanced", 100_000)
    other = replace(cost.model, recompute="full")
    some = [Candidate(cost.model, replace(mesh, pack_tokens=tokens), known=known) for tokens in (100_000, 90_000, 200)]
    some.append(Candidate(other, replace(mesh, cost=make_cost(cost.cluster, other)), known=known))
    found = [one.seconds([batch], clock) for one in some]
    assert found[0] == found[1] < min(found[2:])
    assert len(played) == 3
    assert Candidate(cost.model, mesh).seconds([batch], clock) == found[0]
    assert len(played) == 4


def test_who_is_slower_than_a_rival_is_no_choice_and_who_is_far_behind_is_not_played() -> None:
    cost = small(2, 2)
    played = list[str]()
    clock = playing(played)
    told = replace(study_of(cost, 2000, 500), judged=2, clock=clock)
    sample = Sample.of(told)
    race = race_of(told, sample)
    having = told, sample, (), "balanced"
    best = ranked_layouts(*having, race)[0]
    few, last = best.seconds(race.few), best.seconds(last_batches(told, sample), clock)
    assert ranked_layouts(*having, race, Rival(few, inf, last))[0] == best
    assert ranked_layouts(*having, race, Rival(few, inf, last * (1 - 1e-9))) == []
    assert ranked_layouts(*having, race, Rival(few, last / 10, inf)) == []
    played.clear()
    assert ranked_layouts(*having, race_of(told, sample), Rival(few / 10, inf, inf)) == []
    assert not played


def test_what_does_not_fit_is_not_chosen() -> None:
    """The longest sequence of one batch in a thousand needs several ranks; short ones alone need one."""
    cost = small(2, 2, memory=20e9)
    wide = search_layouts(study_of(cost, 40_000, 300), (), "balanced")
    model = replace(cost.model, **wide.model)
    hard, laid = study_of(cost, 40_000).batch(0), make_cost(cost.cluster, model)
    assert StepEstimate(laid).fits(hard, Mesh(laid, **wide.keys).plan(hard))
    assert wide.keys["degree"] * wide.model["tensor_parallel"] * wide.model["pipeline_parallel"] > 1


def test_nothing_that_fits_is_one_sentence() -> None:
    with pytest.raises(
        ValueError, match=r"^model is .*; no static configuration on 4 GPUs has room for a sequence of "
    ):
        search_layouts(study_of(small(2, 2, memory=1e9), 3_000_000), (), "balanced")


def test_what_is_not_free_stays_the_runs() -> None:
    cost = small(2, 2)
    stays = search_layouts(study_of(cost, 2000), (), "balanced").model
    assert (stays["sharding"], stays["recompute"]) == (cost.model.sharding, cost.model.recompute)
    freed = {model.sharding for model, _ in parallel_layouts(study_of(cost, 2000), ("sharding",))}
    assert freed == {"none", "zero1", "zero2", "zero3"}
    layouts = [model for model, _ in parallel_layouts(study_of(cost, 2000), ("sharding",))]
    assert {model.sharding for model in layouts if model.pipeline_parallel > 1} == {"none", "zero1"}


def test_what_trains_keeps_its_model() -> None:
    cost = small(2, 2)
    study = study_of(cost, 2000, trains=True)
    assert [model for model, _ in parallel_layouts(study, ("sharding", "recompute"))] == [cost.model]


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("free_groups", ["loss"], r"system.free_groups is \['loss'\]; it takes"),
        ("batching", "lpt", "system.batching is 'lpt'; it takes"),
    ],
)
def test_a_bad_key_is_one_sentence(key: str, value: object, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        StaticBest(small(2, 2), **{key: value})  # type: ignore[arg-type]


def test_a_choice_is_kept_and_a_broken_file_is_made_anew(tmp_path: Path) -> None:
    made: list[Choice] = []

    def choose() -> Choice:
        made.append(Choice({"tensor_parallel": 1}, {"degree": len(made)}, "words"))
        return made[-1]

    assert kept("one", choose) == kept("one", choose) == made[0]
    (path,) = (tmp_path / "cache/zbench/choices").iterdir()
    assert json.loads(path.read_text()) == asdict(made[0])
    path.write_text("{")
    assert kept("one", choose) == made[1]


def composed(*words: str) -> tuple[Parts, dict[str, object]]:
    """On two nodes of two GPUs, of which there are a seventh of the configurations of two of eight."""
    few = ["cluster=a800_2x8", "cluster.gpus_per_node=2", "cluster.nics_per_node=2"]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["tracker=none", "system=static_best", "model=llama_3b", *few, *words])
    return Parts.of(config, Settings.of(config)), config


def test_the_run_plans_with_the_choice_and_none_of_its_batches_was_looked_at() -> None:
    parts, config = composed("workload=wikipedia")
    seen: list[str] = []
    choose = StaticBest.choose

    def spied(self: StaticBest, study: Study) -> Choice:
        seen.extend(study.batch(number).digest for number in range(20))
        return choose(self, study)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StaticBest, "choose", spied)
        made = settled(config, parts)
    assert made.choice is not None
    assert isinstance(made.system, Mesh)
    assert not {parts.batch(step).digest for step in range(20)} & set(seen)
    batch = parts.batch(0)
    verify_step(batch, made.system.plan(batch), made.parts.cost)


def test_a_run_of_the_studys_seed_is_shown_other_batches() -> None:
    parts, config = composed("workload=wikipedia", f"seed={SEED}")
    shown: list[Batch] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StaticBest, "choose", lambda _, study: Choice({}, {}, shown.append(study.batch(0)) or ""))
        settled(config, parts)
    assert shown[0].digest != parts.batch(0).digest


def test_a_recorded_run_is_replayed_with_its_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with groups of two GPUs, where the model is another than the configured one."""
    layout = {"tensor_parallel": 2, "pipeline_parallel": 1, "sharding": "zero3", "recompute": "none"}
    keys = {"method": "ring", "degree": 4, "batching": "balanced", "pack_tokens": 9000}
    monkeypatch.setattr(StaticBest, "choose", lambda self, study: Choice(layout, keys, "two by four"))
    monkeypatch.chdir(tmp_path)
    words = ["system=zeppelin", "baseline=static_best", "cluster=a800_2x8", "model=llama_3b", "tokens_per_gpu=1024"]
    monkeypatch.setattr(sys, "argv", ["zbench", *words, "tracker=none", "steps=2", "out=r.jsonl"])
    assert __main__.main() == 0
    theirs, mine = read("r.jsonl")[0]
    assert theirs.start["chosen"] == {"model": layout, "keys": keys, "words": "two by four"}
    assert (theirs.start["facts"]["tensor_parallel"], mine.start["facts"]["tensor_parallel"]) == (2, 1)
    assert rows([theirs, mine])[1]["speedup"] == pytest.approx(
        sum(step["seconds"] for step in theirs.steps) / sum(step["seconds"] for step in mine.steps)
    )
    monkeypatch.setattr(StaticBest, "choose", lambda *_: pytest.fail("the record has the choice"))
    replay = Replay.of(theirs)
    for line in theirs.steps:
        batch, plans = replay.step(line)
        assert replay.parts.executor.step(batch, plans).seconds == line["seconds"]
