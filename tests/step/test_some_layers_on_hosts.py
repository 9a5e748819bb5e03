"""Optimizer state of the last layers, parameters of the first, and updates across steps, in host memory."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.oracles import small
from tests.helpers.step_text import is_read_as_written
from tests.helpers.steps import MODEL, execute, fault, plan_of, rejected_mutants
from tests.step.test_optimizer_on_hosts import HOST, order_of
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.cost.cost import OPTIMIZER_BYTES, Cost
from zbench.describe.overlap import END, StepOverlap
from zbench.plans.plan import Plan
from zbench.simulator.steps.play import PlayedStep, play_layers, play_step
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.memory.at_hosts import HostLayers
from zbench.step.passes.memory.optimizer_on_hosts import with_optimizer_on_hosts
from zbench.step.reading.read import read_step
from zbench.step.template import Step
from zbench.step.text import step_text

FIVE = replace(MODEL, num_layers=5, num_kv_heads=4)
# (optimizer state of the last, parameters of the first, gradients carried on)
KINDS = [(2, 0, 0), (4, 0, 0), (0, 2, 0), (0, 5, 0), (2, 2, 0), (3, 4, 0), (5, 5, 0)]
CARRIED = [(5, 0, 5), (5, 0, 2), (3, 0, 3), (4, 0, 1), (5, 3, 3), (3, 3, 2)]


def played(step: Step, plans: Sequence[Plan], **host: float) -> PlayedStep:
    cluster = replace(small(2, 2).cluster, **{**HOST, **host})
    return play_step(step, plans, Cost(cluster, FIVE))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", [*KINDS, *CARRIED])
@pytest.mark.parametrize(
    ("zero", "ranks", "degree", "gpus_per_node", "batches", "tied", "bucket", "window", "level"),
    [
        ("1", 2, 2, 2, 1, False, "layer", 1, "none"),
        ("2", 4, 1, 2, 2, True, 2000, 1, "full"),
        ("3", 4, 1, 4, 1, False, END, 2, "none"),
        ("3", 2, 2, 2, 2, True, "layer", 0, "full"),
        ("3", 4, 1, 2, 1, False, "layer", 5, "none"),
    ],
)
def test_exact(
    kind: tuple[int, int, int],
    zero: str,
    ranks: int,
    degree: int,
    gpus_per_node: int,
    batches: int,
    tied: bool,
    bucket: int | str,
    window: int,
    level: str,
) -> None:
    """Proven, walked layer by layer, read back from text, and executed within 1e-12."""
    kind = kind if zero == "3" else (kind[0], 0, kind[2])
    model = replace(FIVE, tied_embeddings=tied)
    plans = [plan_of([9, 2], ranks, 4 // degree, first=at * 2) for at in range(batches)]
    step = whole_step(model, plans, degree, zero, StepOverlap(window, bucket), level)
    step = with_optimizer_on_hosts(step, gpus_per_node, HostLayers(5, *kind))
    assert (fault(step), unrolled_fault(step)) == ("", "")
    assert is_read_as_written(step)
    assert execute(step, plans, degree, model) < 1e-12


def test_after_the_backward_the_lowest_layers_go_first() -> None:
    plans = [plan_of([9, 2], 2, 4, first=at * 2) for at in range(2)]
    step = with_optimizer_on_hosts(whole_step(FIVE, plans, 1, "1"), 2, when="after_backward")
    assert (fault(step), execute(step, plans, 1, FIVE) < 1e-12) == ("", True)
    order, up = order_of(step), range(5)
    last = order.index(("embedding_backward.1", 0))
    late = [("optimizer_ends", 0), *(("optimizer_late", layer) for layer in up), ("optimizer_head_late", 0)]
    assert order[last + 1 :] == late
    sent = [one for one in order if one[0] in ("optimizer_sent", "optimizer_head_sent")]
    assert sent == [("optimizer_head_sent", 0), *(("optimizer_sent", layer) for layer in reversed(up))]


def test_cpus_begin_when_all_gradients_have_come() -> None:
    """With slow CPUs all updates are waited for after the backward; as gradients come it hides some."""
    plans = [plan_of([400], 4, 4)]
    plain = whole_step(FIVE, plans, 1, "3")
    soon, late = (with_optimizer_on_hosts(plain, 2, when=when) for when in ("as_gradients_come", "after_backward"))
    quick = played(late, plans, host_adam_bandwidth=1e15)
    slow = played(late, plans, host_adam_bandwidth=1e7)
    state = sum(size[4:] for name, size in slow.memory.held.items() if name[0] == "s" and f"w{name[2:]}" == name[1:])
    assert slow.seconds - quick.seconds > OPTIMIZER_BYTES * state.max() / 12 / 1e7
    assert played(soon, plans, host_adam_bandwidth=1e7).seconds < slow.seconds


def test_layers_on_gpus_are_updated_there() -> None:
    """Their state is where it was, and hosts have that of the others, with one copy of each parameter."""
    plans = [plan_of([400], 4, 4)]
    plain = whole_step(FIVE, plans, 1, "3")
    some = played(with_optimizer_on_hosts(plain, 2, HostLayers(5, 2)), plans)
    held = some.memory.held
    on_gpus = sum(held[f"s{name}"][:4].sum() for name in ("wq", "wkv", "wo", "wz", "wd"))
    on_hosts = sum(held[f"s{name}"][4:].sum() for name in ("wq", "wkv", "wo", "wz", "wd"))
    assert on_hosts * 3 == on_gpus * 2
    assert held["swh"][:4].sum() == 0 < held["swh"][4:].sum()  # the head goes with the last layers
    assert held["swe"][4:].sum() == 0 < held["swe"][:4].sum()  # the table with the first
    step = with_optimizer_on_hosts(plain, 2, HostLayers(5, 2))
    names = [name for name, _ in order_of(step)]
    assert names.count("optimizer") == 3
    assert names[-1] == "optimizer_ends"
    sent = sum(one["host"][0] for one in stated_bytes(step))
    head = FIVE.head_params + FIVE.hidden
    assert sent == (4 + FIVE.element_bytes) * (2 * FIVE.layer_params + head)


def test_parameters_are_brought_before_they_are_gathered() -> None:
    """Forward and backward bring each share once; what GPUs updated is sent back, what hosts updated never leaves."""
    plans = [plan_of([400], 4, 4)]
    plain = whole_step(FIVE, plans, 1, "3")
    size = FIVE.element_bytes * FIVE.layer_params
    for kind, traffic in (((0, 2), 2 * (3 + 1) * size), ((5, 2), 2 * 2 * size)):
        step = with_optimizer_on_hosts(plain, 2, HostLayers(5, *kind))
        held = played(step, plans).memory.held
        assert held["wq"][4:].sum() >= 2 * FIVE.element_bytes * FIVE.hidden**2
        gradients = (4 * FIVE.total_params + FIVE.element_bytes * (FIVE.total_params - 2 * FIVE.layer_params)) * bool(
            kind[0]
        )
        assert sum(one["host"][0] for one in stated_bytes(step)) == traffic + gradients


def test_a_slow_link_is_waited_for_where_parameters_come() -> None:
    """A layer's parameters are brought when the one before is computed, not all at the start."""
    plans = [plan_of([400], 4, 4)]
    step = with_optimizer_on_hosts(whole_step(FIVE, plans, 1, "3"), 2, HostLayers(5, 0, 5))
    quick, slow = (played(step, plans, host_bandwidth=rate) for rate in (1e12, 1e5))
    share = FIVE.element_bytes * FIVE.layer_params * 5 / 4
    assert slow.seconds > quick.seconds + 3 * 0.9 * share / 1e5
    assert (slow.memory.peak == quick.memory.peak).all()


