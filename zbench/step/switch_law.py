"""The byte law of a change of strategy: what every GPU sends and receives where a step begins with parameters and
optimizer state in other places than the step before has left them, counted from both steps' columns alone.

It shares no code with what moves them. An element of a parameter that a GPU lacks comes from one that has it: of
several, in the order of GPUs, GPU p asks number p, counted round. What a GPU's part of host memory lacks is on its
node, and handed over there; or the GPU has it, or gets it, itself; or it comes from the part that has it, over both.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from zbench.describe.arrays import Ints
from zbench.interfaces.result import HANDED_OVER, SWITCH
from zbench.step.elements import ElementMoves, element_moves, elements_held
from zbench.step.template import Step

Sizes = list[tuple[int, int]]


class _Parcel(NamedTuple):
    """Bytes for a GPU's part of host memory. src: whose part they were on, -1 if the GPU itself gives them."""

    src: int
    dst: int
    size: int
    handed_over: bool


def switch_bytes(before: Step, after: Step, gpus_per_node: int = 1) -> Sizes:
    """Returns the bytes (sent, received) of every GPU to and from others. before: the step whose ends are there; after:
    whose begins have to be. gpus_per_node: that share a host memory, where something rests there."""
    return _between_gpus(_moves(before, after), after.num_gpus, gpus_per_node)


def host_link_bytes(before: Step, after: Step, gpus_per_node: int) -> Sizes:
    """Returns the bytes (to its host, from its host) over every GPU's link, as of `switch_bytes`."""
    found = np.zeros((after.num_gpus, 2), np.int64)
    for one in _moves(before, after):
        for parcel in _for_hosts(one, gpus_per_node):
            if not parcel.handed_over:
                found[parcel.dst, 0] += parcel.size
                found[parcel.src, 1] += parcel.size if parcel.src >= 0 else 0
    return [(int(sent), int(received)) for sent, received in found]


def process_bytes(before: Step, after: Step, gpus_per_node: int) -> list[dict[str, tuple[int, int]]]:
    """Returns the bytes (sent, received) of every GPU's process by what for: between GPUs, with host memories, which a
    part's GPU or a node's first has, and what is handed over from one process to another, as they have no memory in
    common."""
    found: list[dict[str, list[int]]] = [defaultdict(lambda: [0, 0]) for _ in range(after.num_gpus)]

    def moves(name: str, src: int, dst: int, size: int) -> None:
        found[src][name][0] += size
        found[dst][name][1] += size

    every = _moves(before, after, stays=True)
    for gpu, pair in enumerate(_between_gpus(every, after.num_gpus, gpus_per_node)):
        found[gpu][SWITCH] = list(pair)
    for one in every:
        for src, dst, size, handed_over in (*_stays(one), *_for_hosts(one, gpus_per_node)):
            if handed_over:
                ends = _process(before, src), _process(after, dst)
                moves(HANDED_OVER, *ends, size * (ends[0] != ends[1]))
                continue
            moves("host", dst, _process(after, dst), size)
            if src >= 0:
                moves("host", _process(before, src), src, size)
    return [{name: (one[0], one[1]) for name, one in mine.items() if any(one)} for mine in found]


def _moves(before: Step, after: Step, stays: bool = False) -> list[ElementMoves]:
    return list(element_moves(elements_held(before, before.ends), elements_held(after, after.begins), stays))


def _between_gpus(every: Sequence[ElementMoves], gpus: int, gpus_per_node: int) -> Sizes:
    """Returns the bytes (sent, received) of every GPU to and from others."""
    found = np.zeros((gpus, 2), np.int64)
    for one in every:
        number = np.cumsum(one.has, axis=0) - 1  # of a GPU among those that have a piece
        copies = np.maximum(one.has.sum(axis=0), 1)
        for gpu in np.flatnonzero(one.lacks.any(axis=1)).tolist():
            asked = one.has & (number == gpu % copies) & one.lacks[gpu]
            found[:, 0] += len(one.layers) * (asked @ one.sizes)
            found[gpu, 1] += len(one.layers) * int(one.lacks[gpu] @ one.sizes)
        for parcel in _for_hosts(one, gpus_per_node):
            if parcel.src >= 0 and not parcel.handed_over:
                found[parcel.src, 0] += parcel.size
                found[parcel.dst, 1] += parcel.size
    return [(int(sent), int(received)) for sent, received in found]


def _process(step: Step, gpu: int) -> int:
    """Returns the process that has a GPU's part of host memory."""
    each = step.num_gpus // step.num_hosts
    return gpu // each * each


def _stays(one: ElementMoves) -> list[_Parcel]:
    """Lists what stays in a GPU's part of host memory, which another process may have now."""
    if one.hosts is None:
        return []
    sizes = (one.hosts.has & one.hosts.wants) @ one.sizes * len(one.layers)
    return [_Parcel(gpu, gpu, size, True) for gpu, size in enumerate(sizes.tolist())]


def _for_hosts(one: ElementMoves, gpus_per_node: int) -> Iterator[_Parcel]:
    """Yields what parts of host memory lack of a tensor, in all of its layers."""
    if one.hosts is None:
        return
    gpus, times = len(one.has), len(one.layers)
    node_of: Ints = np.arange(gpus) // gpus_per_node
    for dst in range(gpus):
        lacks, near = one.hosts.wants[dst] & ~one.hosts.has[dst], one.has[dst] | one.lacks[dst]
        mine = one.hosts.has & (node_of == node_of[dst])[:, None]
        here, rest = lacks & mine.any(axis=0), lacks & ~mine.any(axis=0)
        for handed_over, wanted, having in ((True, here, mine), (False, rest & ~near, one.hosts.has)):
            which = dst % np.maximum(having.sum(axis=0), 1)
            asked = having & (np.cumsum(having, axis=0) - 1 == which) & wanted
            sizes = times * (asked @ one.sizes)
            for src in np.flatnonzero(sizes).tolist():
                yield _Parcel(src, dst, int(sizes[src]), handed_over)
        if own := times * int((rest & near) @ one.sizes):
            yield _Parcel(-1, dst, own, False)
