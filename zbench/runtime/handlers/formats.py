"""Formats of a layer's tensors in memory: the axes of their fields, and the bytes of a message of theirs.

Axes: t tokens, h heads, g kv heads, d their dimension, f columns of the feed-forward that all tokens pass, i those of
an expert, w those of a dense layer before layers with experts, v words, c hidden, k two (keys and values; gate and
up), e and x experts, n those of a token, o one, y what a router's cosines are of, r rows of routed tokens, a all
tokens of a GPU. A parameter is cut into slices of tensor
parallelism (j) or of the experts (k) and flat shards of these (z); whole, it has the axes that WHOLE says, of which a
slice is cut along the one that formulas name.

A tensor that is cut along shards alone lies flat, as weights on their way to generation (zbench.rollouts.gathers).
A tensor with amounts has rows: of a cell as many as the step says, or as are counted while it runs
(zbench.runtime.handlers.counted), cells with the same second part together.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from math import prod

import numpy as np
import torch
from torch import Tensor

from zbench.describe.arrays import Ints
from zbench.describe.model import Model
from zbench.runtime.kernels.elementwise import wide
from zbench.runtime.kernels.memory import DTYPES, bytes_of
from zbench.runtime.steps.instructions import Cell, Parts
from zbench.step.expert_cut import ExpertCut
from zbench.step.layout import StepLayout

WHOLE: Mapping[str, str] = {
    "wq": "hdc", "wkv": "gkdc", "wo": "hdc", "wz": "kfc", "wd": "fc", "we": "vc", "wh": "vc", "g1": "c", "g2": "c",
    "gl": "c", "wr": "xc", "wp": "yc", "wc": "xy", "vh": "oc", "ez": "ekic", "ed": "eic", "wzs": "kfc", "wds": "fc",
    "wzf": "kwc", "wdf": "wc",
}  # fmt: skip
# Fields of tensors of tokens; L first: in the dtype of log-sum-exps, I: whole numbers. Others are hidden activations.
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "q": ("thd",), "do": ("thd",), "o": ("thd", "Lth"), "kv": ("tkgd",), "e": ("Lth", "Lth"), "z": ("tkf",),
    "u": ("tf",), "zs": ("tkf",), "us": ("tf",), "l": ("Lt", "Lt"), "val": ("Lt",), "loss": ("L",), "r": ("tx",),
    "share": ("Lr",), "ra": ("ax",), "rh": ("ty",), "zf": ("tkw",), "uf": ("tw",),
}  # fmt: skip
# Of tensors of routed tokens; others have hidden activations, too.
_ROUTED: Mapping[str, tuple[str, ...]] = {
    "p": ("Lrn",), "i": ("rc",), "z": ("rki",), "u": ("ri",), "v": ("rc",), "pa": ("Lro",), "to": ("Ir",),
    "ct": ("Ir",), "cn": ("Ir",), "pn": ("Lro",), "np": ("Lrn",),
}  # fmt: skip
Fields = tuple[Tensor, ...]


@cache
def base_name(tensor: str) -> str:
    """Returns the name of what a tensor is made again of, or the gradient of, where it lies in memory like that."""
    name = tensor.rstrip("~")
    known = (_FIELDS, _ROUTED, WHOLE)
    if any(name in one for one in known):
        return name
    of_rounds = name[:1] in ("p", "m", "c") and name[1:] in WHOLE  # zbench.step.passes.rounds.outer_step
    return name[1:] if of_rounds or (name[:1] in ("d", "s") and any(name[1:] in one for one in known)) else name


def product_axes(tensor: str) -> str:
    """Returns the axes that a tensor has in a product: of o its first field's, and a parameter's whole."""
    name = base_name(tensor)
    return WHOLE.get(name) or _FIELDS.get(name, ("tc",))[0]


@dataclass(frozen=True)
class Format:
    """The format of a tensor. fields: the axes of each field and its dtype. where: of both axes that it is cut
    along the letter in `fields`, "" where it has none. sizes: of every part along both. dims: sizes of other axes.
    amounts: of a tensor that has them, the rows of each cell, int64 [parts of the first, of the second]. counted: they
    were counted while the step runs, so that a cell is there that has none."""

    fields: tuple[tuple[str, torch.dtype], ...]
    where: tuple[str, str]
    sizes: tuple[Ints, Ints]
    dims: Mapping[str, int]
    amounts: Ints | None = None
    counted: bool = False
    _shapes: dict[tuple[int, Parts, Parts], tuple[int, ...]] = dataclasses.field(
        default_factory=dict, init=False, compare=False
    )

    @cached_property
    def _sizes(self) -> tuple[list[int], list[int]]:
        """The sizes as Python's numbers, of which few are added faster than numpy does."""
        return self.sizes[0].tolist(), self.sizes[1].tolist()

    def length(self, which: int, parts: Parts) -> int:
        """Returns the tokens, heads or columns of some parts along an axis that it is cut along."""
        sizes = self._sizes[which]
        return sum([sizes[part] for part in parts])

    def pairs(self, first: Parts, second: Parts) -> list[Cell]:
        """Lists the cells of two lists that there are, as they follow one another where they have rows."""
        if self.amounts is None:
            return [(a, b) for a in first for b in second]
        return [(a, b) for b in second for a in first if self.counted or self.amounts[a, b]]

    def first_pair(self, first: Parts, second: Parts) -> Cell | None:
        """Returns the first cell of `pairs`, None where there is none."""
        if self.amounts is None:
            return (first[0], second[0]) if first and second else None
        return next(iter(self.pairs(first, second)), None)

    def shape(self, field: int, first: Parts, second: Parts) -> tuple[int, ...]:
        """Returns the shape of a field for the cells of two lists."""
        key = field, first, second  # layers, and who sends and who receives, ask for the same
        if key not in self._shapes:
            self._shapes[key] = self._shape(*key)
        return self._shapes[key]

    def _shape(self, field: int, first: Parts, second: Parts) -> tuple[int, ...]:
        cut = {}
        if self.amounts is not None:
            cut["r"] = int(self.amounts[np.ix_(first, second)].sum())
        for which, (letter, parts) in enumerate(zip(self.where, (first, second), strict=True)):
            if letter:
                cut[letter] = self.length(which, parts)
        return tuple(cut.get(letter, self.dims.get(letter, 1)) for letter in self.fields[field][0])

    def num_bytes(self, first: Parts, second: Parts) -> int:
        """Returns the bytes of a message with the cells of two lists."""
        return sum(prod(self.shape(at, first, second)) * one[1].itemsize for at, one in enumerate(self.fields))

    def axis(self, field: int, which: int) -> int:
        """Returns where an axis that the tensor is cut along is in a field, -1 where it has none."""
        letter = self.where[which]
        return self.fields[field][0].index(letter) if letter else -1

    def packed(self, fields: Fields) -> Tensor:
        """Returns fields as the bytes of a message, one field after another; as they lie where there is one."""
        rows = [bytes_of(one.contiguous()) for one in fields]
        return rows[0] if len(rows) == 1 else torch.cat(rows)

    def unpacked(self, message: Tensor, first: Parts, second: Parts) -> Fields:
        """Returns the fields of a message, as views."""
        found, at = [], 0
        for field, (_, dtype) in enumerate(self.fields):
            shape = self.shape(field, first, second)
            size = prod(shape) * dtype.itemsize
            found.append(message[at : at + size].view(dtype).view(shape))
            at += size
        return tuple(found)


