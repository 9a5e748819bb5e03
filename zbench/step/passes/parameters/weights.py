"""The parameters of a model by name: which layers have them, what they are cut along, and how many elements they have.

g1, g2: gains of norms. wq, wkv, wo: attention's matrices. wz, wd: the feed-forward's. wr, or wp and wc: the router's.
ez, ed: experts'. wzs, wds: experts' that all tokens pass. wzf, wdf: of dense layers before layers with experts. we, gl,
wh, vh: the embedding's table, the last norm's gains, the head, a head of one value.
"""

from collections.abc import Mapping

from zbench.describe.layers.model_parameters import TIED, TWO_TABLES, VALUE, WORDS
from zbench.describe.model import LINEAR, Model
from zbench.step.tensor import FOLLOWING, LAYER, LEADING

ATTENTION_WEIGHTS = ("g1", "wq", "wkv", "wo", "g2")
LAYER_WEIGHTS = (*ATTENTION_WEIGHTS, "wz", "wd")
EXPERT_LAYER_WEIGHTS = (*ATTENTION_WEIGHTS, "wr", "ez", "ed")
SHARED_WEIGHTS = ("wzs", "wds")  # of experts that all tokens pass
COSINE_WEIGHTS = ("wp", "wc")  # of a router of cosines, in place of wr
DENSE_WEIGHTS = ("wzf", "wdf")  # of the first layers, which are dense, of a model with experts
WHOLE, OF_EXPERTS = ("g1", "g2", "gl", "wr", *COSINE_WEIGHTS, "vh"), ("ez", "ed")
TABLES = ("we", "wh")  # of words: the embedding's and the head's
HEAD_WEIGHTS: Mapping[str, tuple[str, ...]] = {
    WORDS: ("gl", "wh"),
    TIED: ("gl", "we"),
    TWO_TABLES: ("gl", "wh"),
    VALUE: ("gl", "vh"),
}


def layer_weights(experts: bool, shared: bool = False, router: str = LINEAR) -> tuple[str, ...]:
    """Returns the names of the parameters of a layer with experts, some of them maybe shared, or of a dense one.
    router: of zbench.describe.model.ROUTERS."""
    if not experts:
        return LAYER_WEIGHTS
    of_router = ("wr",) if router == LINEAR else COSINE_WEIGHTS
    own = [other for one in EXPERT_LAYER_WEIGHTS for other in (of_router if one == "wr" else (one,))]
    return (*own, *(SHARED_WEIGHTS if shared else ()))


def weights_of_layers(model: Model) -> tuple[str, ...]:
    """Returns the names of the parameters of a model's layers, of whatever kind."""
    own = layer_weights(model.num_experts > 1, model.shared_experts > 0, model.router)
    return (*own, *DENSE_WEIGHTS) if model.dense_layers else own


def weights_of_kinds(model: Model) -> Mapping[str, str]:
    """Returns the kind of layers (zbench.step.tensor.LAYERS) that have each parameter of a model's layers."""
    every = weights_of_layers(model)
    if not model.dense_layers:
        return dict.fromkeys(every, LAYER)
    of_both = set(ATTENTION_WEIGHTS)
    return {name: LAYER if name in of_both else LEADING if name in DENSE_WEIGHTS else FOLLOWING for name in every}


def outer_weights(head: str) -> tuple[str, ...]:
    """Returns the names of the parameters that are of no layer. head: of zbench.describe.model.Model.kind_of_head."""
    return ("we", *(name for name in HEAD_WEIGHTS[head] if name != "we"))


def axes_of(weight: str) -> tuple[str, ...]:
    """Returns what a parameter, its gradient and its optimizer state are cut along: slices, and shards of these."""
    return () if weight in WHOLE else ("k" if weight in OF_EXPERTS else "j", f"z{weight}")


def weight_elements(model: Model) -> Mapping[str, int]:
    """Returns the elements of every parameter of a layer and of what is before and after the layers."""
    h, d, experts = model.hidden, model.head_dim, model.num_experts
    return {
        "g1": h, "wq": h * model.num_heads * d, "wkv": 2 * h * model.num_kv_heads * d,
        "wo": h * model.num_heads * d, "g2": h, "wz": 2 * h * model.ffn_hidden, "wd": h * model.ffn_hidden,
        "wr": h * experts, "wp": h * model.router_dim, "wc": experts * model.router_dim,
        "ez": 2 * h * model.ffn_hidden * experts, "ed": h * model.ffn_hidden * experts,
        "wzs": 2 * h * model.common_ffn, "wds": h * model.common_ffn,
        "wzf": 2 * h * model.dense_ffn_hidden, "wdf": h * model.dense_ffn_hidden,
        "we": h * model.vocab, "gl": h, "wh": h * model.vocab, "vh": h,
    }  # fmt: skip
