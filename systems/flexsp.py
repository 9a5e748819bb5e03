"""FlexSP: Ulysses groups of different sizes side by side, chosen for every batch. Pure: no torch.

Short sequences go to small groups, whose all-to-all stays inside a node (or to a single GPU, which needs none),
long ones to groups large enough for their memory and their time; the slowest group is made as fast as possible.
systems.flexsp_cost says what a group costs, flexsp_batches cuts a batch into micro-batches, flexsp_search finds the
groups of one, flexsp_milp is the paper's own way of finding them, flexsp_bound what none can beat.
Source: Wang et al. 2024 (arXiv 2412.01523, ASPLOS 2025), and its code (PKU-DAIR/Hetu-Galvatron, branch flexsp).
"""

from dataclasses import dataclass, field

import numpy as np

from systems.flexsp_batches import MicroBatch, check_fits, micro_batches
from systems.flexsp_cost import Objective, objective, shape
from systems.flexsp_search import search
from zbench.batch import Batch
from zbench.build import Builder
from zbench.cost import Cost
from zbench.patterns import ulysses_ring
from zbench.plan import Plan
from zbench.rewrite import reverse
from zbench.rewrite.reverse import Mode, check_mode


@dataclass(frozen=True, slots=True)
class FlexSP:
    """trials: numbers of micro-batches that are tried, from the least that memory allows.

    backward: what becomes of received kv; Ulysses keeps it, as its inputs to attention are local.

    Raises:
        ValueError: trials is not a whole number of at least 1.
    """

    cost: Cost
    trials: int = 5
    backward: Mode = "keep"
    objective: Objective = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_mode("system.backward", self.backward)
        check_whole("system.trials", self.trials)
        object.__setattr__(self, "objective", objective(self.cost, self.backward))

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        """One plan a micro-batch, the slowest first. Its notes: what the objective says of it, and what none can beat.

        Raises:
            ValueError: a sequence is longer than the memory of all ranks together allows.
        """
        check_fits(batch.lengths, self.objective)
        parts = micro_batches(batch.lengths, self.objective, self.trials, lambda x: search(x, self.objective))
        assert parts is not None  # every sequence fits a group by itself
        return tuple(laid(part, batch, self.cost, self.objective, self.backward) for part in parts)


def check_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} is {value!r}; it takes a whole number of at least 1")


def laid(part: MicroBatch, batch: Batch, cost: Cost, of: Objective, backward: Mode) -> Plan:
    """The micro-batch as a plan: groups on ranks in order, the largest first, so that small ones stay inside nodes."""
    sequences = np.sort(part.sequences)
    group = part.found.packed.group[np.argsort(part.sequences)]
    index = part.found.packed.index
    builder = Builder(batch.lengths[sequences], cost.cluster.num_ranks, cost.model.num_heads, sequences=sequences)
    first = np.cumsum(of.degree[index]) - of.degree[index]
    for k in np.unique(index[np.unique(group)])[::-1]:
        mine = np.flatnonzero(index[group] == k)
        used, place = np.unique(group[mine], return_inverse=True)
        ranks = first[used][:, None] + np.arange(of.degree[k])
        ulysses_ring(builder, mine, place, ranks.reshape(len(used), *shape(int(of.degree[k]), cost)))
    seconds, bound = part.found.packed.seconds, part.found.bound_seconds
    notes = {"objective_seconds": seconds, "bound_seconds": bound, "method": part.found.method}
    return reverse(builder.build(), backward).with_(notes=notes)
