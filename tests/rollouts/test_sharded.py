"""Weights gathered from a step's own shards: all elements have one home, and every GPU receives what it lacks."""

import numpy as np

from tests.helpers.steps import MODEL, plan_of
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import DS_CHAT, resharding_of
from zbench.rollouts.sharded import ShardedWeights
from zbench.rollouts.weights import step_weights
from zbench.step.byte_law import stated_bytes
from zbench.step.elements import elements_held
from zbench.step.passes.build import whole_step
from zbench.step.proof.prove import prove_step


def test_every_gpu_gets_what_others_have() -> None:
    step = whole_step(MODEL, [plan_of([9, 4], 3, MODEL.num_heads)], zero="3")
    change = resharding_of(DS_CHAT, TrainDegrees(1, 1, 3), GenerateDegrees(1, 1))
    weights = step_weights(MODEL)
    made = ShardedWeights(weights, MODEL.num_layers, 2, change, elements_held(step, step.begins))
    prove_step(made.step)
    own = np.zeros(3, np.int64)
    for one in made.parts:
        assert (one.trained.sum(axis=0) == 1).all()  # a home, and no more
        assert int(one.sizes.sum()) == one.weight.elements
        own += one.trained @ one.sizes
    assert own.sum() == MODEL.total_params
    assert made.bytes.received.tolist() == (2 * (MODEL.total_params - own)).tolist()
    assert [one["parameters"][1] for one in stated_bytes(made.step)] == made.bytes.received.tolist()
    assert made.bytes.peak.tolist() == [2 * MODEL.total_params] * 3
