"""Tensors of a step in the words of the field, as traces, reports and critical paths name what operations make and
move. Pure: no torch.

A step's own names are letters (zbench.step.layers), which its text and its proof tell operations apart by.
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType

from zbench.step.passes.rounds.outer_step import SHARE

_GATE_UP, _ACTIVATIONS = "gate and up projections", "gated activations"
_ROUTED, _OUTPUTS, _SHARES = "tokens for experts", "experts' outputs", "routing weights"
_MADE: Mapping[str, str] = MappingProxyType({
    "w": "word embeddings", "x": "hidden states",
    "n": "attention inputs", "q": "queries", "kv": "keys and values", "o": "attention outputs",
    "e": "row sums of attention outputs", "a": "output projections", "y": "hidden states after attention",
    "m": "feed-forward inputs", "z": _GATE_UP, "u": _ACTIVATIONS, "b": "feed-forward outputs",
    "mf": "feed-forward inputs", "zf": _GATE_UP, "uf": _ACTIVATIONS, "bf": "feed-forward outputs",
    "zs": f"shared experts' {_GATE_UP}", "us": f"shared experts' {_ACTIVATIONS}", "bs": "shared experts' outputs",
    "rh": "router projections", "r": "router logits", "ra": "router logits", "to": "chosen experts",
    "ct": "token counts of experts", "cn": "token counts of experts",
    "p": _SHARES, "np": _SHARES, "pa": _SHARES, "pn": _SHARES, "i": _ROUTED, "ni": _ROUTED, "v": _OUTPUTS,
    "nv": _OUTPUTS,
    "c": "head inputs", "l": "logits", "val": "token values", "loss": "loss",
    SHARE: "shares of workers",
})  # fmt: skip
_WEIGHTS: Mapping[str, str] = MappingProxyType({
    "we": "embedding table", "wh": "head weights", "vh": "value head weights", "gl": "last norm gains",
    "g1": "attention norm gains", "g2": "feed-forward norm gains", "wq": "query weights",
    "wkv": "key and value weights", "wo": "output projection weights",
    "wz": "gate and up weights", "wd": "down weights", "wzf": "gate and up weights", "wdf": "down weights",
    "wzs": "shared experts' gate and up weights", "wds": "shared experts' down weights",
    "ez": "experts' gate and up weights", "ed": "experts' down weights",
    "wr": "router weights", "wp": "router projection weights", "wc": "router embeddings",
})  # fmt: skip
# What a step has of a weight besides, by the letter before its name (zbench.step.passes.tensors); and what the end of a
# round of local steps has (rounds.outer_step), where d sums the parameters of workers.
_OF_WEIGHTS: Mapping[str, str] = MappingProxyType({"d": "gradients", "s": "optimizer state"})
_OF_ROUNDS: Mapping[str, str] = MappingProxyType({
    "d": "averages", "s": "optimizer state", "p": "outer parameters", "m": "outer momentum", "c": "outer parameters",
})  # fmt: skip


def tensor_words(name: str, tensors: Collection[str] = ()) -> str:
    """Returns what a tensor is in words; a name that no model of ours has stays as it is. tensors: all names of its
    layout, which tell gradients from what begins with the same letter, and the end of a round from a step."""
    own = name.rstrip("~")
    again = ", recomputed" if own != name else ""
    if own in _MADE or own in _WEIGHTS:
        return (_MADE.get(own) or _WEIGHTS[own]) + again
    first, rest = own[:1], own[1:]
    of_weights = _OF_ROUNDS if SHARE in tensors else _OF_WEIGHTS
    if rest in _WEIGHTS and first in of_weights:
        return f"{of_weights[first]} of {_WEIGHTS[rest]}"
    if first == "d" and (rest in _MADE or rest in tensors):
        return f"gradients of {tensor_words(rest, tensors)}{again}"
    return name
