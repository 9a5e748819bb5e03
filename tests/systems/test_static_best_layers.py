"""static_best by layer: its settings against trying everything, what more memory buys, and what it chooses."""

from dataclasses import replace
from itertools import pairwise, product
from math import inf
from pathlib import Path

import numpy as np
import pytest

from tests.cost.by_layer.test_stage_cuts import every_cut
from tests.helpers.oracles import small
from tests.systems.test_static_best import whole_steps
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.memory.needs import memory_of_stage
from zbench.describe.batch import Batch
from zbench.interfaces import study
from zbench.interfaces.study import Clock, Sample, Study
from zbench.simulated.compared import ComparedSteps
from zbench.simulated.executor import Simulated
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.mesh import Mesh
from zbench.systems.static_best import search as static_best_search
from zbench.systems.static_best.by_layer import mesh_settings
from zbench.systems.static_best.candidate import BY_LAYER, LAYOUT, Candidate, layer_words
from zbench.systems.static_best.layer_settings import LayerSetting, LayerSettings
from zbench.systems.static_best.planner import StaticBest
from zbench.systems.static_best.search import last_batches, race_of, ranked_layouts

LONGEST = 2048


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Fewer batches than for a run."""
    monkeypatch.setattr(study, "DRAWN", 40)
    monkeypatch.setattr(study, "PLAYED", 4)
    monkeypatch.setattr(static_best_search, "ROUNDS", ((2, 4), (2, 2)))


def batch_of(number: int) -> Batch:
    return Batch(np.append(np.random.default_rng(number).integers(64, 1024, 9), LONGEST), 0, number)


def settings_of(share: float, stages: int, layers: int = 6) -> LayerSettings:
    """The settings of a mesh without context parallelism on as many nodes of two GPUs as stages. share: of what a GPU
    needs for packs of 4,000 tokens with no layer recomputed, beyond what it needs with all recomputed in full."""
    one = small(stages, 2)
    model = replace(one.model, num_layers=layers, pipeline_parallel=stages, sharding="zero1")

    def of(memory: float) -> LayerSettings:
        device = replace(one.cluster.device, memory_bytes=memory)
        cluster = replace(one.cluster, device=device)
        mesh = Mesh(make_cost(cluster, model), "ring", 1, "balanced")
        return LayerSettings.of(mesh, lambda laid: make_cost(cluster, laid), [batch_of(0), batch_of(1)], LONGEST)

    needs = [[of(1e15)._bytes("full", at, layers // stages, again, 4000) for at in range(stages)]
             for again in (layers // stages, 0)]  # fmt: skip
    low, high = map(max, needs)
    return of(low + share * (high - low))


def tried(of: LayerSettings, level: str, size: int, stages: int, layers: int) -> float:
    """Returns the least seconds over all cuts and numbers of recomputed layers that fit."""
    memory = of.mesh.cost.cluster.device.memory_bytes
    found = [inf]
    for cut in every_cut(layers, stages):
        for again in product(*(range(count + 1) for count in cut)):
            rows = zip(range(stages), cut, again, strict=True)
            if all(of._bytes(level, *three, size) <= memory for three in rows):
                found.append(of.seconds(level, cut, again, size))
    return min(found)


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_setting_is_the_fastest_of_all_cuts_and_numbers_of_layers(stages: int) -> None:
    some = 0
    for share, level, size in product((-0.2, 0.2, 0.6, 1.5), ("selective", "full"), (2100, 4000)):
        of = settings_of(share, stages)
        found = of.setting(level, size)
        assert (inf if found is None else found.seconds) == pytest.approx(tried(of, level, size, stages, 6), rel=1e-12)
        some += found is not None and 0 < sum(found.again) < 6
    assert some


@pytest.mark.parametrize("stages", [1, 2])
def test_more_memory_is_never_slower_and_its_settings_fit(stages: int) -> None:
    best = []
    for share in np.arange(-0.8, 1.4, 0.2).tolist():
        of = settings_of(share, stages)
        found = of.found()
        assert all(one.seconds <= other.seconds for one, other in pairwise(found))
        for one in found:
            rows = zip(range(stages), one.cut, one.again, strict=True)
            memory = of.mesh.cost.cluster.device.memory_bytes
            assert all(of._bytes(one.level, *three, one.pack_tokens) <= memory for three in rows)
        best.append(found[0].seconds if found else inf)
    assert all(after <= before * (1 + 1e-9) for before, after in pairwise(best))
    assert best[-1] < best[len(best) // 2] < inf


def test_a_setting_says_what_a_model_has() -> None:
    model = replace(small(2, 2).model, num_layers=6, pipeline_parallel=2)
    some = LayerSetting("full", (4, 2), (3, 0), 100, 1.0).model(model)
    assert (some.recompute, some.recompute_layers, some.stage_layers) == ("full", (3, 0), (4, 2))
    assert layer_words(some) == " of the first 3, 0 layers of stages of 4, 2"
    every = LayerSetting("selective", (3, 3), (3, 3), 100, 1.0).model(model)
    assert (every.recompute, every.recompute_layers, every.stage_layers) == ("selective", "all", "even")
    one = LayerSetting("full", (6,), (2,), 100, 1.0).model(replace(model, pipeline_parallel=1))
    assert (one.recompute_layers, layer_words(one)) == (2, " of the first 2 of 6 layers")
    none = LayerSetting("full", (3, 3), (0, 0), 100, 1.0).model(model)
    assert (none, layer_words(none)) == (model, "")


def study_of(cost: Cost, clock: Clock, trains: bool = False) -> Study:
    have = cost.cluster, cost.model, batch_of
    return Study(*have, lambda model: make_cost(cost.cluster, model), clock, 2, trains)


def one_gpu() -> Cost:
    """A GPU whose memory has room for the longest sequence where half of the layers are recomputed."""
    one = small(1, 1)
    cost = Cost(one.cluster, replace(one.model, num_layers=8, sharding="zero3"))
    memory = memory_of_stage(replace(cost, model=replace(cost.model, recompute="full")), 0, 8, 4)
    device = replace(cost.cluster.device, memory_bytes=float(memory.bytes(1.05 * LONGEST)))
    return replace(cost, cluster=replace(cost.cluster, device=device))


def test_layers_that_differ_are_chosen_where_memory_has_room_for_some() -> None:
    cost = one_gpu()
    told = study_of(cost, whole_steps)
    choice = StaticBest(cost, search="layers").choose(told)
    assert tuple(choice.model) == BY_LAYER
    assert " of the first " in choice.words
    model = replace(cost.model, **choice.model)
    assert 0 < model.recomputed_layers < 8
    batches = Sample.of(told).some(2)
    every = [model, *(replace(model, recompute_layers="all", recompute=level) for level in ("selective", "full"))]
    found = [Candidate(one, Mesh(make_cost(cost.cluster, one), **choice.keys)) for one in every]
    mine, *others = (one.seconds(batches, whole_steps) for one in found)
    assert mine < min(others)


@pytest.mark.parametrize(("memory", "sets"), [(1.0, BY_LAYER), (3.0, LAYOUT)])
def test_layers_that_differ_are_chosen_where_they_beat_one_strategy_for_all(
    memory: float, sets: tuple[str, ...]
) -> None:
    """As if both were searched to the end: what is left out on the way cannot be chosen."""
    cost = one_gpu()
    cluster = cost.cluster.part(1, 1, 1)
    device = replace(cluster.device, memory_bytes=cluster.device.memory_bytes * memory)
    cost = replace(cost, cluster=replace(cluster, device=device))
    told = study_of(cost, whole_steps)
    choice = StaticBest(cost, search="layers").choose(told)
    sample = Sample.of(told)
    last = last_batches(told, sample)
    alike = ranked_layouts(told, sample, (), "balanced", race_of(told, sample))[:1]
    model = replace(cost.model, **choice.model)
    chosen = Candidate(model, Mesh(make_cost(cost.cluster, model), **choice.keys)).seconds(last, whole_steps)
    rivals = [one.seconds(last, whole_steps) for one in alike]
    assert chosen <= min(rivals, default=inf)
    assert tuple(choice.model) == sets
    assert (chosen == min(rivals, default=inf)) == (sets == LAYOUT)


def test_more_layers_are_recomputed_where_an_account_has_less_room() -> None:
    cost = one_gpu()
    told = study_of(cost, whole_steps)
    race = race_of(told, Sample.of(told))
    (mesh, *_) = mesh_settings(cost.model, cost, told.cost_of, "balanced", race)
    race = replace(race, hard=Batch(np.array([9000]), 0, 0))
    least = replace(next(one for one in mesh.settings if one.level == "full"), again=(0,))
    fitting = mesh.fitting(least, race)
    assert not race.fits(mesh.candidate(least))
    assert fitting is not None
    assert race.fits(fitting)
    assert 0 < fitting.model.recomputed_layers < 8


@pytest.mark.parametrize("why", ["attention", "trains", "adaptive"])
def test_runs_without_such_steps_are_told_in_one_sentence(why: str) -> None:
    cost = small(2, 2)
    clocks: dict[str, Clock] = {
        "attention": StepEstimate,
        "trains": StepEstimate,
        "adaptive": lambda one: ComparedSteps(Simulated(one, adaptive_recompute=True)),
    }
    with pytest.raises(ValueError, match=r"^system\.search is layers; it takes executor=simulated with recompute="):
        StaticBest(cost, search="layers").choose(study_of(cost, clocks[why], why == "trains"))


def hosting(rate: float, **of: object) -> Cost:
    """Two GPUs with links to hosts of so many bytes a second."""
    cost = small(1, 2)
    cluster = replace(cost.cluster, host_bandwidth=rate, host_efficiency=1.0, host_latency=1e-5, host_memory=1e12)
    cluster = replace(cluster, host_adam_bandwidth=1e11)
    return make_cost(cluster, replace(cost.model, num_layers=8, sharding="zero1", **of), False, True)


def settings_on_hosts(rate: float, layers: str | int) -> LayerSettings:
    cost = hosting(rate, offload="activations", offload_layers=layers)
    mesh = Mesh(cost, "ring", 1, "balanced")
    return LayerSettings.of(mesh, lambda laid: make_cost(cost.cluster, laid, False, True), [batch_of(0)], LONGEST)


@pytest.mark.parametrize("layers", ["all", 3])
@pytest.mark.parametrize("rate", [1e8, 1e9, 1e10, 1e13])
def test_settings_wait_for_hosts_as_the_clock_does(rate: float, layers: str | int) -> None:
    """Of every level and 0, 4 and 8 of 8 recomputed layers, to a tenth of a step."""
    of = settings_on_hosts(rate, layers)
    for level, again in product(("selective", "full"), (0, 4, 8)):
        setting = LayerSetting(level, (8,), (again,), 4000, of.seconds(level, (8,), (again,), 4000))
        model = setting.model(of.mesh.cost.model)
        one = Candidate(model, Mesh(make_cost(of.mesh.cost.cluster, model, False, True), "ring", 1, "balanced", 4000))
        clock = one.seconds([batch_of(0)], whole_steps)
        alone = replace(model, offload="none", offload_layers="all")
        bare = replace(one, model=alone, mesh=replace(one.mesh, cost=make_cost(of.mesh.cost.cluster, alone)))
        reckoned = setting.seconds - settings_on_hosts(1e15, layers).seconds(level, (8,), (again,), 4000)
        assert reckoned == pytest.approx(clock - bare.seconds([batch_of(0)], whole_steps), abs=0.1 * clock)


def test_more_layers_are_recomputed_where_copies_take_longer_than_that() -> None:
    """Memory has room for all layers; a slow link has not, and a fast one carries all."""
    slow, fast = (settings_on_hosts(rate, "all") for rate in (1e9, 1e14))
    for of, most in ((slow, 7), (fast, 0)):  # the last layer has nothing there
        for level in ("selective", "full"):
            found = of.setting(level, 4000)
            assert found is not None
            assert found.again == (most,)
            assert found.seconds == min(of.seconds(level, (8,), (again,), 4000) for again in range(9))
    here = settings_of(1.5, 1)
    assert here.again("full", 0, 6, 2100) == here.fewest("full", 0, 6, 2100) == 0


def test_layers_are_searched_with_activations_and_optimizer_on_hosts() -> None:
    cost = hosting(1e9, offload="activations_and_optimizer")
    have = replace(study_of(cost, whole_steps), cost_of=lambda model: make_cost(cost.cluster, model, False, True))
    choice = StaticBest(cost, search="layers").choose(have)
    model = replace(cost.model, **choice.model)
    assert model.recomputed_layers > 0
    batches = Sample.of(have).some(2)
    found = [Candidate(one, Mesh(have.cost_of(one), **choice.keys)) for one in (model, model.keeping_all)]
    mine, kept = (one.seconds(batches, whole_steps) for one in found)
    assert mine < 0.9 * kept


def test_what_else_waits_in_host_memory_and_other_words_are_refused() -> None:
    inputs = hosting(1e10, offload="inputs", recompute="full")
    with pytest.raises(ValueError, match=r"^system\.search is layers and memory\.offload is inputs; inputs are on "):
        StaticBest(inputs, search="layers").choose(study_of(inputs, whole_steps))
    for key in ("offload_layers", "offload_tokens"):
        some = hosting(1e10, offload="activations", **{key: "auto"})
        with pytest.raises(ValueError, match=rf"^system\.search is layers and memory\.{key} is auto; how many layers"):
            StaticBest(some, search="layers").choose(study_of(some, whole_steps))
    with pytest.raises(ValueError, match=r"^system\.search is 'greedy'; it takes uniform or layers"):
        StaticBest(inputs, search="greedy")
