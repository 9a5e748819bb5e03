"""Seconds and bytes of a layer with each of its strategies, and of what is before and after the layers, by arithmetic.

A batch's sequences are packed for the groups that have tokens of their own, a pack of about as many seconds each
(zbench.cost.by_layer.packs); a micro-batch takes what its slowest pack does, and memory what the fullest has. Gathers
of a sharded layer's parameters and the reductions of its gradients are beside its own work, as is the one reduction of
a step without sharding; what is longer than that work is waited for. Left out: what stages send each other.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from zbench.cost.by_layer.decision_tree import DATA, SHARDED, TENSOR, LayerStrategy
from zbench.cost.by_layer.packs import SequencePacks
from zbench.cost.by_layer.programme import LayerTable
from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.cost import OPTIMIZER_BYTES, Cost
from zbench.cost.gathers import run_seconds
from zbench.cost.linear import HIDDEN, SHOWN
from zbench.cost.memory.moments import loss_lines
from zbench.cost.memory.state import ADAM_BYTES
from zbench.cost.recompute import (
    again_activation_bytes,
    again_elementwise_bytes,
    again_flops,
    layer_activation_bytes,
)
from zbench.describe.arrays import Floats, Ints

_COLUMNS = ("passes", "once", "states", "kept", "working", "at_loss")


class Outside(NamedTuple):
    """A stage's rest, which is no layer: seconds of a micro-batch, bytes that stay, and those of the loss."""

    seconds: float
    bytes: int
    loss: int


