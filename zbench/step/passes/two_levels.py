"""Collectives in two levels: between nodes once a shard, the rest inside the nodes.

A gather over nodes x GPUs becomes one gather for each GPU of a node, among those of the same number in all nodes, of
the shards at home there, and sends from these to their node's other GPUs; a reduction is the same turned round: moves
inside the node, then a reduction among GPUs of the same number (Mikami et al. 2018, arXiv 1811.05233). Where parameters
are cut over a run of several nodes, it is MiCS' hierarchical gather of this run (Zhang et al. 2022, arXiv 2205.00119).

Inside nodes they go in turns: in the first each GPU sends to the next one, then to the one after it. A port takes what
is first in the order of a step, so one GPU's sends after another's would leave most ports waiting.

Pieces of gradients between experts' messages (zbench.step.passes.overlap.gradients_between) are in the queue of these,
and what they are for is told by being collectives there. So inside nodes they are collectives, too, among a node's
GPUs, with homes that repeat after each node.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.form import ADD
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import COMPUTE, GATHER, MOVE, PURPOSE_OF, QUEUES, REDUCE, SEND, Operations, homes_among
from zbench.step.template import AT_HOME, Step, Template

_OF_PARAMETERS = tuple(QUEUES.index(name) for name in ("parameters", "gradients"))
_WITH_MESSAGES = QUEUES.index("experts")  # the queue of pieces of gradients


def in_two_levels(step: Step, gpus_per_node: int) -> Step:
    """Returns a step in which collectives of parameters and gradients over several nodes, with as many GPUs of each,
    go in two levels; others stay as they are.

    What was sent to a node in fewer bits is passed on inside it as it came. A sum would be encoded by each level anew.

    Raises:
        ValueError: the GPUs are no whole nodes, or a reduction that would have two levels is in fewer bits.
    """
    if gpus_per_node < 1 or step.num_gpus % gpus_per_node:
        raise ValueError(f"there are {gpus_per_node} GPUs a node; it has to divide the step's {step.num_gpus}")
    first, made = step.same_layouts, dict[tuple[int, int, tuple[int, ...], bytes], Operations]()
    tables = {
        number: ListTable.of(layout.lists, {one.name: len(one) for one in layout.indices}, step.num_places)
        for number, layout in enumerate(step.layouts)
        if first[number] == number
    }
    templates = []
    for one in step.templates:
        which = first[one.layout]
        elsewhere = one.needs.table[one.needs.places != AT_HOME]  # which is all that is asked of needs
        key = which, id(one.operations), one.formulas, elsewhere[:, [0, 2, 3, 4]].tobytes()
        if key not in made:
            # Micro-batches that are alike share operations, and do so still.
            lossy = tuple(encoding.lossy for encoding in step.encodings)
            levels = _Levels(step.layouts[which], tables[which], one, gpus_per_node, lossy)
            made[key] = Operations.of([row for op in one.operations.table.tolist() for row in levels.rows(op)])
        templates.append(replace(one, operations=made[key]))
    layouts = {number: replace(step.layouts[number], lists=table.lists()) for number, table in tables.items()}
    return replace(step, layouts=tuple(layouts[number] for number in first), templates=tuple(templates))


@dataclass(frozen=True)
class _Reduced:
    """A reduction of a template. of: its tensor and layer. lists: its cells. homes: those of the cells along the
    tensor's last axis. members: whose contributions it takes."""

    of: tuple[int, int]
    lists: list[int]
    homes: Ints
    members: Ints


