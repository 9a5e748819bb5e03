"""Checks of values that people write in yaml or on a command line: one sentence with field, value and what it takes."""

from collections.abc import Sequence
from typing import TypeGuard

from zbench.describe.layers.expert_layers import ExpertLayers
from zbench.describe.layers.on_hosts import ACROSS_STEPS, AS_GRADIENTS_COME, HOST_UPDATES, NOWHERE
from zbench.describe.pipeline.staged_layers import ALL_LAYERS, EVEN, bracketed

FEWEST = "auto"  # of layers of which something waits in host memory: as few as a micro-batch fits with
CHOSEN = "auto"  # in place of another number of layers: the one of which a step takes least time, of those that fit
MOST = 2**24  # of every size and count: a judgement, above any model's, so that a wrong number is told as one
_LAYERS = "a whole number from 1 to the model's number of layers"  # which a strategy does not know by itself
MOST_TEMPERATURE = 1000  # of a router: with more, logits of float32 are alike to three digits: a judgement
MOST_SLOWDOWN = 100.0  # of computes beside messages: far above anything measured


def is_whole(value: object) -> TypeGuard[int]:
    """Tells whether `value` is a whole number of Python; true and false, which Python counts as 1 and 0, are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def check_whole_number(field: str, value: object, least: int, most: int | None = None, or_null: bool = False) -> None:
    """Refuses what is no whole number of at least `least` (and at most `most`); with `or_null` None is fine as well.

    Raises:
        ValueError: the message names `field` and `value` and says what it takes.
    """
    if or_null and value is None:
        return
    if not is_whole(value) or value < least or (most is not None and value > most):
        bounds = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise ValueError(f"{field} is {value!r}; it takes a whole number {bounds}{', or null' * or_null}")


def check_boolean(field: str, value: object) -> None:
    """Refuses what is neither True nor False; 1 and "yes" are not.

    Raises:
        ValueError: the message names `field` and `value`.
    """
    if not isinstance(value, bool):
        raise ValueError(f"{field} is {value!r}; it takes true or false")


def check_choice(field: str, value: object, choices: Sequence[str]) -> None:
    """Refuses a word that is none of several choices.

    Raises:
        ValueError: the message names `field`, `value` and the choices.
    """
    if value not in choices:
        raise ValueError(f"{field} is {value!r}; it takes {', '.join(choices[:-1])} or {choices[-1]}")


def check_chunk(name: str, tokens: int | str, words: tuple[str, ...]) -> None:
    """Raises ValueError unless `tokens` is a number of tokens that a chunk may have, or one of `words`."""
    if tokens not in words and not (is_whole(tokens) and 1 <= tokens <= MOST):
        told = f"it takes a whole number from 1 to {MOST}, or {' or '.join(words)}"
        raise ValueError(f"memory.{name} is {tokens!r}; {told}")


def check_name(field: str, value: object) -> None:
    """Refuses a name of a cluster, device or model that is no text, as the number that a yaml makes of name: 4090.

    Raises:
        ValueError: the message names `field`.
    """
    if not isinstance(value, str):
        raise ValueError(f"{field} is {value!r}; it takes text, as in '{value}'")


def check_slowdown(key: str, value: object) -> None:
    """Raises ValueError where a value is no slowdown of computes."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not 1 <= value <= MOST_SLOWDOWN:
        raise ValueError(
            f"{key} is {value!r}; it takes how many times as long a compute takes beside messages, a number from 1 to "
            f"{MOST_SLOWDOWN:g}, as in 1.1256"
        )


