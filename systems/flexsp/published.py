"""FlexSP's baseline as its public code packs it: best fit to nine tenths of a group.

Sequences go by best-fit decreasing into as few groups of one degree as they fill to FILL of what memory allows, and
every num_ranks / degree groups are a micro-batch: the fewest micro-batches, whatever the time of their slowest group.
What groups the last micro-batch has too few of takes one sequence each off the groups that were opened last, and from
degree EVENED on sequences of that micro-batch then move until its groups have about equal tokens. Nothing looks at
seconds. Where sequences are fewer than groups the public code stops with an error; here those groups stay idle.
Source: PKU-DAIR/Hetu-Galvatron, branch flexsp (b4666892), galvatron/flexsp_solver/solver.py,
solve_homo_sp_ffd_bfd_globalbatch, and utils.py, BestFitDecreasing.
"""

import numpy as np

from zbench.plans.plan import Ints
from zbench.systems.common.best_fit import best_fit
from zbench.systems.flexsp.batches import MicroBatch
from zbench.systems.flexsp.cost import Objective
from zbench.systems.flexsp.pack import Packed
from zbench.systems.flexsp.search import FoundGroups

FILL = 0.9  # of a group's capacity; as in the public code
EVENED = 16  # ranks of a group; as in the public code, whose nodes have 8


def published_groups(lengths: Ints, index: int, of: Objective) -> tuple[MicroBatch, ...]:
    """Returns the micro-batches of groups of of.degree[index] ranks, in order. lengths: int64 [n], in the batch's
    order."""
    degree, size = int(of.degree[index]), max(int(FILL * of.capacity[index]), int(lengths.max()))
    number = of.num_ranks // degree
    group = best_fit(lengths, size)
    opened = int(group.max()) + 1
    turns = -(-opened // number)
    _fill(group, opened, turns * number)
    if degree >= EVENED and opened < turns * number:
        _even(lengths, group, (turns - 1) * number, size)
    return tuple(_micro_batch(lengths, group - turn * number, number, index, of) for turn in range(turns))


def _fill(group: Ints, opened: int, wanted: int) -> None:
    """Gives the groups from `opened` to `wanted` a sequence each, in place: the first, in the batch's order, of the
    group opened last that has more than one."""
    last = opened - 1
    for empty in range(opened, wanted):
        while last >= 0 and (group == last).sum() < 2:
            last -= 1
        if last < 0:
            return
        group[np.flatnonzero(group == last)[0]] = empty


def _even(lengths: Ints, group: Ints, first: int, size: int) -> None:
    """Moves sequences of the groups from `first` on, in place, from those above the mean of tokens to later ones below
    it, first come first served, for as long as they have more than one and the others room for it."""
    tokens = np.zeros(int(group.max()) + 1, np.int64)
    np.add.at(tokens, group, lengths)
    mean = int(tokens[first:].sum()) // len(tokens[first:])
    for to in range(first + 1, len(tokens)):
        for source in range(first, to):
            members = np.flatnonzero(group == source).tolist()
            left = len(members)
            for seq in members:
                if tokens[to] >= mean or tokens[source] <= mean or left < 2:
                    break
                if tokens[to] + lengths[seq] <= size:
                    group[seq] = to
                    tokens[source] -= lengths[seq]
                    tokens[to] += lengths[seq]
                    left -= 1


def _micro_batch(lengths: Ints, group: Ints, number: int, index: int, of: Objective) -> MicroBatch:
    """Returns the sequences whose `group` is below `number` and not negative."""
    sequences = np.flatnonzero((group >= 0) & (group < number))
    mine = group[sequences]
    seconds = max(of.seconds(lengths[sequences[mine == one]], index) for one in np.unique(mine).tolist())
    packed = Packed(seconds, np.full(number, index), mine)
    return MicroBatch(sequences, FoundGroups(packed, 0.0, f"degree {of.degree[index]}, best fit at {FILL}"))
