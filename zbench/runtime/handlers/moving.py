"""Moves parameters and optimizer state from where a step has left them to where the next one wants them.

Every process knows both steps, so each knows all moves, and does its own: what a place has already stays, what it lacks
comes from a place that has it, in a message for each pair of places and tensor. Of several that have it place p asks
number p, counted round, in the order of places. Tensor follows tensor, in one order everywhere, so nothing deadlocks,
and what was sent is waited for a few tensors later, so that few of them are there twice.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import torch
from torch import Tensor

from zbench.runtime.handlers.formats import Fields, Format
from zbench.runtime.handlers.messages import Arrival, StepMessages
from zbench.runtime.handlers.resting import Piece, Resting, Span
from zbench.runtime.handlers.store import Key, Slab, Store
from zbench.runtime.processes.board import Board
from zbench.step.operations import QUEUES

QUEUE = QUEUES.index("parameters")
Pair = tuple[int, int]  # the place that elements leave, the one that they are for


@dataclass(frozen=True)
class Moved:
    """The moves of one tensor. atoms: elements that lie together before and after, ascending; pairs: the numbers of
    those that each place has from each."""

    atoms: list[Span]
    pairs: Mapping[Pair, list[int]]

    @staticmethod
    def of(before: Sequence[tuple[int, list[Span]]], after: Sequence[tuple[int, list[Span]]]) -> "Moved":
        """Returns the moves of a tensor. before, after: (place, elements) of every piece."""
        every = chain.from_iterable(spans for _, spans in (*before, *after))
        edges = sorted(set(chain.from_iterable(every)))
        atoms = list(pairwise(edges))
        holders: dict[int, list[int]] = defaultdict(list)
        for place, spans in before:
            for atom in atoms_of(atoms, spans):
                holders[atom].append(place)
        pairs: dict[Pair, list[int]] = defaultdict(list)
        for place, spans in after:
            for atom in atoms_of(atoms, spans):
                there = sorted(set(holders[atom]))
                src = place if place in there else there[place % len(there)]
                pairs[src, place].append(atom)
        return Moved(atoms, {pair: sorted(pairs[pair]) for pair in sorted(pairs)})


def atoms_of(atoms: Sequence[Span], spans: Sequence[Span]) -> list[int]:
    """Lists the numbers of the atoms of elements, in their order."""
    found: list[int] = []
    for begin, end in spans:
        found += range(bisect_left(atoms, (begin, begin)), bisect_left(atoms, (end, end)))
    return found


def changed(before: Resting, after: Resting) -> list[Key]:
    """Lists what has other places after, or is cut otherwise."""

    def where(one: Resting, key: Key) -> tuple[list[Piece], list[list[int]]]:
        return one.pieces[key], one.cut(key[0])

    return [key for key in sorted(after.pieces) if where(before, key) != where(after, key)]


@dataclass
class Mover:
    """Moves what rests on a process's places. stores: by place."""

    rank: int
    stores: Mapping[int, Store]
    messages: StepMessages
    board: Board

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
        """Moves a tensor of a layer."""
        name, of = key[0], after.format(key[0])
        old, new = ([(one, rest.spans(name, one)) for one in rest.pieces[key]] for rest in (before, after))
        moved = Moved.of(*([(piece[0], spans) for piece, spans in pieces] for pieces in (old, new)))
        held = self._taken(key, before.format(name), old, moved)
        arrivals, notes = dict[Pair, Arrival](), self.messages.times.notes
        for pair in moved.pairs:
            if after.holder[pair[0]] != self.rank == after.holder[pair[1]]:
                notes.turn_to(name, -1, key[1], *pair)
                arrivals[pair] = self.messages.receive(QUEUE, _bytes(of, moved, pair), after.holder[pair[0]])
        self.messages.times.posted(len(arrivals))
        for pair, atoms in moved.pairs.items():
            if after.holder[pair[0]] == self.rank != after.holder[pair[1]]:
                notes.turn_to(name, -1, key[1], *pair)
                self.messages.send(QUEUE, of.packed(_joined(held[pair[0]], atoms)), after.holder[pair[1]])
        self.messages.posted()
        got: dict[int, dict[int, Fields]] = defaultdict(dict)  # by place and atom
        for (src, dst), atoms in moved.pairs.items():
            if after.holder[dst] == self.rank:
                arrival = arrivals.get((src, dst))
                if arrival is None:
                    got[dst] |= {atom: held[src][atom] for atom in atoms}
                    if src != dst:
                        notes.turn_to(name, -1, key[1], src, dst)
                        self.messages.copied(QUEUE, _bytes(of, moved, (src, dst)))
                else:
                    got[dst] |= self._unpacked(of, arrival, moved.atoms, atoms)
        for piece, spans in new:
            place, first, second = piece
            if place in self.stores:
                fields = _joined(got[place], atoms_of(moved.atoms, spans))
                shaped = tuple(one.view(of.shape(at, first, second)) for at, one in enumerate(fields))
                self.stores[place].put(key, Slab.of(of, first, second, shaped))

    def _taken(
        self, key: Key, of: Format, old: Sequence[tuple[Piece, list[Span]]], moved: Moved
    ) -> dict[int, dict[int, Fields]]:
        """Takes what this process's places have of a tensor; returns it by place and atom."""
        found: dict[int, dict[int, Fields]] = defaultdict(dict)
        for (place, first, second), spans in old:
            if place in self.stores:
                flat = [one.reshape(-1) for one in self.stores[place].take(key, of, first, second)]
                at = 0
                for atom in atoms_of(moved.atoms, spans):
                    begin, end = moved.atoms[atom]
                    found[place][atom] = tuple(one[at : at + end - begin] for one in flat)
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


def _bytes(of: Format, moved: Moved, pair: Pair) -> int:
    """Returns the bytes of what a place has from another one."""
    size = sum(moved.atoms[one][1] - moved.atoms[one][0] for one in moved.pairs[pair])
    return size * sum(dtype.itemsize for _, dtype in of.fields)


def _joined(held: Mapping[int, Fields], atoms: Sequence[int]) -> tuple[Tensor, ...]:
    """Returns the fields of atoms, one behind the other."""
    return tuple(torch.cat(one) for one in zip(*(held[atom] for atom in atoms), strict=True))
