"""A model's weights add up to its parameters, and models that have others are refused."""

from dataclasses import replace

import pytest

from tests.helpers.steps import EXPERTS, MODEL
from zbench.rollouts.weights import model_weights, step_weights


def test_weights_are_all_parameters() -> None:
    weights = model_weights(MODEL)
    assert sum(one.elements for one in step_weights(MODEL)) == MODEL.total_params
    assert sum(one.elements for one in weights) == MODEL.total_params
    assert len({one.name for one in weights}) == len(weights)
    assert sum(one.elements for one in weights if not one.is_cut) == (2 * MODEL.num_layers + 1) * MODEL.hidden


def test_other_models_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^model tiny has num_experts=4; resharding takes one without experts$"):
        model_weights(EXPERTS)
    with pytest.raises(ValueError, match=r"^model tiny has tied_embeddings; resharding takes one with an output"):
        model_weights(replace(MODEL, tied_embeddings=True))
