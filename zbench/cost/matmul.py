"""Seconds of a matmul by its shape, and of a layer's matmuls by a rank's tokens: whole tiles, waves of tiles, and what
goes through memory. Pure.

A GPU cuts the result of a matmul into tiles, and its multiprocessors take a tile each, one wave of tiles after another.
A tile that sticks out of the result takes as long as a full one, and so does a last wave that leaves multiprocessors
idle (NVIDIA, Matrix Multiplication Background User's Guide, DU-09799-001, sections 2.1, 3.1 and 3.2). So a matmul takes
waves x multiprocessors x the FLOPs of a tile, and never less than its three matrices take through memory. The rate is
Device.matmul_flops for large tiles; smaller ones reuse less of what they load, a b / (a + b) elements of a tile of a by
b, and are slower by that (a guess: the guide has the order of tiles and no rates). The best tile for a shape is taken.

Whole steps ask for one matmul at a time (zbench.simulator.steps.computes). Planners ask for all of a layer, for the
tokens of every rank, tens of times a batch: `WeightMatmuls` has them in tables.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np

from zbench.describe.arrays import Flags, Floats
from zbench.describe.device import Device
from zbench.describe.model import AUTO, WHOLE, Model

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))  # rows and columns of the result
FULL_REUSE = 64.0  # of a tile of 128 x 128, and of larger ones
_STEP = 64  # rows by which the number of any tile's rows changes at most
_ENTRIES = 1024  # of a table: as many times _STEP rows
_MANY = float(1 << 21)  # tokens of which a last tile and a last wave are nothing


def matmul_seconds(device: Device, rows: Floats, columns: Floats, inner: Floats, element_bytes: int) -> Floats:
    """Returns the seconds of matmuls of [rows, inner] by [inner, columns], float64 of the arguments' shape.

    Without `device.matmul_shapes` a matmul has the rate `device.matmul_flops` whatever its shape. One without rows,
    columns or inner elements takes no time.
    """
    if not device.matmul_shapes:
        return np.asarray(2 * rows * columns * inner / device.matmul_flops, np.float64)
    seconds = np.maximum(
        _computing(device, rows, columns, inner),
        element_bytes * (rows * inner + inner * columns + rows * columns) / device.copy_bandwidth,
    )
    return np.asarray(np.where(rows * columns * inner > 0, seconds, 0.0), np.float64)


class Weights(NamedTuple):
    """Parameters of [hidden, columns] that a rank's tokens are multiplied with, those of one GPU, float64 [n] each.

    columns: of each. rows: that a token of the rank has in each. alike: how many there are of each. chunk: how many
    tokens of the rank are multiplied at a time at most, in even parts of all. reads: whether hidden states are
    multiplied with it, or made by it.
    """

    columns: Floats
    rows: Floats
    alike: Floats
    chunk: Floats
    reads: Flags


@dataclass(frozen=True, eq=False)
class WeightMatmuls:
    """The matmuls of a rank's tokens with parameters, as whole steps have them (zbench.simulator.steps.computes): q's,
    k and v together, gate and up together, and each expert's own.

    device: a GPU. hidden: of the model. element_bytes: of a number.
    """

    device: Device
    hidden: int
    element_bytes: int
    weights: Weights

    def forward(self, tokens: Floats) -> Floats:
        """Returns the seconds of a forward's matmuls. tokens: float64 [...], of ranks."""
        return self._by_chunks(tokens, self._forward_of)

    def backward(self, tokens: Floats) -> Floats:
        """Returns the seconds of a backward's matmuls, of both gradients. tokens: float64 [...], of ranks."""
        return self._by_chunks(tokens, self._backward_of)

    def of_head(self, tokens: Floats) -> Floats:
        """Returns the seconds of a head's matmuls in both passes. tokens: float64 [...], of ranks.

        A step's formula for the gradient of its weights names these and logits, and whole steps give it the shape of
        logits.
        """
        return self._by_chunks(tokens, lambda rows: 2 * self._forward_of(rows) + self._of_rows(rows, self._back))

    @cached_property
    def large_rate(self) -> float:
        """FLOP/s of both passes with so many tokens that a last tile and a last wave are nothing beside the others."""
        many, of = np.array([_MANY]), self.weights
        flops = 6 * _MANY * self.hidden * (of.columns * of.rows * of.alike).sum()
        return float(flops / (self.forward(many) + self.backward(many))[0])

    def best_rate(self, passes: float) -> float:
        """Returns the FLOP/s that no number of tokens exceeds, the mean over so many passes: a forward, or forwards and
        a backward, which counts as two.

        Rows may fill their tiles and waves. Columns that stick out of theirs do so whatever the rows, and a weight's
        gradient has the tiles that the weight has.
        """
        of, backwards = self.weights, 1.0 if passes > 1 else 0.0
        seconds = 2 * self.hidden * of.columns * of.rows * of.alike / self.device.matmul_flops
        forward, to_tokens = (float((seconds * _padding(one.columns)).sum()) for one in (self._ahead, self._back))
        to_weights = float((of.alike * of.rows * self._gradient).sum())
        least = (passes - 2 * backwards) * forward + backwards * (to_tokens + to_weights)
        return float(passes * seconds.sum() * self.device.matmul_flops / least)

    def _by_chunks(self, tokens: Floats, seconds: Callable[[Floats], Floats]) -> Floats:
        """Returns the seconds of all weights, [...], of those whose tokens are multiplied some at a time, too.
        seconds: of each weight, [..., n], by its rows, [..., n]."""
        of, each = self.weights, tokens[..., None]
        if np.isinf(of.chunk).all():
            return np.asarray(seconds(each * of.rows).sum(axis=-1), np.float64)
        count = np.maximum(np.ceil(each / of.chunk), 1.0)
        return np.asarray((count * seconds(each / count * of.rows)).sum(axis=-1), np.float64)

    def _forward_of(self, rows: Floats) -> Floats:
        return self.weights.alike * self._of_rows(rows, self._ahead)

    def _backward_of(self, rows: Floats) -> Floats:
        fixed, of_row = self._gradient_moved
        to_weights = np.maximum(self._gradient * rows, fixed + of_row * rows)
        return np.asarray(self.weights.alike * (self._of_rows(rows, self._back) + (rows > 0) * to_weights), np.float64)

    def _of_rows(self, rows: Floats, of: "_Sides") -> Floats:
        """Returns the seconds of a matmul of so many rows with each weight, [..., n]."""
        entry = np.ceil(rows / _STEP)
        if entry.size and entry.max() < _ENTRIES:
            found = of.table[entry.astype(np.intp), np.arange(len(of.columns))]
        else:
            found = _computing(self.device, rows, of.columns, of.inner)
        return np.asarray((rows > 0) * np.maximum(found, of.fixed + of.of_row * rows), np.float64)

    @cached_property
    def _ahead(self) -> "_Sides":
        """The matrices that a forward multiplies rows with."""
        return self._sides(self.weights.reads)

    @cached_property
    def _back(self) -> "_Sides":
        """What a backward multiplies rows with, for the gradients of hidden states and of what is made of them."""
        return self._sides(~self.weights.reads)

    def _sides(self, reads: Flags) -> "_Sides":
        """Returns the sides of matmuls that multiply hidden states, or make them."""
        hidden, of = np.full(len(reads), float(self.hidden)), self.weights.columns
        columns, inner = np.where(reads, of, hidden), np.where(reads, hidden, of)
        moved = self.element_bytes / self.device.copy_bandwidth
        rows = _STEP * np.arange(float(_ENTRIES))[:, None]
        table = _computing(self.device, rows, columns, inner)
        return _Sides(columns, inner, moved * inner * columns, moved * (inner + columns), table)

    @cached_property
    def _gradient(self) -> Floats:
        """Seconds a row in which multiprocessors compute each weight's gradient, [n]: its tiles are of the weight, and
        a tile takes as long as there are rows."""
        hidden = np.full_like(self.weights.columns, self.hidden)
        return _computing(self.device, hidden, self.weights.columns, np.ones_like(hidden))

    @cached_property
    def _gradient_moved(self) -> tuple[Floats, Floats]:
        """Seconds in which a weight's gradient goes through memory, and each row of both that it is of, [n] each."""
        columns, moved = self.weights.columns, self.element_bytes / self.device.copy_bandwidth
        return moved * self.hidden * columns, moved * (self.hidden + columns)


