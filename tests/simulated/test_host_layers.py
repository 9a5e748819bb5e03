"""Numbers of layers on hosts that a run leaves open: the best of all that fit, and what a run makes of them."""

from dataclasses import asdict, replace
from itertools import product
from math import inf

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from tests.helpers.oracles import small
from zbench import CONF
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.memory.needs import least_bytes
from zbench.describe.batch import Batch
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.simulated.host_layers import (
    SHARES,
    LayerChoice,
    LayerChoices,
    LayerCounts,
    candidate_counts,
    quickest,
)
from zbench.simulator.steps.least.layer_seconds import LayerSeconds
from zbench.step.passes.memory.host_memory import resting_bytes

HOST = {
    "host_bandwidth": 25e9, "host_efficiency": 0.8, "host_latency": 1e-5, "host_memory": 1e13,
    "host_adam_bandwidth": 132e9,
}  # fmt: skip
BATCH = Batch(np.full(8, 4096), 0, 0)
OPEN = {"optimizer_layers": "auto", "parameter_layers": "auto", "recompute_layers": "auto"}


def job(**model: object) -> Cost:
    one = small(2, 4, model="gqa", memory=4e12)
    of = {"num_layers": 5, "recompute": "full", "sharding": "zero3", "offload": "optimizer", **model}
    return make_cost(replace(one.cluster, **HOST), replace(one.model, **of), False, True)


def step_of(seconds: LayerSeconds, counts: LayerCounts, micro_batches: int = 1) -> float:
    return seconds.step(counts.recomputed, counts.resting(sum(seconds.stages)), micro_batches)


def chosen_counts(cost: Cost, batch: Batch, all_or_none: bool = False, share: float = 1.0) -> LayerCounts:
    return LayerChoices(cost, batch, all_or_none).best(share)


def with_room(cost: Cost, room: float) -> Cost:
    device = replace(cost.cluster.device, memory_bytes=int(room))
    return replace(cost, cluster=replace(cost.cluster, device=device))


@pytest.mark.parametrize("updates", ["as_gradients_come", "after_backward", "across_steps"])
def test_no_numbers_that_fit_are_better(updates: str) -> None:
    """Of all numbers, in rooms from what all on hosts need to what nothing on hosts needs."""
    carried = {"carried_layers": "auto"} if updates == "across_steps" else {}
    cost, found = job(host_updates=updates, **OPEN, **carried), set()
    layers = range(cost.model.num_layers + 1)
    every = [LayerCounts(*three, some) for three in product(layers, layers, layers) for some in
             (range(three[2] + 1) if carried else [0])]  # fmt: skip
    needs = {one: least_bytes(replace(cost, model=one.of(cost.model)), BATCH.num_tokens) for one in every}
    seconds = LayerSeconds.of(cost, BATCH)
    for room in np.linspace(min(needs.values()), max(needs.values()), 7):
        chosen = chosen_counts(with_room(cost, room), BATCH)
        assert needs[chosen] <= room
        # Of pairs on hosts it takes the fewest layers that are recomputed, which no more of them is quicker than.
        least = min(step_of(seconds, one) for one in every if needs[one] <= room)
        assert step_of(seconds, chosen) == pytest.approx(least)
        found.add(chosen)
    assert len(found) > 3


def test_memory_falls_with_each_number() -> None:
    cost = job()
    for at in range(3):
        sizes = []
        for count in range(6):
            three = [2, 2, 2]
            three[at] = count
            sizes.append(least_bytes(replace(cost, model=LayerCounts(*three).of(cost.model)), BATCH.num_tokens))
        assert sizes == sorted(sizes, reverse=True)
        assert sizes[0] > sizes[-1]


def test_what_has_no_room_has_all_on_hosts() -> None:
    cost = with_room(job(**OPEN), 1e6)
    assert chosen_counts(cost, BATCH) == LayerCounts(5, 5, 5)


def test_what_has_no_room_has_as_many_gradients_for_the_next_step_as_it_is_given() -> None:
    cost = with_room(job(**OPEN, host_updates="across_steps", carried_layers=2), 1e6)
    assert chosen_counts(cost, BATCH) == LayerCounts(5, 5, 5, 2)


def test_no_more_than_hosts_have_room_for() -> None:
    cost = job(optimizer_layers="auto")
    quick = replace(cost.cluster, host_adam_bandwidth=1e15)
    counts = chosen_counts(replace(cost, cluster=quick), BATCH)
    room = resting_bytes(counts.of(cost.model), quick) - 1
    fewer = chosen_counts(replace(cost, cluster=replace(quick, host_memory=float(room))), BATCH)
    assert 0 < fewer.optimizer < counts.optimizer


def test_some_layers_alone_are_recomputed_only_where_they_can_be() -> None:
    cost = job(offload="none", recompute_layers="auto")
    model = cost.model
    most, least = (
        least_bytes(replace(cost, model=LayerCounts(one, 0, 0).of(model)), BATCH.num_tokens) for one in (0, 5)
    )
    middle = with_room(cost, (most + least) / 2)
    assert 0 < chosen_counts(middle, BATCH).recomputed < 5
    assert chosen_counts(middle, BATCH, True).recomputed == 5
    assert chosen_counts(with_room(cost, most), BATCH, True).recomputed == 0
    assert LayerCounts(3, 0, 0).of(replace(model, pipeline_parallel=2, stage_layers=(3, 2))).recompute_layers == "all"