@dataclass(frozen=True)
class Formats:
    """The formats of a layout's tensors."""

    layout: StepLayout
    model: Model

    @cached_property
    def all(self) -> tuple[Format, ...]:
        """The formats, by the tensors' numbers."""
        return tuple(self._format(at) for at in range(len(self.layout.tensors)))

    def _format(self, number: int) -> Format:
        tensor, name = self.layout.tensors[number], base_name(self.layout.tensors[number].name)
        element, lse = DTYPES[self.model.element_bytes], DTYPES[self.model.lse_bytes]
        sizes = [self.layout.index[axis].sizes for axis in tensor.axes]
        letters = [axis[0] for axis in tensor.axes]
        if name in WHOLE:
            state = tensor.name == f"s{name}"
            dtype = element if tensor.name == name else wide(element)
            own = ("".join(letters) or WHOLE[name], dtype)
            # Of AdamW: the parameter in the wide dtype and its two moments.
            fields: tuple[tuple[str, torch.dtype], ...] = (own, own, own) if state else (own,)
        else:
            mine = _FIELDS.get(name, ("tc",)) if tensor.amounts is None else _ROUTED.get(name, ("rc",))
            mine = ("z",) if letters == ["z"] else mine
            kinds = {"L": lse, "I": torch.int64}
            fields = tuple((axes.lstrip("LI"), kinds.get(axes[0], element)) for axes in mine)
        where = [*letters, "", ""][:2] if tensor.amounts is None else ["", ""]
        none = np.ones(1, np.int64)
        return Format(
            fields,
            (where[0], where[1]),
            ((*sizes, none, none)[0], (*sizes, none, none)[1]),
            self._dims,
            None if tensor.amounts is None else tensor.amounts.reshape(self.layout.shape(number)),
        )

    @cached_property
    def _dims(self) -> Mapping[str, int]:
        one = self.model
        of_expert = one.ffn_hidden // ExpertCut.of(self.layout.index, one.num_experts).tensor_parallel
        return {
            "c": one.hidden, "d": one.head_dim, "k": 2, "f": one.common_ffn, "i": of_expert, "x": one.num_experts,
            "n": one.experts_per_token, "y": one.router_dim, "w": one.dense_ffn_hidden,
        }  # fmt: skip
