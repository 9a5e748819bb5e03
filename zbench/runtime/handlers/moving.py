"""Moves parameters and optimizer state from where a step has left them to where the next one wants them.

Every process knows both steps, so each knows all moves, and does its own: what a place has already stays, what it lacks
comes from a place that has it, in a message for each pair of places and tensor. Of several that have it place p asks
number p, counted round, in the order of places. Tensor follows tensor, in one order everywhere, so nothing deadlocks,
and what was sent is waited for a few tensors later, so that few of them are there twice.

What rests in host memory is told of GPUs' parts of it (zbench.runtime.handlers.resting). Between parts of one node it
is handed over, which is a message where two processes have them; to another node it goes over both GPUs' processes, or
from its own GPU, as zbench.step.passes.parameters.switch_hosts has it.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from zbench.runtime.handlers.formats import Fields, Format
from zbench.runtime.handlers.messages import StepMessages
from zbench.runtime.handlers.resting import Piece, Resting, Span
from zbench.runtime.handlers.store import Key, Slab, Store
from zbench.runtime.processes.board import Board
from zbench.runtime.transport.arrivals import Arrival
from zbench.step.elements import table_before
from zbench.step.operations import QUEUES

QUEUE, HOST = QUEUES.index("parameters"), QUEUES.index("host")
HANDED = QUEUES.index("stages")  # which has nothing else meanwhile: what is handed over is counted by itself
_LAST_TABLES = "wh", "swh"  # of tied embeddings on the last stage of a pipeline, and its optimizer state
Pair = tuple[int, int]  # the place that elements leave, the one that they are for
Pairs = Mapping[Pair, list[int]]  # the numbers of atoms of each pair


@dataclass(frozen=True)
class HostNodes:
    """The GPUs of a step that changes. gpus: how many; each: on a node, which share its host memory."""

    gpus: int
    each: int

    def is_part(self, place: int) -> bool:
        """Returns whether a place is a GPU's part of host memory."""
        return place >= self.gpus

    def node(self, place: int) -> int:
        """Returns the node of a place."""
        return place % self.gpus // self.each


@dataclass(frozen=True)
class Moved:
    """The moves of one tensor. atoms: elements that lie together before and after, ascending; pairs: the numbers of
    those that each place has from each, of its own kind, parts of host memory from those of their node. own: of those
    that a part has from its GPU; through: that it has from a part of another node, over both GPUs."""

    atoms: list[Span]
    pairs: Pairs
    own: Pairs = field(default_factory=dict)
    through: Pairs = field(default_factory=dict)

    @staticmethod
    def of(
        before: Sequence[tuple[int, list[Span]]],
        after: Sequence[tuple[int, list[Span]]],
        nodes: HostNodes | None = None,
    ) -> "Moved":
        """Returns the moves of a tensor. before, after: (place, elements) of every piece. nodes: None where nothing
        rests in host memory."""
        every = chain.from_iterable(spans for _, spans in (*before, *after))
        edges = sorted(set(chain.from_iterable(every)))
        atoms = list(pairwise(edges))
        holders: dict[int, set[int]] = defaultdict(set)
        wanted: dict[int, set[int]] = defaultdict(set)
        for found, pieces in ((holders, before), (wanted, after)):
            for place, spans in pieces:
                for atom in atoms_of(atoms, spans):
                    found[atom].add(place)
        pairs, own, through = (defaultdict[Pair, list[int]](list) for _ in range(3))
        for atom in sorted(wanted):
            for place in wanted[atom]:
                there = sorted(holders[atom])
                gpu = place % nodes.gpus if nodes else place
                if nodes is None or not nodes.is_part(place):
                    there = there if nodes is None else [one for one in there if not nodes.is_part(one)]
                    into = pairs
                elif near := [one for one in there if nodes.is_part(one) and nodes.node(one) == nodes.node(place)]:
                    there, into = near, pairs
                elif gpu in holders[atom] or gpu in wanted[atom]:
                    there, into = [gpu], own
                else:
                    there, into = [one for one in there if nodes.is_part(one)], through
                src = place if place in there else there[gpu % len(there)]
                into[src, place].append(atom)
        return Moved(atoms, *({pair: sorted(one[pair]) for pair in sorted(one)} for one in (pairs, own, through)))


