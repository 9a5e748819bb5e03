"""A model's arithmetic: parameters against a literal list of weight matrices, message sizes against counting heads."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from tests.helpers.strategies import models
from zbench import CONF
from zbench.describe.model import DKV, DO, DQ, KV, TENSOR_NAMES, Model, O, Q
from zbench.run.target import make_model

MODELS = sorted((Path(__file__).parents[2] / "conf" / "model").glob("*.yaml"))


@given(models())
def test_parameters_are_the_weights_of_a_llama(model: Model) -> None:
    h, d, f, v = model.hidden, model.head_dim, model.ffn_hidden, model.vocab
    expert = [h * f, h * f, f * h]
    layer = [h * model.num_heads * d, 2 * h * model.num_kv_heads * d, model.num_heads * d * h]
    router = [h * model.num_experts] if model.num_experts > 1 else []
    embeddings = [v * h] if model.tied_embeddings else [v * h, v * h]
    norms = 2 * h
    all_of_a_layer = sum(layer) + sum(expert) * (model.num_experts + model.shared_experts) + sum(router) + norms
    assert model.total_params == model.num_layers * all_of_a_layer + sum(embeddings) + h
    active = sum(layer) + sum(expert) * (model.experts_per_token + model.shared_experts) + sum(router)
    assert model.active_matmul_params == model.num_layers * active + v * h


def test_first_layers_may_be_dense() -> None:
    """Two dense layers and three with experts."""
    experts = Model("m", 5, 64, 4, 2, 16, 32, 256, num_experts=8, experts_per_token=2, shared_experts=1)
    dense = Model("m", 5, 64, 4, 2, 16, 400, 256)
    model = replace(experts, dense_layers=2, dense_ffn_hidden=400)
    assert model.dense_layer == dense
    assert model.dense_layer_params == dense.layer_params
    assert model.dense_matmul_params == dense.layer_matmul_params
    for name in ("total_params", "active_matmul_params"):
        assert 5 * getattr(model, name) == 2 * getattr(dense, name) + 3 * getattr(experts, name)


@given(models(), st.data())
def test_messages_hold_the_heads_they_name(model: Model, data: st.DataObject) -> None:
    lo = data.draw(st.integers(0, model.num_heads - 1))
    hi = data.draw(st.integers(lo + 1, model.num_heads))
    heads, row = hi - lo, model.head_dim * model.element_bytes
    group = model.num_heads // model.num_kv_heads
    kv_heads = len({head // group for head in range(lo, hi)})

    def size(tensor: int) -> int:
        return model.message_bytes_per_token(tensor, lo, hi)

    assert size(Q) == size(DQ) == heads * row
    assert size(KV) == size(DKV) == 2 * kv_heads * row
    assert size(O) == heads * (row + model.lse_bytes)
    assert size(DO) == heads * (row + 2 * model.lse_bytes)


def test_eager_kernels_move_more() -> None:
    model = Model("m", 2, 64, 4, 2, 16, 192, 256)
    assert replace(model, kernels="eager").elementwise_bytes > model.elementwise_bytes
    assert TENSOR_NAMES[Q], TENSOR_NAMES[DKV] == ("q", "dkv")


@pytest.mark.parametrize(
    ("field", "value"),
    [("mlp_chunk_tokens", 0), ("mlp_chunk_tokens", "auto"), ("mlp_chunk_tokens", True), ("loss_chunk_tokens", 1.5)],
)
def test_a_chunk_has_a_number_of_tokens(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^memory\.{field} is {value!r}; it takes a whole number from 1 to"):
        replace(Model("m", 2, 64, 4, 2, 16, 192, 256), **{field: value})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_layers", 0),
        ("hidden", 1.5),
        ("num_heads", True),
        ("num_kv_heads", 3),
        ("experts_per_token", 2),
        ("shared_experts", -1),
        ("shared_experts", 1),
        ("dense_layers", 1),
        ("dense_layers", -1),
        ("dense_ffn_hidden", 64),
        ("gate", "sigmoid"),
        ("gate", "tanh"),
        ("router", "cosine"),
        ("router", "hash"),
        ("router_dim", 16),
        ("router_temperature", 0.5),
        ("recompute", "some"),
        ("sharding", "zero4"),
        ("kernels", "slow"),
        ("vocab", -5),
        ("lse_bytes", "4"),
        ("name", [1]),
        ("name", 7),
    ],
)
def test_bad_models_are_one_sentence(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=rf"^model\.{field} is "):
        replace(Model("m", 2, 64, 4, 2, 16, 192, 256), **{field: value})


@pytest.mark.parametrize(
    ("field", "value"), [("router_dim", 0), ("router_temperature", 0.0), ("router_temperature", "warm")]
)
def test_a_router_of_cosines_has_a_dimension_and_a_temperature(field: str, value: object) -> None:
    cosine = {"router": "cosine", "router_dim": 16, "router_temperature": 0.3, field: value}
    with pytest.raises(ValueError, match=rf"^model\.{field} is {value!r}; model.router is cosine, which takes a "):
        Model("m", 2, 64, 4, 2, 16, 192, 256, num_experts=4, **cosine)


def test_parameters_of_a_router_of_cosines() -> None:
    """A projection to 16 dimensions, and a row of 16 for each of 4 experts."""
    linear = Model("m", 2, 64, 4, 2, 16, 192, 256, num_experts=4)
    cosine = replace(linear, router="cosine", router_dim=16, router_temperature=0.3)
    assert (linear.router_params, cosine.router_params) == (64 * 4, 64 * 16 + 16 * 4)


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_every_model_yaml_makes_a_model(path: Path) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        model = make_model(compose("config", [f"model={path.stem}"]))
    assert isinstance(model, Model)
    assert model.name == path.stem


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama_7b", 6.74),
        ("llama_13b", 13.02),
        ("llama_30b", 32.53),
        ("llama3_8b", 8.03),
        ("deepseek_moe_16b", 16.38),
    ],
)
def test_published_sizes(name: str, billions: float) -> None:
    """Parameter counts as their authors give them (arXiv 2302.13971; the Llama 3 model card; arXiv 2401.06066, where it
    is 16.4)."""
    (path,) = [path for path in MODELS if path.stem == name]
    assert instantiate(OmegaConf.load(path)).total_params / 1e9 == pytest.approx(billions, abs=0.006)


@given(models())
def test_a_model_that_keeps_all_recomputes_no_layer(model: Model) -> None:
    """A dense process computes with it whatever is recomputed, of all layers or some."""
    some = replace(model, recompute="full", recompute_layers=1, offload="none")
    assert some.keeping_all == replace(model, recompute="none", recompute_layers="all", offload="none")


def test_stages_have_the_layers_that_a_run_says() -> None:
    model = replace(instantiate(OmegaConf.load(MODELS[0].parent / "llama_7b.yaml")), pipeline_parallel=4)
    assert model.layers_of_stages == (8, 8, 8, 8)
    assert replace(model, num_layers=30).layers_of_stages == (7, 8, 7, 8)
    uneven = replace(model, stage_layers=[9, 9, 8, 6], recompute="full", recompute_layers=[9, 4, 0, 7])
    assert (uneven.layers_of_stages, uneven.recomputed_of_stages) == ((9, 9, 8, 6), (9, 4, 0, 6))
    assert (uneven.recomputed_layers, uneven.forwards_again, hash(uneven)) == (19, 19 / 32, hash(uneven))
    assert (model.stages_differ, uneven.stages_differ) == (False, True)
    assert uneven.with_stages(4) is uneven
    assert uneven.keeping_all.recomputed_of_stages == (0, 0, 0, 0)
    assert replace(uneven, recompute="selective").forwards_again == 0
    assert replace(model, recompute="full", recompute_layers=2).recomputed_of_stages == (2, 2, 2, 2)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"stage_layers": (9, 9, 14)},
            r"parallel\.stage_layers is \[9,9,14\]; with parallel\.pipeline_parallel=4 it takes 4",
        ),
        (
            {"stage_layers": (9, 9, 9, 9)},
            r"parallel\.stage_layers is \[9,9,9,9\]; .* add up to the 32 of llama_7b, or even",
        ),
        ({"recompute_layers": 9}, r"recompute\.layers is 9; .* from 1 to 8, a list of up to \[8,8,8,8\], one"),
        (
            {"recompute_layers": (1, 2)},
            r"recompute\.layers is \[1,2\]; stages of llama_7b have \[8,8,8,8\] layers, so it takes as many",
        ),
        ({"recompute_layers": (9, 0, 0, 0)}, r"recompute\.layers is \[9,0,0,0\]; stages of llama_7b have \[8"),
    ],
)
def test_layers_of_other_stages_are_one_sentence(fields: dict[str, Any], told: str) -> None:
    one = instantiate(OmegaConf.load(MODELS[0].parent / "llama_7b.yaml"))
    with pytest.raises(ValueError, match=rf"^{told}"):
        replace(one, recompute="full", pipeline_parallel=4, **fields).check_stages()


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        (
            {"stage_layers": (0, 8)},
            r"parallel\.stage_layers is \[0,8\]; it takes whole numbers of at least 1, one a stage",
        ),
        ({"stage_layers": "odd"}, r"parallel\.stage_layers is odd; it takes whole numbers of at least 1, one a stage"),
        (
            {"recompute_layers": (0, 0)},
            r"recompute\.layers is \[0,0\]; it takes whole numbers from 0 to .* not all of them 0",
        ),
    ],
)
def test_numbers_that_no_stages_have_are_one_sentence(fields: dict[str, Any], told: str) -> None:
    one = instantiate(OmegaConf.load(MODELS[0].parent / "llama_7b.yaml"))
    with pytest.raises(ValueError, match=rf"^{told}"):
        replace(one, recompute="full", **fields)