def test_with_slow_cpus_as_few_as_fit_and_with_quick_ones_all() -> None:
    cost = job(optimizer_layers="auto")
    slow, quick = (
        replace(cost, cluster=replace(cost.cluster, host_adam_bandwidth=rate)) for rate in (1e6, 1e15)
    )  # fmt: skip
    assert chosen_counts(slow, BATCH).optimizer == 0
    assert chosen_counts(quick, BATCH).optimizer >= 4  # the last gradients to come are not hidden
    assert LayerCounts(5, 0, 0).of(cost.model).offload == "none"


def test_candidates_begin_with_the_closed_form_and_have_room_for_more() -> None:
    cost = job(offload="none", recompute_layers="auto")
    most, least = (
        least_bytes(replace(cost, model=LayerCounts(one, 0, 0).of(cost.model)), BATCH.num_tokens) for one in (0, 5)
    )
    middle = with_room(cost, 0.7 * most + 0.3 * least)
    found = candidate_counts(middle, BATCH)
    assert found[0] == chosen_counts(middle, BATCH)
    assert len(set(found)) == len(found) > 1
    assert found[-1].recomputed == 5
    recomputed = [one.recomputed for one in found]
    assert recomputed == sorted(recomputed)
    for one, share in zip(found, SHARES, strict=False):  # each as few as its room takes
        assert one == chosen_counts(middle, BATCH, share=share)
    assert candidate_counts(with_room(cost, 2 * most), BATCH) == [LayerCounts(0, 0, 0), LayerCounts(5, 0, 0)]
    assert candidate_counts(job(), BATCH) == [LayerCounts(5, 0, 5)]


def test_the_quickest_is_taken_and_the_closed_form_beside_it() -> None:
    one, other, none = LayerCounts(1, 0, 0), LayerCounts(2, 0, 0), LayerCounts(3, 0, 0)
    seconds = {one: 3.0, other: 2.0, none: inf}
    choice = quickest([one, other, none], seconds.__getitem__)
    assert (choice.counts, choice.closed) == (other, one)
    assert choice.told == {"recomputed": 1, "parameters": 0, "optimizer": 0, "carried": 0, "regret": 0.5}
    assert quickest([none, one], seconds.__getitem__).told == asdict(none)  # the closed form's does not fit
    assert quickest([one], seconds.__getitem__) == LayerChoice(one, one)
    assert quickest([none, replace(none, carried=1)], lambda _: inf).counts == none


def test_a_run_asks_its_planner() -> None:
    """With 12 GiB the closed form recomputes 25 layers, which leaves zeppelin no room for uneven plans; a system that
    chooses before a run has no plans to ask for."""
    words = [
        "cluster=h100_4x8", "model=llama3_8b", "recompute=full", "memory=loss", "recompute.layers=auto",
        "memory.offload=optimizer", "memory.optimizer_layers=21", "sharding=zero3", "system=zeppelin",
        "cluster.device.memory_bytes=12GiB",
    ]  # fmt: skip
    told = {}
    for system in ("zeppelin", "static_best"):
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("config", [*words, f"system={system}"])
        told[system] = Parts.of(config, Settings.of(config))
    asked, closed = (told[system].layer_choice for system in ("zeppelin", "static_best"))
    assert asked is not None
    assert closed is not None
    assert asked.closed == closed.closed == closed.counts
    assert asked.counts.recomputed > asked.closed.recomputed
    facts = told["zeppelin"].facts()
    assert facts["chosen_layers"] == asdict(asked.counts)
    assert facts["closed_form_layers"]["regret"] > 0.5
    assert "regret" not in told["static_best"].facts()["closed_form_layers"]
    # The run's own clock says so, too.
    seconds = []
    for counts in (asked.counts, asked.closed):
        with initialize_config_dir(str(CONF), version_base="1.3"):
            config = compose("config", [*words, f"recompute.layers={counts.recomputed}"])
        parts = Parts.of(config, Settings.of(config))
        batch = parts.batch(0)
        seconds.append(parts.executor.step(batch, make_system(config, parts.cost).plan(batch)).seconds)
    assert seconds == pytest.approx([asked.seconds, asked.closed_seconds])


def test_a_run_has_what_was_chosen() -> None:
    words = [
        "cluster=h100_4x8", "model=llama3_8b", "recompute=full", "memory=zero_offload", "memory.optimizer_layers=auto",
        "sharding=zero3",
    ]  # fmt: skip
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", words)
    parts = Parts.of(config, Settings.of(config))
    counts = LayerCounts(**parts.chosen_layers)
    assert 0 < counts.optimizer < 32
    assert counts.recomputed == 32
    assert parts.model.optimizer_layers == parts.cost.model.optimizer_layers == counts.optimizer
    assert parts.facts()["chosen_layers"] == parts.chosen_layers