class Leg(NamedTuple):
    """Atoms on their way from a place to another. ends: the processes that hold these."""

    src: int
    dst: int
    ends: Pair
    atoms: list[int]


def atoms_of(atoms: Sequence[Span], spans: Sequence[Span]) -> list[int]:
    """Lists the numbers of the atoms of elements, in their order."""
    found: list[int] = []
    for begin, end in spans:
        found += range(bisect_left(atoms, (begin, begin)), bisect_left(atoms, (end, end)))
    return found


def changed(before: Resting, after: Resting) -> list[Key]:
    """Lists what has other places after, or is cut otherwise; a node's host memory may have the number of a GPU's part
    of another one's. First come tables that were not there, which have the numbers of those that were, last those that
    are there no more; gradients that only one of two steps begins with do not move."""

    def where(one: Resting, key: Key) -> tuple[list[Piece], list[int], list[list[int]]]:
        pieces = one.pieces[key]
        return pieces, [one.holder[place] for place, *_ in pieces], one.cut(key[0])

    new, gone = (
        sorted(key for key in one.pieces.keys() - other.pieces.keys() if key[0] in _LAST_TABLES)
        for one, other in ((after, before), (before, after))
    )
    both = sorted(after.pieces.keys() & before.pieces.keys())
    return [*new, *(key for key in both if where(before, key) != where(after, key)), *gone]


Taken = dict[int, dict[int, Fields]]  # by place and atom


