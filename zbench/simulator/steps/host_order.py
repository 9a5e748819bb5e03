"""Edges between instances that keep the order of what a GPU computes and copies of activations to and from its host
(zbench.simulator.steps.dataflow.host_copies)."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zbench.describe.arrays import Ints
from zbench.simulator.steps.dataflow.host_copies import host_copies
from zbench.simulator.steps.expand import OP
from zbench.simulator.steps.variant import Variant
from zbench.step.operations import COMPUTE


class _HostHops(NamedTuple):
    """Hops of a variant whose order with other instances' counts. first, last: of each GPU's computes, int64 [GPUs], -1
    where it has none. sent, brought: copies of activations to the host with no compute behind them on their GPU, and
    from it with none before, int64 [n, 2], (GPU, hop)."""

    first: Ints
    last: Ints
    sent: Ints
    brought: Ints


def edges_across(variants: Sequence[Variant], which: Ints, begin: Ints, num_gpus: int) -> tuple[Ints, Ints]:
    """Returns the edges between hops of different instances, (producers, consumers). which: int64 [instances], the
    variant of each; begin: their first hops."""
    every = [_hops_of(one, num_gpus) for one in variants]
    last, open_sends = np.full(num_gpus, -1, np.int64), np.zeros((0, 2), np.int64)
    found = [np.zeros((0, 2), np.int64)]
    for number, shift in zip(which.tolist(), begin.tolist(), strict=False):
        of = every[number]
        before = last[of.brought[:, 0]]
        found.append(np.stack([before, of.brought[:, 1] + shift], axis=1)[before >= 0])
        sends, brings = np.nonzero(open_sends[:, :1] == of.brought[:, 0])  # of another micro-batch, which go first
        found.append(np.stack([open_sends[sends, 1], of.brought[brings, 1] + shift], axis=1))
        behind = of.first[open_sends[:, 0]]
        found.append(np.stack([open_sends[:, 1], behind + shift], axis=1)[behind >= 0])
        open_sends = np.concatenate([open_sends[behind < 0], of.sent + np.array([0, shift])])
        last = np.where(of.last >= 0, of.last + shift, last)
    producer, consumer = np.concatenate(found).T
    return producer, consumer


def _hops_of(variant: Variant, num_gpus: int) -> _HostHops:
    """Finds a variant's hops."""
    first, last = np.full(num_gpus, -1, np.int64), np.full(num_gpus, -1, np.int64)
    of_hop, ops = variant.lowered.table[OP], variant.ops
    computes = np.flatnonzero((ops[of_hop, 0] == COMPUTE) & (ops[of_hop, 2] < num_gpus))
    place = ops[of_hop[computes], 2]
    last[place] = computes
    first[place[::-1]] = computes[::-1]
    to_host, from_host = (np.flatnonzero(mine[of_hop]) for mine in host_copies(variant.of.layout, ops, num_gpus))
    gpus = ops[of_hop[to_host], 2], ops[of_hop[from_host], 3]
    sent = np.stack([gpus[0], to_host], axis=1)[last[gpus[0]] < to_host]
    brought = np.stack([gpus[1], from_host], axis=1)[(first[gpus[1]] < 0) | (first[gpus[1]] > from_host)]
    return _HostHops(first, last, sent, brought)