def strided_gather_seconds(cost: Cost, size: float, degree: int, stride: int) -> float:
    """Returns the seconds in which every group of `degree` GPUs, `stride` apart, gathers `size` bytes, all groups at
    once: inside nodes over the link that holds the farthest ones, and over NICs, which the groups of a node share."""
    if degree == 1 or stride == 1:
        return run_seconds(cost, size, degree)
    c = cost.cluster
    within = max(1, min(degree, c.gpus_per_node // stride))
    nodes = degree // within
    inside = hops = across = 0.0
    if within > 1:
        link = int(c.link_of(np.array([0]), np.array([stride * (within - 1)]))[0])
        inside = float(cost.transfer_seconds(np.array([size * (degree - 1) / degree]), link)[0])
        hops = c.links[link].latency * (within - 1)
    if nodes > 1:
        groups = c.gpus_per_node // within
        across = cost.nic_transfer_seconds(groups * size * (nodes - 1) / nodes / c.nics_per_node)
        hops += c.nic_latency * (nodes - 1)
    return max(inside, across) + hops


@dataclass(frozen=True)
class LayerCosts:
    """The costs of a batch's layers on stages of so many GPUs. cost: of GPUs, without groups and stages. lengths: of
    every sequence of the batch. packs: of these."""

    cost: Cost
    lengths: Ints
    gpus: int
    micro_batches: int
    strategies: Sequence[LayerStrategy]
    packs: SequencePacks

    @staticmethod
    def of(
        cost: Cost, lengths: Ints, gpus: int, micro_batches: int, strategies: Sequence[LayerStrategy]
    ) -> "LayerCosts":
        """Returns the costs of layers whose batch is packed anew."""
        return LayerCosts(cost, lengths, gpus, micro_batches, strategies, SequencePacks(cost, lengths))

    @cached_property
    def usable(self) -> tuple[LayerStrategy, ...]:
        """The strategies that the model's heads can be cut for, with a sequence for every group in each micro-batch."""
        model = self.cost.model
        return tuple(
            one
            for one in self.strategies
            if model.num_heads % one.tensor == 0
            and (model.num_kv_heads % one.tensor == 0 or one.tensor % model.num_kv_heads == 0)
            and one.groups * self.micro_batches <= len(self.lengths)
        )

    @cached_property
    def _columns(self) -> dict[str, Floats]:
        rows = np.array([self._row(one) for one in self.usable]).reshape(-1, len(_COLUMNS))
        return dict(zip(_COLUMNS, rows.T, strict=True))

    def _row(self, one: LayerStrategy) -> tuple[float, ...]:
        """Returns the seconds of a strategy's passes and of what is there once a step, and the bytes of its states,
        those that a micro-batch under way keeps, those of the layer at work, and those that are there at the loss."""
        cost, model, e = self.cost, self.cost.model, self.cost.model.element_bytes
        pack = self.packs.slowest(one.groups, self.micro_batches)
        tokens, fullest = pack.tokens, pack.fullest / one.tensor
        params = model.layer_params / one.tensor
        groups = one.groups, one.stride(DATA, SHARDED)
        gather = strided_gather_seconds(cost, params * e, *groups)
        reduce = strided_gather_seconds(cost, params * GRADIENT_BYTES, *groups)
        hidden = strided_gather_seconds(cost, tokens * model.hidden * e, one.tensor, one.stride(TENSOR))
        mine = np.array([tokens / one.tensor])
        linear, gradients = (
            float(of(mine, slices=one.tensor)[0]) for of in (cost.linear_seconds, cost.gradient_seconds)
        )
        there, back = pack.forward / one.tensor, pack.backward / one.tensor
        forward = linear + there + SHOWN * hidden
        backward = max(gradients + back, HIDDEN * hidden) + SHOWN * hidden
        layer, working = layer_activation_bytes(model), 0.0
        if one.recompute == "full":
            backward, layer, working = backward + forward, e * model.hidden, float(layer)
        elif one.recompute == "selective":
            backward += self._again_seconds(mine, one.tensor) + hidden
            layer, working = layer - again_activation_bytes(model), float(again_activation_bytes(model))
        optimizer = OPTIMIZER_BYTES * params / cost.cluster.device.copy_bandwidth
        states = params * (e + GRADIENT_BYTES + ADAM_BYTES)
        if one.is_sharded:
            passes = max(forward, gather) + max(backward, gather + reduce)
            gathered = params * e  # a layer's: at work the next one's besides, at the loss the last or the next one's
            at_work = working * fullest + 2 * gathered
            head = model.head_params / one.tensor * (e + GRADIENT_BYTES)  # whole at the loss, with its gradient
            return passes, optimizer / one.groups, states / one.groups, layer * fullest, at_work, gathered + head
        once = max(0.0, 2 * reduce - backward) + optimizer  # an all-reduce is both ways
        return forward + backward, once, states, layer * fullest, working * fullest, 0.0

    def _again_seconds(self, tokens: Floats, tensor: int) -> float:
        """Returns the seconds of what selective recomputation runs again on each of `tensor` GPUs with so many tokens,
        [1], without starts of kernels."""
        model, device = self.cost.model, self.cost.cluster.device
        moved = again_elementwise_bytes(model) / device.copy_bandwidth
        if self.cost.is_by_shape:
            return float(self.cost.feed_forward_again(tensor).forward(tokens * tensor)[0] + moved * tokens[0])
        return float(tokens[0]) * (again_flops(model) / device.matmul_flops + moved)

    def table(self, under_way: int) -> LayerTable:
        """Returns the table of a stage that holds so many micro-batches; what is there once a step is spread over its
        micro-batches."""
        of = self._columns
        size = np.ceil(of["states"] + under_way * of["kept"]).astype(np.int64)
        layouts = {one.levels: at for at, one in enumerate(dict.fromkeys(map(_places, self.usable)))}
        layout = np.array([layouts[_places(one).levels] for one in self.usable], np.int64)
        seconds = of["passes"] + of["once"] / self.micro_batches
        working, at_loss = (np.ceil(of[name]).astype(np.int64) for name in ("working", "at_loss"))
        return LayerTable(seconds, size, working, layout, self._change, at_loss)

    @property
    def _change(self) -> float:
        """The seconds of a GPU's share of the hidden states on their way to where another layout has them, forward,
        and of their gradients backward."""
        model, c = self.cost.model, self.cost.cluster
        size = float(self.lengths.sum()) / (self.micro_batches * self.gpus) * model.hidden * model.element_bytes
        inside = float(self.cost.gather_seconds(np.array([size]), min(self.gpus, c.gpus_per_node))[0])
        nodes = self.gpus // c.gpus_per_node
        if nodes <= 1:
            return 2 * (inside + c.nvlink_latency)
        away = size * c.gpus_per_node * (nodes - 1) / nodes / c.nics_per_node
        return 2 * (max(inside, self.cost.nic_transfer_seconds(away)) + c.nic_latency)

    def outside(self, is_first: bool, is_last: bool) -> Outside:
        """Returns what is before the first and after the last layer on a stage that has it, evenly on all its GPUs."""
        model, cost = self.cost.model, self.cost
        has_head = is_last and not (is_first and model.tied_embeddings)
        params = int(is_first) * model.table_params + int(has_head) * model.head_params
        size = params * (model.element_bytes + GRADIENT_BYTES + ADAM_BYTES) / self.gpus
        seconds = OPTIMIZER_BYTES * params / self.gpus / cost.cluster.device.copy_bandwidth / self.micro_batches
        loss = 0.0
        if is_last:
            tokens = float(self.lengths.sum()) / (self.micro_batches * self.gpus)
            seconds += float(cost.head_seconds(np.array([tokens]))[0])
            loss = max(line.bytes(tokens) for line in loss_lines(cost))
        return Outside(seconds, int(np.ceil(size)), int(np.ceil(loss)))


def _places(one: LayerStrategy) -> LayerStrategy:
    """Returns a strategy that tells where tokens lie alone: both kinds of data parallelism lay them alike."""
    levels = tuple(level if level.kind == TENSOR else type(level)(DATA, level.degree) for level in one.levels)
    return LayerStrategy(levels, "none")