def check_recompute_layers(layers: int | str | Sequence[int]) -> None:
    """Raises ValueError unless `layers` is a number of layers that may be recomputed, one for every stage, all, or
    auto."""
    if isinstance(layers, list | tuple):
        if not all(is_whole(one) and 0 <= one <= MOST for one in layers) or not any(layers):
            told = "it takes whole numbers from 0 to a stage's number of layers, one a stage and not all of them 0"
            raise ValueError(f"recompute.layers is {bracketed(layers)}; {told}")
    elif layers not in (ALL_LAYERS, CHOSEN) and not (is_whole(layers) and 1 <= layers <= MOST):
        none = " (recompute=none recomputes in none)" if layers == 0 else ""
        raise ValueError(
            f"recompute.layers is {layers!r}; it takes {_LAYERS}, a list of one for each stage, as in [4,2], "
            f"{ALL_LAYERS} or {CHOSEN}{none}"
        )


def check_offload_layers(layers: int | str, some: bool) -> None:
    """Raises ValueError unless `layers` is a number of layers of which something may wait in host memory, or all, or
    auto. some: whether anything of layers waits there; else it has to be all."""
    if layers not in (ALL_LAYERS, FEWEST) and not (is_whole(layers) and 1 <= int(layers) <= MOST):
        raise ValueError(f"memory.offload_layers is {layers!r}; it takes {_LAYERS}, {ALL_LAYERS} or {FEWEST}")
    if layers != ALL_LAYERS and not some:
        raise ValueError(
            f"memory.offload_layers is {layers}; without inputs or activations of layers in memory.offload it takes "
            f"{ALL_LAYERS}, or memory.offload=inputs or activations beside it"
        )


def check_offload_tokens(tokens: float | str, layers: int | str, some: bool) -> None:
    """Raises ValueError unless `tokens` is a share of each sequence's tokens of which something may wait in host
    memory, or all, or auto. layers: of which it does; some: whether anything of layers does; else it has to be all."""
    share = isinstance(tokens, float) and 0 < tokens < 1
    if tokens not in (ALL_LAYERS, FEWEST) and not share:
        raise ValueError(
            f"memory.offload_tokens is {tokens!r}; it takes a number between 0 and 1, the share of each sequence's "
            f"tokens, {ALL_LAYERS} or {FEWEST}"
        )
    if tokens != ALL_LAYERS and not some:
        raise ValueError(
            f"memory.offload_tokens is {tokens}; without inputs or activations of layers in memory.offload it takes "
            f"{ALL_LAYERS}, or memory.offload=inputs or activations beside it"
        )
    if tokens == FEWEST and layers == FEWEST:
        raise ValueError(
            f"memory.offload_tokens is {FEWEST} with memory.offload_layers {FEWEST}; one of both is chosen for the "
            f"batch at hand, so it takes {ALL_LAYERS} or a share, or memory.offload_layers={ALL_LAYERS}"
        )


def check_on_hosts(optimizer: int | str, parameters: int | str, updates: tuple[str, int | str], on_hosts: bool) -> None:
    """Refuses layers whose optimizer state or parameters cannot be in host memory. updates: when, and of how many
    layers gradients are carried. on_hosts: whether any optimizer state is.

    Raises:
        ValueError: the message names the key.
    """
    when, carried = updates
    for key, value, words in (
        ("optimizer_layers", optimizer, (ALL_LAYERS, CHOSEN)),
        ("carried_layers", carried, (ALL_LAYERS, CHOSEN)),
        ("parameter_layers", parameters, (NOWHERE, ALL_LAYERS, CHOSEN)),
    ):
        if value not in words and not (is_whole(value) and 1 <= value <= MOST):
            raise ValueError(f"memory.{key} is {value!r}; it takes {_LAYERS}, {', '.join(words[:-1])} or {words[-1]}")
    check_choice("memory.host_updates", when, HOST_UPDATES)
    if carried != ALL_LAYERS and when != ACROSS_STEPS:
        raise ValueError(
            f"memory.carried_layers is {carried}; with memory.host_updates={when} it takes {ALL_LAYERS}, or "
            f"memory.host_updates={ACROSS_STEPS} beside it"
        )
    for key, value, usual in (
        ("optimizer_layers", optimizer, ALL_LAYERS),
        ("host_updates", when, AS_GRADIENTS_COME),
    ):
        if value != usual and not on_hosts:
            raise ValueError(
                f"memory.{key} is {value}; without optimizer state in memory.offload it takes {usual}, or "
                "memory.offload=optimizer beside it"
            )


