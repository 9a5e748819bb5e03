"""The weights of a model as tensor parallelism has them: matrices, which it cuts, and norms, which are whole."""

from dataclasses import dataclass

from zbench.describe.layers.model_parameters import VALUE, WORDS
from zbench.describe.model import Model


@dataclass(frozen=True, slots=True)
class Weight:
    """A weight of the model. layer: whose stage has it. is_cut: whether tensor parallelism cuts it."""

    name: str
    layer: int
    elements: int
    is_cut: bool


def model_weights(model: Model) -> list[Weight]:
    """Lists the weights of a model in the order of its layers, matrices fused as Megatron-Core has them.

    Raises:
        ValueError: it has experts, or no output projection of its own.
    """
    _check(model)
    hidden, last = model.hidden, model.num_layers - 1
    queries = model.head_dim * model.num_heads
    of_layer = {
        "qkv": hidden * (queries + 2 * model.head_dim * model.num_kv_heads),
        "projection": queries * hidden,
        "gate_up": 2 * hidden * model.ffn_hidden,
        "down": hidden * model.ffn_hidden,
    }
    found = [Weight("embedding", 0, model.table_params, True)]
    for layer in range(model.num_layers):
        found += [Weight(f"{name}_{layer}", layer, size, True) for name, size in of_layer.items()]
        found += [Weight(f"{name}_{layer}", layer, hidden, False) for name in ("attention_norm", "ffn_norm")]
    return [*found, Weight("norm", last, hidden, False), Weight("head", last, model.head_params, True)]


def step_weights(model: Model) -> list[Weight]:
    """Lists the weights of a model as steps have them (zbench.step.layers), by name.layer, or by name alone where a
    weight is of no layer: queries apart from keys and values.

    Raises:
        ValueError: as model_weights.
    """
    _check(model)
    hidden, last = model.hidden, model.num_layers - 1
    queries, keys = (model.head_dim * heads * hidden for heads in (model.num_heads, 2 * model.num_kv_heads))
    feed_forward = model.ffn_hidden * hidden
    of_layer = {"g1": hidden, "wq": queries, "wkv": keys, "wo": queries, "g2": hidden}
    of_layer |= {"wz": 2 * feed_forward, "wd": feed_forward}
    found = [Weight("we", 0, model.table_params, True)]
    for layer in range(model.num_layers):
        found += [Weight(f"{name}.{layer}", layer, size, name[0] == "w") for name, size in of_layer.items()]
    return [*found, Weight("gl", last, hidden, False), Weight("wh", last, model.head_params, True)]


def _check(model: Model) -> None:
    if model.num_experts > 1:
        raise ValueError(
            f"model {model.name} has num_experts={model.num_experts}; resharding takes one without experts"
        )
    if model.tied_embeddings:
        raise ValueError(f"model {model.name} has tied_embeddings; resharding takes one with an output projection")
    if model.head == VALUE:
        raise ValueError(f"model.head is {VALUE}, as of {model.name}; resharding takes one that scores words, {WORDS}")