def test_carried_layers_are_updated_before_their_forward() -> None:
    plans = [plan_of([9, 2], 2, 4)]
    step = with_optimizer_on_hosts(whole_step(FIVE, plans, 1, "1"), 2, HostLayers(5, 5, 0, 2))
    order = order_of(step)
    assert order[:3] == [("optimizer_ends_first", 0), ("optimizer_first", 0), ("optimizer_first", 2)]
    assert order.index(("optimizer_2", 3)) < order.index(("backward_2", 2)) == order.index(("optimizer_sent", 2)) - 1
    carried = [HostLayers(8, 8, 0, count) for count in (0, 1, 2, 3, 8)]
    each = [[layer for layer in range(8) if one.of_layer(layer).gradients] for one in carried]
    assert each == [[], [0], [0, 4], [0, 2, 5], list(range(8))]


def test_updates_across_steps_hide_behind_the_forward() -> None:
    """CPUs that take as long as forward and backward together are waited for least where some layers are carried."""
    plans = [plan_of([400], 4, 4)]
    plain = whole_step(FIVE, plans, 1, "3")
    seconds = {
        count: played(
            with_optimizer_on_hosts(plain, 2, HostLayers(5, 5, 0, count)), plans, host_adam_bandwidth=1e7
        ).seconds
        for count in range(6)
    }
    assert min(seconds, key=seconds.__getitem__) not in (0, 5)


@pytest.mark.parametrize("kind", [(2, 2, 0), (5, 0, 2)])
def test_mutants_are_found(kind: tuple[int, int, int]) -> None:
    step = with_optimizer_on_hosts(whole_step(FIVE, [plan_of([3, 2], 2, 4)], 1, "3"), 2, HostLayers(5, *kind))
    assert rejected_mutants(step, 3) > 8


def test_text_says_from_which_layer_on() -> None:
    step = with_optimizer_on_hosts(whole_step(FIVE, [plan_of([3, 2], 2, 4)], 1, "3"), 2, HostLayers(5, 2, 1, 1))
    text = step_text(step)
    assert re.search(r"^begins swq\[0,0\] at 2, from layer 3$", text, re.M)
    assert re.search(r"^begins dwq\[0,0\] at 2, from layer 3, complete$", text, re.M)
    assert re.search(r"^begins dwq gone, from layer 4$", text, re.M)
    again = read_step(text)
    assert np.array_equal(again.layers_of_entries(again.begins), step.layers_of_entries(step.begins))


@pytest.mark.parametrize(
    ("kind", "when"),
    [((20, 0, 0), "after_backward"), ((20, 0, 6), "as_gradients_come"), ((12, 0, 0), "as_gradients_come")],
)
def test_steps_whose_cpus_update_are_played_with_all_layers(kind: tuple[int, int, int], when: str) -> None:
    """With few layers their runs look as if they had settled, and a step of many took up to a third less."""
    plans, many = [plan_of([400], 4, 4)], replace(FIVE, num_layers=20)
    cost = Cost(replace(small(2, 2).cluster, **{**HOST, "host_adam_bandwidth": 1e7}), many)
    step = with_optimizer_on_hosts(whole_step(many, plans, 1, "3"), 2, HostLayers(20, *kind), when)
    played, every = play_step(step, plans, cost), play_layers(step, plans, cost)[1]
    assert played.seconds == pytest.approx(every.done.max(), rel=1e-12)
    assert np.allclose(sum(played.spent.values()), played.seconds)
