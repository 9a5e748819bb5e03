"""Memory of the host that all processes of a policy share: its whole weights, and keys and values between layouts.

Both are files that processes map, so what one writes is what others read. A GPU's part of a weight, or of keys and
values, is copied between them and memory of its own, and its bytes are counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import prod

import torch
from torch import Tensor

from zbench.describe.model import Model
from zbench.runtime.kernels.memory import DTYPES
from zbench.runtime.stepping.weights import OUTSIDE

Shape = tuple[int, ...]
_NORMS = ("g1", "g2", "gl")  # whole on all GPUs of a tensor-parallel group


def weight_shapes(model: Model) -> dict[str, Shape]:
    """Returns the shapes of a policy's weights by their names in a step, those of a layer for one layer."""
    h, d, f, v, c = model.num_heads, model.head_dim, model.ffn_hidden, model.vocab, model.hidden
    layer = {"g1": (c,), "wq": (h, d, c), "wkv": (model.num_kv_heads, 2, d, c), "wo": (h, d, c)}
    return {"we": (v, c), **layer, "g2": (c,), "wz": (2, f, c), "wd": (f, c), "gl": (c,), "wh": (v, c)}


def mapped_file(path: str, elements: int, model: Model) -> Tensor:
    """Returns the elements of a file that processes share, of the model's type; it is made if it is not there."""
    return torch.from_file(path, shared=True, size=elements, dtype=DTYPES[model.element_bytes])


@dataclass
class HostWeights:
    """The whole weights of a policy in a file. copied: bytes that this process has copied out of it."""

    model: Model
    path: str
    copied: int = 0
    _begins: dict[tuple[str, int], int] = field(init=False)
    _memory: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self._begins, at = {}, 0
        for name, shape in weight_shapes(self.model).items():
            for layer in range(1 if name in OUTSIDE else self.model.num_layers):
                self._begins[name, layer] = at
                at += prod(shape)
        self._memory = mapped_file(self.path, at, self.model)

    def write(self, weights: Mapping[str, Tensor]) -> None:
        """Writes whole weights, those of layers with all layers in one tensor."""
        for (name, layer), _ in self._begins.items():
            self._whole(name, layer).copy_(weights[name] if name in OUTSIDE else weights[name][layer])

    def slice_of(self, name: str, layer: int, part: int, parts: int) -> Tensor:
        """Returns a slice of a weight, copied; norms are whole."""
        whole = self._whole(name, layer)
        if name not in _NORMS:
            axis = 1 if name == "wz" else 0  # gate and up are cut alike
            size = whole.shape[axis] // parts
            whole = whole.narrow(axis, part * size, size)
        found = whole.clone(memory_format=torch.contiguous_format)
        self.copied += found.nbytes
        return found

    def _whole(self, name: str, layer: int) -> Tensor:
        shape = weight_shapes(self.model)[name]
        begin = self._begins[name, layer]
        return self._memory[begin : begin + prod(shape)].view(shape)


@dataclass
class HostKeys:
    """Keys and values of sequences in a file, each [layers, 2, kv heads, tokens, their dimension]: heads before tokens,
    as layouts cut heads. tokens: that there is room for. written, read: bytes that this process has copied."""

    model: Model
    path: str
    tokens: int
    written: int = 0
    read: int = 0

    @cached_property
    def _memory(self) -> Tensor:
        return mapped_file(self.path, self.tokens * self._row, self.model)

    @property
    def _row(self) -> int:
        return self.model.num_layers * 2 * self.model.num_kv_heads * self.model.head_dim

    def put(self, span: range, layer: int, heads: range, kept: Tensor) -> None:
        """Writes what a GPU has of a sequence in a layer, kept [tokens, 2, heads, their dimension]. span: the
        sequence's tokens in this memory."""
        self._of(span, layer, heads).copy_(kept.permute(1, 2, 0, 3))
        self.written += kept.nbytes

    def take(self, span: range, layer: int, heads: range) -> Tensor:
        """Returns what a GPU wants of a sequence in a layer, as `put` has it, copied."""
        found = self._of(span, layer, heads).permute(2, 0, 1, 3).clone(memory_format=torch.contiguous_format)
        self.read += found.nbytes
        return found

    def _of(self, span: range, layer: int, heads: range) -> Tensor:
        model = self.model
        own = self._memory[span.start * self._row : span.stop * self._row]
        whole = own.view(model.num_layers, 2, model.num_kv_heads, len(span), model.head_dim)
        return whole[layer, :, heads.start : heads.stop]
