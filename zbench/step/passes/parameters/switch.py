"""The change of strategy between two steps as a step of its own: parameters and optimizer state go from where one has
left them to where the next wants them.

What a GPU has already stays, what it lacks comes from a GPU that has it, in a message for each pair, tensor and layer:
of several that have it GPU p asks number p, counted round, in the order of GPUs. Tensor follows tensor, in one order
everywhere; what rests in host memory goes over two GPUs (zbench.step.passes.parameters.switch_hosts), which have room
for a tensor of a layer of each stage, and one more: these come while the one before goes. It is what
executor=torch does between two steps.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.elements import ElementHolders, ElementMoves, element_moves
from zbench.step.index import Index
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import SEND, Operations, operation_row
from zbench.step.passes.parameters.switch_hosts import Rows, between_nodes, of_nodes, through_gpus
from zbench.step.template import Instance, Items, Step, Template
from zbench.step.tensor import Tensor


def switch_step(before: ElementHolders, after: ElementHolders, gpus_per_node: int = 1) -> Step | None:
    """Returns the step that moves what is held before to where it is held after; None where everything is there.
    gpus_per_node: of the host memory that they share, where something rests there.

    Raises:
        ValueError: no GPU, or host memory, has what one lacks.
    """
    node_of = np.arange(after.num_gpus) // gpus_per_node
    every = sorted(between_nodes(list(element_moves(before, after)), node_of), key=lambda one: one.tensor)
    return moving_step("switch", every, after.num_gpus, gpus_per_node=gpus_per_node) if every else None


def moving_step(
    name: str, every: Sequence[ElementMoves], gpus: int, unit: int = 1, letter: str = "e", gpus_per_node: int = 1
) -> Step:
    """Returns the step that moves pieces of tensors from places that have them to those that lack them. name: of its
    template. unit: bytes of what sizes count. letter: that the indices of pieces begin with. gpus_per_node: as
    `switch_step` has it.

    Raises:
        ValueError: no GPU, or host memory, has what one lacks.
    """
    node_of = np.arange(gpus) // gpus_per_node
    num_hosts = int(node_of[-1]) + 1 if any(one.hosts is not None for one in every) else 0
    indices = [Index(f"{letter}{number}", one.sizes) for number, one in enumerate(every)]
    lists = ListTable({**{one.name: len(one) for one in indices}, PLACE: gpus + num_hosts})
    tensors: list[Tensor] = []
    turns: list[_Turn] = []
    begins: list[list[int]] = []
    ends: list[list[int]] = []
    for number, (one, index) in enumerate(zip(every, indices, strict=True)):
        sends = _sends(one)
        for turn, layer in enumerate(one.layers):
            what = len(tensors)
            home = np.full(len(index), -1, np.int64)
            tensors.append(Tensor(f"{one.tensor}_{layer}", (index.name,), "copy", "", "none", unit, home))
            between = [
                operation_row(SEND, what, ends_of, [lists.number(index.name, pieces)], "parameters")
                for ends_of, pieces in sends
            ]
            here, behind = through_gpus(one, what, index.name, lists, node_of)
            turns.append(_Turn((one.tensor, turn, number), between + here, behind))
            for rows, hosts, flags in ((begins, "has", one.has), (ends, "wants", one.has | one.lacks)):
                at_hosts = [] if one.hosts is None else [of_nodes(getattr(one.hosts, hosts), node_of)]
                rows += flagged_items(lists, index.name, what, np.concatenate([flags, *at_hosts]))
    layout = StepLayout(tuple(indices), (), (), (), tuple(tensors), (), lists.lists())
    needs, leaves = Items.of(begins), Items.of(ends)
    template = Template(name, 0, Operations.of(_in_turns(turns)), (), needs, leaves)
    return Step(gpus, num_hosts, 0, (), (layout,), (template,), (Instance(0, 0),), needs, leaves)


class _Turn(NamedTuple):
    """The operations of a tensor of a layer. key: the tensor, which of the layers with the same holders it is, and the
    number of these holders; here: what brings it to GPUs; behind: what takes it from there to hosts."""

    key: tuple[str, int, int]
    here: Rows
    behind: Rows


def _in_turns(turns: Sequence[_Turn]) -> Rows:
    """Returns all operations. Where something goes to hosts, layers with other holders follow each other, so that all
    links are busy, and each is taken to hosts when as many as there are of these, and one more, have been brought."""
    hosted = {one.key[0] for one in turns if one.behind}
    if not hosted:
        return [row for one in turns for row in one.here]
    ordered, found = sorted(turns, key=lambda one: one.key), Rows()
    ahead = max(Counter(one.key[0] for one in turns if one.key[1] == 0 and one.key[0] in hosted).values())
    for number, one in enumerate(ordered):
        found += one.here
        found += ordered[number - ahead].behind if number >= ahead else []
    return found + [row for one in ordered[-ahead:] for row in one.behind]


def _sends(change: ElementMoves) -> list[tuple[tuple[int, int], Ints]]:
    """Lists ((from, to), pieces) of the messages of a tensor, by pairs."""
    number = np.cumsum(change.has, axis=0) - 1  # of a GPU among those that have a piece
    copies = change.has.sum(axis=0)
    found = []
    for gpu in np.flatnonzero(change.lacks.any(axis=1)).tolist():
        pieces = np.flatnonzero(change.lacks[gpu])
        if not copies[pieces].all():
            raise ValueError(f"no GPU has all of {change.tensor} that GPU {gpu} lacks")
        asked = change.has[:, pieces] & (number[:, pieces] == gpu % copies[pieces])
        source = asked.argmax(axis=0)
        found += [((src, gpu), pieces[source == src]) for src in np.unique(source).tolist()]
    gpus = len(change.has)
    return sorted(found, key=lambda one: ((one[0][1] - one[0][0]) % gpus, one[0][0]))


def flagged_items(lists: ListTable, index: str, what: int, flags: np.ndarray) -> list[list[int]]:
    """Lists the entries of items that say who has which pieces of a tensor, one for all places that have the same.
    flags: bool [places, pieces]."""
    alike: dict[bytes, list[int]] = defaultdict(list)
    for place in np.flatnonzero(flags.any(axis=1)).tolist():
        alike[flags[place].tobytes()].append(place)
    return [
        [what, 0, lists.number(PLACE, places), lists.number(index, np.flatnonzero(flags[places[0]])), -1, 0, 0, 0]
        for places in alike.values()
    ]