class _Sides(NamedTuple):
    """The matrices that rows are multiplied with, float64 [n] each.

    columns, inner: of it. fixed, of_row: seconds in which it, and each row with its result, goes through memory. table:
    [entries, n], seconds for which multiprocessors compute; entry i is of up to i _STEP rows.
    """

    columns: Floats
    inner: Floats
    fixed: Floats
    of_row: Floats
    table: Floats


@lru_cache(maxsize=64)
def layer_matmuls(model: Model, device: Device, slices: int, expert_gpus: int, expert_cut: int) -> WeightMatmuls:
    """Returns the matmuls of a layer (with experts, where a model has dense ones before) on a GPU.

    slices: GPUs over which tensor parallelism cuts it. expert_gpus, expert_cut: as of zbench.cost.cost.Cost; experts
    are as popular as one another.
    """
    chunk = np.inf if model.mlp_chunk_tokens == WHOLE else float(model.mlp_chunk_tokens)
    heads = model.head_dim * model.num_heads / slices
    rows = [(heads, 1.0, 1.0, np.inf, True), (heads, 1.0, 1.0, np.inf, False)]
    rows.append((2 * model.head_dim * model.num_kv_heads / slices, 1.0, 1.0, np.inf, True))
    if model.router_params:
        rows.append((model.router_params / model.hidden, 1 / slices, 1.0, chunk, True))
    rows += _feed_forward(model, slices, expert_gpus, expert_cut, chunk)
    return _matmuls(model, device, rows)


