"""Numbers of layers on hosts that a run with stages leaves open: the closed form beside the clock, what runs take."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from tests.helpers.oracles import small
from tests.simulated.test_host_layers import HOST, step_of, with_room
from zbench import CONF
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.cost.memory.needs import memory_of
from zbench.describe.batch import Batch
from zbench.interfaces.dealt import Dealt
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.simulated.executor import Simulated
from zbench.simulated.host_layers import LayerChoices, LayerCounts, candidate_counts, has_room
from zbench.simulator.steps.least.layer_seconds import LayerSeconds
from zbench.systems.local_packing import LocalPacking

BATCH = Batch(np.full(32, 4096), 0, 0)
UPDATES = ("as_gradients_come", "after_backward", "across_steps")


def job(cpus: float = 132e9, **model: object) -> Cost:
    """Two stages, each of four GPUs on a node; layers large enough that starts of kernels are little."""
    one = small(2, 4, model="gqa", memory=4e12)
    of = {"num_layers": 8, "recompute": "full", "sharding": "zero1", "offload": "optimizer", "pipeline_parallel": 2,
          "vocab": 1000, "hidden": 512, "ffn_hidden": 4096, "micro_batches": 4, **model}  # fmt: skip
    cluster = replace(one.cluster, **{**HOST, "host_adam_bandwidth": cpus})
    return make_cost(cluster, replace(one.model, **of), False, True)


def clock(cost: Cost, counts: LayerCounts) -> float:
    own = counts.of(cost.gpus.model)
    one = make_cost(cost.gpus.cluster, own, False, True)
    return Simulated(one).step(BATCH, Dealt(LocalPacking(one), 4).plan(BATCH)).seconds


@pytest.mark.parametrize("when", UPDATES)
@pytest.mark.parametrize("cpus", [3e8, 3e9, 3e10])
@pytest.mark.parametrize("stages", ["even", (5, 3)])
def test_a_step_takes_as_long_as_the_clock_has_it(cpus: float, when: str, stages: object) -> None:
    """What numbers add to a step with none on hosts, to 8 % of it; from CPUs that are waited for to ones that are
    not. What stages send each other, and parameters that are gathered, are in neither difference."""
    cost = job(cpus, host_updates=when, stage_layers=stages)
    seconds = LayerSeconds.of(cost, BATCH)
    least, alone = step_of(seconds, LayerCounts(8, 0, 0), 4), clock(cost, LayerCounts(8, 0, 0))
    for optimizer, carried in product((2, 4, 6, 8), (0, 1, 2) if when == "across_steps" else (0,)):
        counts = LayerCounts(8, 0, optimizer, carried)
        played = clock(cost, counts)
        assert step_of(seconds, counts, 4) - least == pytest.approx(played - alone, abs=0.08 * played)


def test_later_stages_have_time_for_more() -> None:
    """A stage's updates are beside the backward of stages before it: as long as the first stage's takes, the second's
    layers are updated for nothing."""
    seconds = LayerSeconds((4, 4), 1.0, 2.0, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0, 0.0)
    steps = [step_of(seconds, LayerCounts(0, 0, count)) for count in range(9)]
    # Forward 8 and backward 16 of two stages, each layer twice as long on half of the GPUs. The first stage's gradients
    # begin to come at 36, and CPUs take 6 for a layer.
    assert steps == [48] * 7 + [54, 60]
    whole = [step_of(replace(seconds, stages=(8,)), LayerCounts(0, 0, count)) for count in range(9)]
    assert whole == [24] * 5 + [25, 28, 31, 34]


def test_more_micro_batches_have_a_shorter_bubble_and_the_same_updates() -> None:
    seconds = LayerSeconds((4, 4), 1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert [step_of(seconds, LayerCounts(0, 0, 0), count) for count in (1, 2, 4)] == [48, 36, 30]
    slow = replace(seconds, on_hosts=100.0)
    late = [step_of(slow, LayerCounts(0, 0, 8), count) - 800 for count in (1, 4)]
    assert late[0] > late[1] > 0  # CPUs begin when the first gradients of the last micro-batch have come


@pytest.mark.parametrize("when", UPDATES)
def test_no_numbers_that_fit_are_better(when: str) -> None:
    """Of all numbers, in rooms from a micro-batch a sequence to one for all."""
    carried = {"carried_layers": "auto"} if when == "across_steps" else {}
    cost = job(3e9, host_updates=when, optimizer_layers="auto", recompute_layers="auto", micro_batches=1, **carried)
    seconds, tokens, found = LayerSeconds.of(cost, BATCH), BATCH.num_tokens // 4, set()
    every = [LayerCounts(again, 0, count, some) for again, count in product(range(5), range(9))
             for some in (range(count + 1) if carried else [0])]  # fmt: skip
    memory = {one: memory_of(replace(cost, model=one.of(cost.model))) for one in every}
    least, most = (edge(one.bytes(size) for one in memory.values()) for edge, size in ((min, 1024), (max, tokens)))
    for room in np.linspace(least, most, 5).astype(int).tolist():
        chosen = LayerChoices(with_room(cost, room), BATCH, False).best(1.0)
        fits = {one: of for one, of in memory.items() if of.bytes(1024) <= room}
        parts = {one: int(np.ceil(tokens / of.tokens(room))) for one, of in fits.items()}
        assert chosen in fits
        assert step_of(seconds, chosen, parts[chosen]) == pytest.approx(
            min(step_of(seconds, one, count) for one, count in parts.items())
        )
        found.add(chosen)
    assert len(found) > 1


def test_a_batch_goes_in_micro_batches() -> None:
    cost = job(optimizer_layers="auto")
    one = memory_of(replace(cost, model=LayerCounts(4, 0, 8).of(cost.model))).bytes(BATCH.num_tokens // 32)
    assert has_room(with_room(cost, one), BATCH)
    assert not has_room(with_room(cost, one // 2), BATCH)
    few = Batch(np.full(2, 64 * 1024), 0, 0)  # as many tokens, in sequences that are too long
    assert not has_room(with_room(cost, one), few)


def test_a_number_for_each_stage_stays() -> None:
    cost = job(optimizer_layers="auto", recompute_layers=(4, 1))
    (counts, *_) = candidate_counts(cost, BATCH)
    assert counts.of(cost.gpus.model).recompute_layers == (4, 1)


def test_a_run_has_what_was_chosen() -> None:
    words = ["cluster=h100_4x8", "model=llama3_8b", "recompute=full", "memory=zero_offload", "sharding=zero1",
             "memory.optimizer_layers=auto", "parallel=pp4", "system=zeppelin"]  # fmt: skip
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", words)
    parts = Parts.of(config, Settings.of(config))
    assert parts.layer_choice is not None
    assert 24 < parts.layer_choice.counts.optimizer < 32  # all of the last three stages, and some of the first
    assert parts.model.optimizer_layers == parts.layer_choice.counts.optimizer
    assert not parts.nothing_fits