@dataclass(frozen=True)
class _Levels:
    """Makes the operations that stand for collectives of a template, which are asked for in their order.

    lossy: of each encoding of the step. reduced: the reductions so far.
    """

    layout: StepLayout
    lists: ListTable
    template: Template
    node: int
    lossy: tuple[bool, ...]
    reduced: list[_Reduced] = field(default_factory=list)

    def rows(self, op: list[int]) -> list[list[int]]:
        """Returns what stands for an operation, itself alone if it is no collective over several nodes."""
        if op[0] not in (GATHER, REDUCE) or PURPOSE_OF[op[0], op[8]] not in _OF_PARAMETERS:
            return [op]
        members, homes = self.lists.rows[op[3]], self._homes(op)
        if op[0] == REDUCE and homes is not None:
            self.reduced.append(_Reduced((op[1], op[7]), op[4:6], homes, members))
        nodes, local = np.unique(members // self.node), np.unique(members % self.node)
        even = len(nodes) > 1 and len(local) > 1 and len(nodes) * len(local) == len(members)
        if not even or homes is None or not np.isin(homes, members).all():
            return [op]
        if op[0] == REDUCE and op[10] >= 0 and self.lossy[op[10]]:
            name = self.layout.tensors[op[1]].name
            raise ValueError(f"{name} is reduced in fewer bits, and two levels would encode its sums once more")
        between, inside = [], []
        makers = self._makers(op[1])
        for mine in local.tolist():
            cells = np.flatnonzero(homes % self.node == mine)
            if not len(cells):
                continue
            peers = self.lists.number(PLACE, nodes * self.node + mine)
            lists = self._cells(op, cells)
            between.append([op[0], op[1], op[2], peers, *lists, *op[7:]])
            if op[8] == _WITH_MESSAGES:
                continue
            adders = self._adders(op, lists, makers) if op[0] == REDUCE else set()
            for first in (nodes * self.node).tolist():
                for other in local[local != mine].tolist():
                    ends = [first + mine, first + other]
                    if op[0] == GATHER:
                        inside.append([SEND, op[1], *ends, *lists, *op[7:]])
                    elif first + other in adders:
                        inside.append([MOVE, op[1], *ends[::-1], *lists, *op[7:]])
        if op[8] == _WITH_MESSAGES:
            of_nodes = [self.lists.number(PLACE, node * self.node + local) for node in nodes.tolist()]
            inside = [[op[0], op[1], self.node, members, *op[4:]] for members in of_nodes]
            return between + inside if op[0] == GATHER else inside + between
        inside.sort(key=lambda row: (row[3] - row[2]) % self.node)
        return between + inside if op[0] == GATHER else inside + between

    def _adders(self, op: list[int], lists: list[int], makers: set[int]) -> set[int]:
        """Returns the places that have contributions to some cells of a reduction's tensor, when all that the template
        reduces before it has been. makers: those that contribute in the template."""
        found = makers | self._left_to(op[1], lists)
        for one in self.reduced[:-1]:
            members = set(one.members.tolist())
            if one.of == (op[1], op[7]) and all(map(self._meet, one.lists, lists)) and found & members:
                found = found - members | {place for place in members if self._is_home(place, one, lists[1])}
        return found

    def _is_home(self, place: int, one: _Reduced, parts: int) -> bool:
        """Returns whether a place is the home of some cells of a reduction. parts: the list of them along the last
        axis."""
        mine = one.homes == place
        if one.lists[1] < 0 or parts < 0:
            return bool(mine.any())
        return bool(np.isin(self.lists.rows[one.lists[1]][mine], self.lists.rows[parts]).any())

    def _homes(self, op: list[int]) -> Ints | None:
        """Returns the homes of an operation's cells along the tensor's last axis, None if both have several parts."""
        home = homes_among(self.layout.tensors[op[1]].home, self.lists.rows[op[3]], op[2])
        home = home.reshape(self.layout.shape(op[1]))
        rows = self.lists.rows[op[4]] if op[4] >= 0 else np.zeros(1, np.int64)
        columns = self.lists.rows[op[5]] if op[5] >= 0 else np.zeros(1, np.int64)
        return home[rows[0], columns] if len(rows) == 1 else None

    def _cells(self, op: list[int], which: Ints) -> list[int]:
        """Returns the lists of some of the cells along the last axis."""
        if op[5] < 0:
            return [op[4], -1, -1]
        index = self.layout.tensors[op[1]].axes[1]
        return [op[4], self.lists.number(index, self.lists.rows[op[5]][which]), -1]

    def _makers(self, tensor: int) -> set[int]:
        """Returns the places that contribute to a sum in the template."""
        ops, bound = self.template.operations, self.layout.bound
        makers = [
            formula
            for formula in self.template.formulas
            for row in bound.rows[bound.offsets[formula] : bound.offsets[formula + 1]].tolist()
            if (row[0], row[1]) == (ADD, tensor)
        ]
        return set(ops.src[(ops.kind == COMPUTE) & np.isin(ops.what, makers)].tolist())

    def _left_to(self, tensor: int, cells: list[int]) -> set[int]:
        """Returns the places that have contributions to some cells of a sum before the template begins, and are not
        named as the cells' homes; what is at home is on no other GPU of the node."""
        needs = self.template.needs
        found: set[int] = set()
        for at in np.flatnonzero((needs.tensor == tensor) & (needs.places != AT_HOME)).tolist():
            if self._meet(int(needs.list0[at]), cells[0]) and self._meet(int(needs.list1[at]), cells[1]):
                found |= set(self.lists.rows[needs.places[at]].tolist())
        return found

    def _meet(self, one: int, other: int) -> bool:
        """Returns whether two lists along an axis have parts in common; -1: there is no such axis."""
        return one == other or one < 0 or other < 0 or bool(np.isin(self.lists.rows[one], self.lists.rows[other]).any())