@lru_cache(maxsize=64)
def again_matmuls(model: Model, device: Device, slices: int, expert_gpus: int, expert_cut: int) -> WeightMatmuls:
    """Returns those of `layer_matmuls` that selective recomputation runs again: gate and up."""
    chunk = np.inf if model.mlp_chunk_tokens == WHOLE else float(model.mlp_chunk_tokens)
    rows = _feed_forward(model, slices, expert_gpus, expert_cut, chunk)
    return _matmuls(model, device, [one for one in rows if one[-1]])


@lru_cache(maxsize=64)
def head_matmuls(model: Model, device: Device, slices: int) -> WeightMatmuls:
    """Returns the matmul of the head on a GPU. slices: GPUs over which its outputs are cut."""
    chunk = np.inf if model.loss_chunk_tokens in (WHOLE, AUTO) else float(model.loss_chunk_tokens)
    return _matmuls(model, device, [(model.head_outputs / slices, 1.0, 1.0, chunk, True)])


def _feed_forward(
    model: Model, slices: int, expert_gpus: int, expert_cut: int, chunk: float
) -> list[tuple[float, float, float, float, bool]]:
    """Returns rows of `Weights`: of a feed-forward, of shared experts, and of the experts that tokens choose."""
    common = model.common_ffn / slices
    found = [(2 * common, 1.0, 1.0, chunk, True), (common, 1.0, 1.0, chunk, False)]
    if model.num_experts == 1:
        return found
    found = found if model.shared_experts else []
    # A GPU has some experts, cut or whole, and rows of all GPUs that hold the experts together.
    count, ffn = model.num_experts * expert_cut / expert_gpus, model.ffn_hidden / expert_cut
    rows = model.experts_per_token / model.num_experts * expert_gpus / slices
    return [*found, (2 * ffn, rows, count, chunk, True), (ffn, rows, count, chunk, False)]


def _matmuls(model: Model, device: Device, rows: list[tuple[float, float, float, float, bool]]) -> WeightMatmuls:
    *numbers, reads = (np.array(column) for column in zip(*rows, strict=True))
    columns, of_token, count, chunk = (np.asarray(one, np.float64) for one in numbers)
    weights = Weights(columns, of_token, count, chunk, np.asarray(reads, np.bool_))
    return WeightMatmuls(device, model.hidden, model.element_bytes, weights)


def _computing(device: Device, rows: Floats, columns: Floats, inner: Floats) -> Floats:
    """Returns the seconds for which multiprocessors compute matmuls by the best of all tiles, float64 of the arguments'
    common shape."""
    units = device.multiprocessors
    made = [
        np.ceil(np.ceil(rows / high) * np.ceil(columns / wide) / units) * high * wide / _rate(high, wide)
        for high, wide in TILES
    ]
    return np.asarray(2 * units * np.minimum.reduce(made) * inner / device.matmul_flops, np.float64)


def _padding(columns: Floats) -> Floats:
    """Returns how many times as long matmuls of so many columns take, at least, as their FLOPs at the device's rate."""
    every = [np.ceil(columns / wide) * wide / columns / _rate(high, wide) for high, wide in TILES]
    return np.asarray(np.minimum.reduce(every), np.float64)


def _rate(high: int, wide: int) -> float:
    """Returns the rate of a tile as a share of large ones'."""
    return min(1.0, high * wide / (high + wide) / FULL_REUSE)
