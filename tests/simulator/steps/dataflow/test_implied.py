"""Edges that queues imply: a step with all edges is played as the one without them, to the last bit."""

from dataclasses import fields, replace

import numpy as np
import pytest

from tests.simulator.steps.test_play import planned
from zbench.cost.job import make_cost
from zbench.simulator.steps import lower
from zbench.simulator.steps.dataflow import touched
from zbench.simulator.steps.dataflow.implied import QueuedHops, needed_edges
from zbench.simulator.steps.play import PlayedStep, play_layers, play_step
from zbench.step.passes.build import whole_step


def assert_same(have: PlayedStep, want: PlayedStep) -> None:
    for field in fields(PlayedStep):
        one, other = getattr(have, field.name), getattr(want, field.name)
        if isinstance(one, dict):
            assert list(one) == list(other)
            assert all(np.array_equal(one[name], other[name]) for name in one), field.name
        elif field.name == "memory":
            assert np.array_equal(one.peak, other.peak)
        else:
            assert np.array_equal(one, other), field.name


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize("system", ["zeppelin", "ulysses", "ring"])
def test_a_step_is_played_as_with_all_edges(system: str, channels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    found, cost = planned(system)
    of = make_cost(replace(cost.cluster, nic_channels=channels), replace(found.model, sharding="zero3", num_layers=14))
    step = whole_step(of.model, found.plans, 1, "3")
    have, few = play_step(step, found.plans, of), play_layers(step, found.plans, of)
    with monkeypatch.context() as patch:
        patch.setattr(lower, "needed_edges", lambda producer, consumer, *_: (producer, consumer))
        for name in ("keep_last", "keep_first"):
            patch.setattr(touched, name, lambda *_: None)
        for name in ("_relations", "_related", "_hops_of_groups", "_put_marked", "_put_groups"):
            patch.setattr(touched, name, getattr(touched, name).py_func)
        want, all_of_them = play_step(step, found.plans, of), play_layers(step, found.plans, of)
    assert_same(have, want)
    for name in ("start", "release", "done"):
        assert np.array_equal(getattr(few[1], name), getattr(all_of_them[1], name))
    assert len(few[0].of.following.followers) < 0.9 * len(all_of_them[0].of.following.followers)


def hops(queue_a: list[int], computes: list[bool], busy: list[float], serial: bool = True) -> QueuedHops:
    count = len(queue_a)
    return QueuedHops(
        np.array(queue_a),
        np.full(count, -1),
        np.full(count, serial),
        np.array(computes),
        np.array(busy),
        np.zeros(count),
    )


def edges(of: QueuedHops, *pairs: tuple[int, int]) -> set[tuple[int, int]]:
    producer, consumer = needed_edges(*np.array(pairs).T, of, 4)
    return set(zip(producer.tolist(), consumer.tolist(), strict=True))


def test_who_waits_for_several_of_a_queue_waits_for_the_last() -> None:
    of = hops([1, 1, 2, 0], [False, False, False, True], [1.0, 1.0, 1.0, 1.0])
    assert edges(of, (0, 3), (1, 3), (2, 3)) == {(1, 3), (2, 3)}


def test_of_several_computes_that_wait_for_one_hop_the_first_does() -> None:
    of = hops([1, 0, 0, 3], [False, True, True, True], [1.0, 1.0, 1.0, 1.0])
    assert edges(of, (0, 1), (0, 2), (0, 3)) == {(0, 1), (0, 3)}


def test_messages_that_wait_for_one_hop_all_do() -> None:
    """When each could have started is told: what it sends is there."""
    of = hops([0, 1, 1], [True, False, False], [1.0, 1.0, 1.0])
    assert edges(of, (0, 1), (0, 2)) == {(0, 1), (0, 2)}


def test_queues_of_several_channels_and_hops_without_seconds_imply_nothing() -> None:
    two = hops([1, 1, 0], [False, False, True], [1.0, 1.0, 1.0], serial=False)
    assert edges(two, (0, 2), (1, 2)) == {(0, 2), (1, 2)}
    free = hops([0, 0, 1, 3, 3], [True, True, False, True, True], [1.0, 0.0, 1.0, 0.0, 1.0])
    assert edges(free, (0, 2), (1, 2), (2, 3), (2, 4)) == {(0, 2), (1, 2), (2, 3), (2, 4)}
