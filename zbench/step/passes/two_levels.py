"""Collectives in two levels: between nodes once a shard, the rest inside the nodes.

A gather over nodes x GPUs becomes one gather for each GPU of a node, among those of the same number in all nodes, of
the shards at home there, and then one gather in each node, in which homes repeat: a shard is at home on the node's GPU
of its home's number. A reduction is the same turned round: a reduction in each node to these GPUs, then one among those
of the same number (Mikami et al. 2018, arXiv 1811.05233). Where parameters are cut over a run of several nodes, it is
MiCS' hierarchical gather of this run (Zhang et al. 2022, arXiv 2205.00119).

Who has contributed nothing to a sum takes part in its reductions all the same, as in a flat one.
"""

from dataclasses import dataclass, replace

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layout import StepLayout
from zbench.step.lists import PLACE, ListTable
from zbench.step.operations import GATHER, PURPOSE_OF, QUEUES, REDUCE, Operations, homes_among
from zbench.step.template import Step

_OF_PARAMETERS = tuple(QUEUES.index(name) for name in ("parameters", "gradients"))


def in_two_levels(step: Step, gpus_per_node: int) -> Step:
    """Returns a step in which collectives of parameters and gradients over several nodes, with as many GPUs of each,
    go in two levels; others stay as they are.

    What was sent to a node in fewer bits is passed on inside it as it came. A sum would be encoded by each level anew.

    Raises:
        ValueError: the GPUs are no whole nodes, or a reduction that would have two levels is in fewer bits.
    """
    if gpus_per_node < 1 or step.num_gpus % gpus_per_node:
        raise ValueError(f"there are {gpus_per_node} GPUs a node; it has to divide the step's {step.num_gpus}")
    first, made = step.same_layouts, dict[tuple[int, int], Operations]()
    tables = {
        number: ListTable.of(layout.lists, {one.name: len(one) for one in layout.indices}, step.num_places)
        for number, layout in enumerate(step.layouts)
        if first[number] == number
    }
    lossy = tuple(encoding.lossy for encoding in step.encodings)
    templates = []
    for one in step.templates:
        which = first[one.layout]
        key = which, id(one.operations)
        if key not in made:
            # Micro-batches that are alike share operations, and do so still.
            levels = _Levels(step.layouts[which], tables[which], gpus_per_node, lossy)
            made[key] = Operations.of([row for op in one.operations.table.tolist() for row in levels.rows(op)])
        templates.append(replace(one, operations=made[key]))
    layouts = {number: replace(step.layouts[number], lists=table.lists()) for number, table in tables.items()}
    return replace(step, layouts=tuple(layouts[number] for number in first), templates=tuple(templates))


@dataclass(frozen=True, slots=True)
class _Levels:
    """Makes the operations that stand for a layout's collectives. lists: gets those of their members and parts. node:
    GPUs of a node. lossy: of each encoding of the step."""

    layout: StepLayout
    lists: ListTable
    node: int
    lossy: tuple[bool, ...]

    def rows(self, op: list[int]) -> list[list[int]]:
        """Returns what stands for an operation, itself alone if it is no collective over several nodes."""
        if op[0] not in (GATHER, REDUCE) or PURPOSE_OF[op[0], op[8]] not in _OF_PARAMETERS:
            return [op]
        members, homes = self.lists.rows[op[3]], self._homes(op)
        nodes, local = np.unique(members // self.node), np.unique(members % self.node)
        even = len(nodes) > 1 and len(local) > 1 and len(nodes) * len(local) == len(members)
        if not even or homes is None or not np.isin(homes, members).all():
            return [op]
        if op[0] == REDUCE and op[10] >= 0 and self.lossy[op[10]]:
            name = self.layout.tensors[op[1]].name
            raise ValueError(f"{name} is reduced in fewer bits, and two levels would encode its sums once more")
        between = []
        for mine in local.tolist():
            cells = np.flatnonzero(homes % self.node == mine)
            if len(cells):
                peers = self.lists.number(PLACE, nodes * self.node + mine)
                between.append([*op[:3], peers, *self._cells(op, cells), *op[7:]])
        of_nodes = [self.lists.number(PLACE, node * self.node + local) for node in nodes.tolist()]
        inside = [[*op[:2], self.node, members, *op[4:]] for members in of_nodes]
        return between + inside if op[0] == GATHER else inside + between

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