@dataclass
class Mover:
    """Moves what rests on a process's places. stores: by place. gpus_per_node: that share a host memory."""

    rank: int
    stores: Mapping[int, Store]
    messages: StepMessages
    board: Board
    gpus_per_node: int = 1

    def move(self, keys: Sequence[Key], before: Resting, after: Resting) -> None:
        """Moves tensors of layers. keys: those that have changed. Collective: every process has to come here with the
        same steps."""
        for key in keys:
            self._move(key, before, after)
            self.messages.turn()
        self.board.wait()
        self.messages.settle()
        self.board.resume()

    def _move(self, key: Key, before: Resting, after: Resting) -> None:
        """Moves a tensor of a layer; forgets one that is there no more."""
        if key not in after.pieces:
            for place, *cells in before.pieces[key]:
                if before.holder[place] == self.rank:
                    self.stores[place].take(key, before.format(key[0]), *cells)
            return
        source = key if key in before.pieces else (table_before(key[0]), *key[1:])
        of, gpus = after.format(key[0]), after.step.num_gpus
        nodes = HostNodes(gpus, self.gpus_per_node) if after.step.num_hosts else None
        old, new = (
            [(piece, rest.parts_of(one[0], piece)) for piece in rest.pieces[one]]
            for rest, one in ((before, source), (after, key))
        )
        had, wanted = ([one for _, parts in pieces for one in parts] for pieces in (old, new))
        moved = Moved.of(had, wanted, nodes)
        held, got = self._taken(source, before, old, moved, source == key), Taken()

        def carried(queue: int, pairs: Iterable[tuple[Pair, list[int]]], source: Taken, into: Taken) -> None:
            legs = [Leg(*pair, (before.process(pair[0]), after.process(pair[1])), atoms) for pair, atoms in pairs]
            self._carry(queue, legs, (key, of, moved), source, into)

        here = [one for one in moved.pairs.items() if one[0][1] < gpus]
        handed = [one for one in moved.pairs.items() if one[0][1] >= gpus]
        carried(QUEUE, here, held, got)
        carried(HANDED, handed, held, got)
        if moved.own or moved.through:
            between, there, through = Taken(), Taken(), moved.through.items()
            carried(HOST, [((src, src % gpus), atoms) for (src, _), atoms in through], held, between)
            carried(QUEUE, [((src % gpus, dst % gpus), atoms) for (src, dst), atoms in through], between, there)
            carried(HOST, moved.own.items(), got, got)
            carried(HOST, [((dst % gpus, dst), atoms) for (_, dst), atoms in through], there, got)
        for piece, parts in new:
            if after.holder[piece[0]] == self.rank:
                every = [got[place][atom] for place, spans in parts for atom in atoms_of(moved.atoms, spans)]
                fields = tuple(torch.cat(one) for one in zip(*every, strict=True))
                shaped = tuple(one.view(of.shape(at, *piece[1:])) for at, one in enumerate(fields))
                self.stores[piece[0]].put(key, Slab.of(of, *piece[1:], shaped))

    def _carry(
        self, queue: int, legs: Sequence[Leg], moving: tuple[Key, Format, Moved], source: Taken, into: Taken
    ) -> None:
        """Carries atoms from places to places, messages where these are of two processes."""
        (key, of, moved), arrivals, notes = moving, dict[int, Arrival](), self.messages.times.notes
        for at, one in enumerate(legs):
            if one.ends[0] != self.rank == one.ends[1]:
                notes.turn_to(key[0], -1, key[1], one.src, one.dst)
                arrivals[at] = self.messages.receive(queue, _bytes(of, moved, one.atoms), one.ends[0])
        self.messages.times.posted(len(arrivals))
        for one in legs:
            if one.ends[0] == self.rank != one.ends[1]:
                notes.turn_to(key[0], -1, key[1], one.src, one.dst)
                self.messages.send(queue, of.packed(_joined(source[one.src], one.atoms)), one.ends[1])
        self.messages.posted()
        for at, one in enumerate(legs):
            if one.ends[1] == self.rank:
                arrival, mine = arrivals.get(at), into.setdefault(one.dst, {})
                if arrival is not None:
                    mine |= self._unpacked(of, arrival, moved.atoms, one.atoms)
                    continue
                mine |= {atom: source[one.src][atom] for atom in one.atoms}
                if one.src != one.dst and queue != HANDED:
                    notes.turn_to(key[0], -1, key[1], one.src, one.dst)
                    self.messages.copied(queue, _bytes(of, moved, one.atoms))

    def _taken(
        self,
        key: Key,
        before: Resting,
        old: Sequence[tuple[Piece, list[tuple[int, list[Span]]]]],
        moved: Moved,
        goes: bool,
    ) -> Taken:
        """Takes what this process's places have of a tensor; returns it by place and atom. goes: whether none of it
        stays there."""
        found, of = Taken(), before.format(key[0])
        for (place, first, second), parts in old:
            if before.holder[place] == self.rank:
                store = self.stores[place]
                there = (store.take if goes else store.read)(key, of, first, second)
                flat = [one.reshape(-1) for one in there]
                at = 0
                for part, spans in parts:
                    for atom in atoms_of(moved.atoms, spans):
                        begin, end = moved.atoms[atom]
                        found.setdefault(part, {})[atom] = tuple(one[at : at + end - begin] for one in flat)
                        at += end - begin
        return found

    def _unpacked(self, of: Format, arrival: Arrival, atoms: Sequence[Span], which: Sequence[int]) -> dict[int, Fields]:
        """Waits for a message; returns the fields of its atoms."""
        times = self.messages.times
        self.board.wait()
        data = times.wait(QUEUE, arrival.wait, of=arrival.of)
        self.board.resume()
        times.arrived()
        sizes = [atoms[one][1] - atoms[one][0] for one in which]
        fields, at = [], 0
        for _, dtype in of.fields:
            size = sum(sizes) * dtype.itemsize
            fields.append(data[at : at + size].view(dtype).split(sizes))
            at += size
        return dict(zip(which, zip(*fields, strict=True), strict=True))


def _bytes(of: Format, moved: Moved, atoms: Sequence[int]) -> int:
    """Returns the bytes of atoms of a tensor."""
    size = sum(moved.atoms[one][1] - moved.atoms[one][0] for one in atoms)
    return size * sum(dtype.itemsize for _, dtype in of.fields)


def _joined(held: Mapping[int, Fields], atoms: Sequence[int]) -> tuple[Tensor, ...]:
    """Returns the fields of atoms, one behind the other."""
    return tuple(torch.cat(one) for one in zip(*(held[atom] for atom in atoms), strict=True))
