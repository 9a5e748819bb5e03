"""The operations by which state in host memory gets from node to node when pipelines change.

A node has one host memory, which its GPUs' processes map, whichever part a GPU's CPUs updated before: what stays on its
node is handed over, and is no operation. What another node wants leaves over the link of the GPU that it belonged to,
crosses the network between the two GPUs, and arrives over the link of the GPU that it belongs to from now on: three
sends, and both GPUs forget it. A NIC could read pinned host memory by itself, and would put the same bytes on the same
links; through GPUs it takes what trains already, NCCL's groups of GPUs, and room for a few tensors. What the
new GPU has itself, or gets, as it computes with it, does not come a second time: its host gets it from there.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.step.elements import ElementMoves
from zbench.step.lists import ListTable
from zbench.step.operations import DROP, SEND, operation_row

Rows = list[list[int]]
Parcel = tuple[int, int, Ints]  # the GPU that pieces leave, the one that gets them, and their numbers


class HostRoutes(NamedTuple):
    """The ways of a tensor's pieces to other nodes' host memory. through: from a GPU's part of host memory to another
    one's, over both GPUs; own: from a GPU that has them to its part."""

    through: list[Parcel]
    own: list[tuple[int, Ints]]


def host_routes(one: ElementMoves, node_of: Ints) -> HostRoutes:
    """Returns how pieces of a tensor get to other nodes' host memory. node_of: the node of every GPU, int64 [GPUs].

    Raises:
        ValueError: no host memory has what one lacks.
    """
    found, hosts = HostRoutes([], []), one.hosts
    if hosts is None:
        return found
    there, gone = of_nodes(hosts.has, node_of), np.zeros_like(hosts.has)
    number, copies = np.cumsum(hosts.has, axis=0) - 1, hosts.has.sum(axis=0)
    for gpu in np.flatnonzero(hosts.wants.any(axis=1)).tolist():
        node = int(node_of[gpu])
        lacks = hosts.wants[gpu] & ~there[node] & ~gone[node]
        gone[node] |= lacks  # of several parts of a node the first one gets it
        near = lacks & (one.has[gpu] | one.lacks[gpu])
        if near.any():
            found.own.append((gpu, np.flatnonzero(near)))
        pieces = np.flatnonzero(lacks & ~near)
        if not copies[pieces].all():
            raise ValueError(f"no host memory has all of {one.tensor} that node {node} lacks")
        asked = hosts.has[:, pieces] & (number[:, pieces] == gpu % copies[pieces])
        source = asked.argmax(axis=0)
        found.through.extend((src, gpu, pieces[source == src]) for src in np.unique(source).tolist())
    gpus = len(node_of)
    found.through.sort(key=lambda parcel: ((parcel[1] - parcel[0]) % gpus, parcel[0]))
    return found


def of_nodes(parts: Flags, node_of: Ints) -> Flags:
    """Returns which pieces the host memory of every node has, bool [nodes, pieces]. parts: of each GPU's part."""
    found = np.zeros((int(node_of[-1]) + 1, parts.shape[1]), bool)
    np.logical_or.at(found, node_of, parts)
    return found


def between_nodes(every: Sequence[ElementMoves], node_of: Ints) -> Iterator[ElementMoves]:
    """Yields what moves from place to place: not what is handed over inside its node."""
    for one in every:
        if one.lacks.any() or any(host_routes(one, node_of)):
            yield one


def through_gpus(one: ElementMoves, what: int, index: str, lists: ListTable, node_of: Ints) -> tuple[Rows, Rows]:
    """Returns the operations that bring what host memory has of a tensor to the GPUs that it is to belong to, and those
    that take it to their hosts and end what nobody wants any more. what: the tensor's number; index: of its pieces."""
    before, behind = Rows(), Rows()
    if one.hosts is None:
        return before, behind
    routes, host = host_routes(one, node_of), len(node_of) + node_of
    through = [(src, dst, lists.number(index, pieces)) for src, dst, pieces in routes.through]
    before += [operation_row(SEND, what, (int(host[src]), src), [cells], "host") for src, _, cells in through]
    before += [operation_row(SEND, what, (src, dst), [cells], "parameters") for src, dst, cells in through]
    behind += [
        operation_row(SEND, what, (gpu, int(host[gpu])), [lists.number(index, pieces)], "host")
        for gpu, pieces in routes.own
    ]
    behind += [operation_row(SEND, what, (dst, int(host[dst])), [cells], "host") for _, dst, cells in through]
    behind += [_drop(what, gpu, cells) for src, dst, cells in through for gpu in (src, dst)]
    had, wanted = (of_nodes(flags, node_of) for flags in (one.hosts.has, one.hosts.wants))
    for node, pieces in enumerate(had & ~wanted):
        if pieces.any():
            behind.append(_drop(what, len(node_of) + node, lists.number(index, np.flatnonzero(pieces))))
    return before, behind


def _drop(what: int, place: int, cells: int) -> list[int]:
    return operation_row(DROP, what, (place, -1), [cells], "compute")
