"""Pipelines side by side on the clock: each in its own time, what they have in common between them, and its bytes."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tests.helpers.steps import MODEL, pipeline_plans
from tests.simulator.steps.test_stages import cluster
from zbench.cost.cost import Cost
from zbench.describe.model import Model
from zbench.plans.plan import Plan
from zbench.simulator.steps.play import LAYERS, PlayedStep, play_some_layers, play_step
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.passes.own_plans import plans_of_layouts
from zbench.step.passes.parameters.weights import WHOLE, outer_weights, weight_elements, weights_of_layers
from zbench.step.passes.parameters.zero import GRADIENT_BYTES
from zbench.step.proof.prove import prove_step
from zbench.step.template import Step

FOUR = replace(MODEL, num_layers=4, num_kv_heads=4, hidden=64)
SHAPES = ((2, 2), (1, 1), (1, 4))
BATCHES = (((96, 0), (40, 1)), ((80, 0), (48, 2), (64, 2)), ((56, 0), (24, 1), (72, 2)))


@cache
def plans_of(which: tuple[int, ...] = (0, 1, 2)) -> list[Plan]:
    """Micro-batches of some of the pipelines, alone."""
    batches = [[(size, which.index(at)) for size, at in batch if at in which] for batch in BATCHES]
    shapes = [SHAPES[at] for at in which]
    return pipeline_plans(shapes, [one for one in batches if one], sum(tp * pp for tp, pp in shapes))


def played(model: Model, which: tuple[int, ...], cost: Cost, zero: str = "none") -> PlayedStep:
    step = whole_step(model, plans_of(which), zero=zero)
    prove_step(step)
    return play_step(step, plans_of_layouts(plans_of(which)), cost)


def test_each_pipeline_takes_its_own_time() -> None:
    """Where links cost nothing a step takes as long as the slowest of its pipelines alone, but that those with more
    parameters a GPU update them when its gradients are there."""
    alone = [
        played(FOUR, (at,), Cost(cluster(tp * pp, nic=1e18, latency=0.0), FOUR)).seconds
        for at, (tp, pp) in enumerate(SHAPES)
    ]
    every = played(FOUR, (0, 1, 2), Cost(cluster(9, nic=1e18, latency=0.0), FOUR))
    assert max(alone) < every.seconds < max(alone) + every.busy["optimizer"].max()
    assert len({round(one, 9) for one in alone}) == 3


def test_one_pipeline_takes_the_time_of_stages_that_are_alike() -> None:
    """Only when gains' gradients are reduced differs, after the last backward."""
    cost, plans = Cost(cluster(2, 2), FOUR), plans_of((0,))
    alike = whole_step(FOUR, plans_of_layouts(plans), 2, "none", stages=2)
    other = play_step(alike, plans_of_layouts(plans), cost)
    one = played(FOUR, (0,), cost)
    assert one.seconds == pytest.approx(other.seconds, rel=0.01)
    assert one.memory.peak.tolist() == pytest.approx(other.memory.peak.tolist(), rel=1e-3)


def step_of(zero: str, layers: int = 4) -> tuple[Step, Model]:
    model = replace(FOUR, num_layers=layers)
    return whole_step(model, plans_of(), zero=zero), model


@pytest.mark.parametrize("zero", ["none", "1"])
def test_bytes_are_those_that_the_step_states(zero: str) -> None:
    """To the byte between stages. A gradient passes as often as there are holders of it but one, a parameter likewise:
    a slice has one in each pipeline, a gain one on each GPU of a stage."""
    step, model = step_of(zero)
    found, stated = play_step(step, plans_of_layouts(plans_of()), Cost(cluster(9), model)), stated_bytes(step)
    for way, sent in enumerate((found.nic_tx, found.nic_rx)):
        assert sent["stages"].tolist() == [one.get("stages", (0, 0))[way] for one in stated]
    passes = {
        name: size * (3 if name in WHOLE else 2) * (1 if name in ("we", "gl", "wh") else model.num_layers)
        for name, size in weight_elements(model).items()
        if name in (*weights_of_layers(model), *outer_weights(model.kind_of_head))
    }
    sent = {queue: sum(one.get(queue, (0, 0))[0] for one in stated) for queue in ("gradients", "parameters")}
    # The losses of three micro-batches of two GPUs and of five of one come home as well, and from three pipelines.
    losses = 4 * (3 * 1 + 2)
    times = 2 if zero == "none" else 1
    assert sent["gradients"] == times * GRADIENT_BYTES * sum(passes.values()) + losses
    assert sent["parameters"] == (0 if zero == "none" else model.element_bytes * sum(passes.values()))
    assert found.nic_tx["gradients"].sum() == pytest.approx(sent["gradients"], rel=0.2)


@pytest.mark.parametrize("zero", ["none", "1"])
def test_layers_left_out_add_what_they_take(zero: str) -> None:
    step, model = step_of(zero, 64)
    plans, cost = plans_of_layouts(plans_of()), Cost(cluster(9), model)
    some, every = (play_some_layers(step, plans, cost, kept) for kept in (LAYERS[0], 64))
    assert some.seconds == pytest.approx(every.seconds, rel=0.005)
    assert some.memory.peak.tolist() == every.memory.peak.tolist()
    assert [name for name, _ in some.ends] == [name for name, _ in every.ends]
    spent = sum(some.spent.values())
    assert np.allclose(spent, some.seconds)


def test_every_gpu_holds_what_its_pipeline_needs_of_parameters() -> None:
    """Of wq: a half of two layers, all of four layers, all of one; and an even share of optimizer state."""
    step, model = step_of("1")
    held = play_step(step, plans_of_layouts(plans_of()), Cost(cluster(9), model)).memory.held
    size = weight_elements(model)["wq"]
    shares = np.array([1, 1, 1, 1, 4, 1, 1, 1, 1])
    assert held["wq"].tolist() == (model.element_bytes * size * shares).tolist()
    assert held["swq"].tolist() == pytest.approx(np.full(9, 12 * size * 4 / 9).tolist(), rel=0.01)
