"""Buckets of gradients, and parameters gathered before the first forward, on the clock."""

from dataclasses import replace

import numpy as np
import pytest

from tests.simulator.steps.test_play import planned
from zbench.cost.job import make_cost
from zbench.describe.arrays import Floats
from zbench.describe.overlap import ALL, END, LAYER, StepOverlap
from zbench.simulator.steps.expand import CLASS
from zbench.simulator.steps.hop_by_hop import HopByHop
from zbench.simulator.steps.instances import StepOrder
from zbench.simulator.steps.play import play_layers, play_some_layers, play_step
from zbench.step.operations import COMPUTE, GATHER, REDUCE
from zbench.step.passes.build import whole_step
from zbench.step.proof.prove import prove_step
from zbench.step.template import Step


def step_of(system: str, zero: str, window: int | str, bucket: float | str, layers: int = 26) -> tuple[Step, tuple]:
    found, cost = planned(system)
    model = replace(found.model, num_layers=layers, sharding=f"zero{zero}")
    size = bucket if isinstance(bucket, str) else bucket * model.layer_params
    step = whole_step(model, found.plans, 1, zero, StepOverlap(window, size))
    prove_step(step)
    return step, (found.plans, make_cost(cost.cluster, model))


def moments(program: HopByHop, start: Floats, done: Floats, name: str, computes: bool) -> dict[int, tuple]:
    """By layer, when the computes of a template's instances, or the messages of their collectives, begin and end."""
    found = {}
    for number, one in enumerate(program.instances):
        mine = np.arange(program.begin[number], program.begin[number + 1])
        kinds = program.kinds[mine]
        mine = mine[
            (kinds == COMPUTE) if computes else (np.isin(kinds, (GATHER, REDUCE)) & (program.table[CLASS, mine] >= 0))
        ]
        if one.variant.of.template.name == name and len(mine):
            found[one.layer] = (start[mine].min(), done[mine].max())
    return found


@pytest.mark.parametrize("bucket", [2, 3, END])
def test_no_reduction_of_a_bucket_begins_before_all_of_its_gradients_are_made(bucket: int | str) -> None:
    step, given = step_of("ring", "3", 1, bucket, 8)
    program, timeline = play_layers(step, *given)
    made = moments(program, timeline.start, timeline.done, "backward", True)
    sent = moments(program, timeline.start, timeline.done, "reduce", False)
    assert sorted(sent) == list(range(8))
    size = 8 if bucket == END else bucket
    for top in range(7, -1, -size):
        mine = range(max(top - size + 1, 0), top + 1)
        assert min(sent[layer][0] for layer in mine) >= made[mine[0]][1] - 1e-12
        if mine[0]:  # and the bucket is beside the layers that follow
            assert min(sent[layer][0] for layer in mine) < made[mine[0] - 1][1]
    update = moments(program, timeline.start, timeline.done, "optimizer", True)
    assert min(begin for begin, _ in update.values()) >= made[0][1]


def test_nothing_is_computed_before_all_parameters_are_gathered() -> None:
    step, given = step_of("ring", "1", ALL, LAYER, 6)
    program, timeline = play_layers(step, *given)
    gathered = moments(program, timeline.start, timeline.done, "gather", False)
    gathered |= {6: moments(program, timeline.start, timeline.done, "gather_head", False)[6]}
    first = timeline.start[program.kinds == COMPUTE].min()
    assert sorted(gathered) == list(range(7))
    assert first >= max(end for _, end in gathered.values()) - 1e-12
    assert not moments(program, timeline.start, timeline.done, "forward", False)


@pytest.mark.parametrize(
    ("system", "zero", "window", "bucket"),
    [("zeppelin", "3", 1, 2), ("ring", "3", 1, 3), ("zeppelin", "1", ALL, END), ("ring", "3", 2, 5)],
)
def test_layers_that_are_left_out_take_what_they_take_played(
    system: str, zero: str, window: int | str, bucket: int | str
) -> None:
    step, given = step_of(system, zero, window, bucket, 53)
    _, timeline = play_layers(step, *given)
    some = StepOrder.of(step).instances(12)
    assert some.num_layers < 53
    assert len(some) + some.skipped.sum() == sum(one.repeats for one in step.order)
    few, played = play_some_layers(step, *given, 12), play_step(step, *given)
    assert few.seconds == pytest.approx(timeline.done.max(), rel=2e-2 if system == "zeppelin" else 2e-3)
    assert played.seconds == pytest.approx(timeline.done.max(), rel=4e-3)
    for one in (few, played):
        assert sum(one.spent.values()) == pytest.approx(np.full(16, one.seconds), rel=1e-12)


@pytest.mark.parametrize(
    ("window", "bucket", "slower"), [(4, 4, 20), (2, 2, 10), (20, LAYER, 1), (26, LAYER, 20), (26, 3, 1)]
)
def test_windows_of_several_layers_take_what_they_take_with_all_layers(
    window: int, bucket: int | str, slower: int
) -> None:
    """The last layers of a backward gather nothing, so they do not stand for those before. slower: times, of NICs."""
    step, (plans, cost) = step_of("zeppelin", "3", window, bucket)
    slow = replace(cost.cluster, nic_bandwidth=cost.cluster.nic_bandwidth / slower)
    given = plans, make_cost(slow, cost.model)
    _, timeline = play_layers(step, *given)
    assert play_step(step, *given).seconds == pytest.approx(timeline.done.max(), rel=1e-9)


def test_the_same_bytes_are_sent_and_later_reductions_take_longer() -> None:
    """Seconds beyond those with a reduction a layer grow with the bucket; what is left to wait for in the end is
    waiting for gradients."""
    seconds, waits, sent = [], [], set()
    for bucket in (LAYER, 4, END):
        played = play_step(*((made := step_of("zeppelin", "3", 1, bucket))[0], *made[1]))
        seconds.append(played.seconds)
        waits.append(played.spent["waiting_gradients"].mean())
        sent.add(int(played.nic_tx["gradients"].sum()))
    assert seconds[0] < seconds[1] < seconds[2]
    assert waits[0] < waits[1] < waits[2]
    assert waits[2] - waits[0] > 0.9 * (seconds[2] - seconds[0])
    assert len(sent) == 1


def test_gradients_are_held_until_they_are_reduced() -> None:
    """With ZeRO-3 a bucket of four holds three layers' more than a reduction a layer; in the end those of all layers,
    and of the head, are whole on every GPU."""
    held = {}
    for bucket in (LAYER, 4, END):
        step, (plans, cost) = step_of("zeppelin", "3", 1, bucket, 24)
        memory = play_step(step, plans, cost).memory
        held[bucket] = sum(size.max() for name, size in memory.held.items() if name.startswith("dw"))
        if bucket == END:
            whole = 4 * (24 * cost.model.layer_params + 2 * cost.model.head_params)
            assert held[END] == pytest.approx(whole, rel=0.02)
    assert held[END] > held[4]