def check_stage_layers(layers: str | Sequence[int]) -> None:
    """Raises ValueError unless `layers` is numbers of layers, one a stage, or even."""
    if layers == EVEN or (isinstance(layers, list | tuple) and all(is_whole(one) and one >= 1 for one in layers)):
        return
    told = f"it takes whole numbers of at least 1, one a stage, as in [9,8,8,7], or {EVEN}"
    raise ValueError(f"parallel.stage_layers is {bracketed(layers)}; {told}")


def check_experts(model: ExpertLayers) -> None:
    """Refuses experts, routers and dense layers before others that a model cannot have.

    Raises:
        ValueError: the message names the field.
    """
    check_whole_number("model.shared_experts", model.shared_experts, 0, MOST)
    none = f"model {model.name} has no experts that tokens choose, so it takes"
    if model.shared_experts and model.num_experts == 1:
        raise ValueError(f"model.shared_experts is {model.shared_experts}; {none} 0")
    if model.gate != "softmax" and model.num_experts == 1:
        raise ValueError(f"model.gate is {model.gate!r}; {none} softmax")
    if model.experts_per_token > model.num_experts:
        raise ValueError(
            f"model.experts_per_token is {model.experts_per_token}; at most num_experts={model.num_experts}"
        )
    _check_router(model)
    _check_dense_layers(model)


def _check_router(model: ExpertLayers) -> None:
    """Raises ValueError where a router has what only another kind has, or lacks what its own kind takes."""
    if model.router != "cosine":
        for field in ("router_dim", "router_temperature"):
            if getattr(model, field):
                told = f"with model.router={model.router} there is none, so it takes 0"
                raise ValueError(f"model.{field} is {getattr(model, field)}; {told}")
        return
    if model.num_experts == 1:
        raise ValueError(f"model.router is cosine; model {model.name} has no experts, so it takes linear")
    if model.router_dim == model.router_temperature == 0:
        told = "it takes model.router_dim and model.router_temperature beside it, as in 16 and 0.3"
        raise ValueError(f"model.router is cosine; {told}")
    if not model.router_dim:
        raise ValueError(
            "model.router_dim is 0; model.router is cosine, which takes a whole number of at least 1, as in "
            "model.router_dim=16"
        )
    check_whole_number("model.router_dim", model.router_dim, 1, MOST)
    if type(model.router_temperature) not in (int, float) or not 0 < model.router_temperature <= MOST_TEMPERATURE:
        raise ValueError(
            f"model.router_temperature is {model.router_temperature!r}; model.router is cosine, which takes a number "
            f"above 0 and up to {MOST_TEMPERATURE}, as in model.router_temperature=0.3"
        )


def _check_dense_layers(model: ExpertLayers) -> None:
    """Raises ValueError where a model has too many dense layers before others, or no experts, or columns without such
    layers."""
    check_whole_number("model.dense_layers", model.dense_layers, 0, MOST)
    if not model.dense_layers:
        if model.dense_ffn_hidden:
            told = "with model.dense_layers=0 there is no dense layer, so it takes 0"
            raise ValueError(f"model.dense_ffn_hidden is {model.dense_ffn_hidden}; {told}")
        return
    if model.num_experts == 1:
        raise ValueError(
            f"model.dense_layers is {model.dense_layers}; model {model.name} has no experts, so all of its layers are "
            "dense and it takes 0"
        )
    if model.dense_layers >= model.num_layers:
        raise ValueError(
            f"model.dense_layers is {model.dense_layers}; model {model.name} has {model.num_layers} layers, of which "
            f"at least the last has experts: it takes 0 to {model.num_layers - 1}"
        )
    check_whole_number("model.dense_ffn_hidden", model.dense_ffn_hidden, 1, MOST)
