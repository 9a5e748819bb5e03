"""FlexSP: Ulysses groups of different sizes side by side, chosen for every batch.

Short sequences go to small groups, whose all-to-all stays inside a node (or to a single GPU, which needs none),
long ones to groups large enough for their memory and their time; the slowest group is made as fast as possible.
flexsp_cost says what a group costs, flexsp_batches cuts a batch into micro-batches, flexsp_search finds the
groups of one, flexsp_milp is the paper's own way of finding them, flexsp_bound what none can beat.
Source: Wang et al. 2024 (arXiv 2412.01523, ASPLOS 2025), and its code (PKU-DAIR/Hetu-Galvatron, branch flexsp).
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_choice, check_whole_number
from zbench.interfaces.published import Published, PublishedValue
from zbench.passes import reverse
from zbench.passes.reverse import Mode, check_mode
from zbench.plans.build import Builder
from zbench.plans.patterns import ulysses_ring
from zbench.plans.plan import Ints, Plan
from zbench.systems.common.padding import Padding, check_padding, padding_of
from zbench.systems.flexsp.batches import MicroBatch, split_batch
from zbench.systems.flexsp.cost import Objective, group_shape, objective
from zbench.systems.flexsp.milp import Limits, solve
from zbench.systems.flexsp.search import FoundGroups, glance, search_groups

SOLVER = "PKU-DAIR/Hetu-Galvatron, branch flexsp (b4666892), flexsp_solver/solver.py"
PADDING = f"{SOLVER}, read_dataset, and models/gpt_hf/dataloader.py: to a multiple of 2 x world size"


@dataclass(frozen=True, slots=True)
class FlexSP:
    """FlexSP as a system: its search, or its mixed-integer programme, chooses the groups of every micro-batch.
    tried_micro_batch_counts: how many numbers of micro-batches are tried, from the least that memory allows.

    solver: "search" (zbench.systems.flexsp.search), or "milp": after it the paper's programme for each micro-batch,
    by HiGHS, within `solver_nodes` nodes and `solver_seconds` (of this machine's clock: a run that reaches it may
    end differently elsewhere) and with `solver_buckets` lengths; where that finds nothing better the search's
    groups stay, as the notes say.
    received_kv: what becomes of it until the backward; Ulysses keeps it, as its inputs to attention are local.
    least_degree: groups of fewer ranks are not offered. padding: "none"; "published", every sequence is padded to a
    multiple of two tokens a GPU (zbench.systems.common.padding).

    Raises:
        ValueError: tried_micro_batch_counts, solver_nodes, solver_buckets or least_degree is not a whole number of at
            least 1, solver_seconds not a number above 0, or solver or padding none of these.
    """

    PUBLISHED: ClassVar[Published] = {
        "least_degree": PublishedValue(2, f"{SOLVER}: groups begin at two GPUs"),
        "padding": PublishedValue("published", PADDING),
    }

    cost: Cost
    tried_micro_batch_counts: int = 5
    solver: str = "search"
    solver_nodes: int = 1000
    solver_seconds: float = 5.0
    solver_buckets: int = 16
    received_kv: Mode = "keep"
    least_degree: int = 1
    padding: Padding = "none"
    objective: Objective = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_mode("system.received_kv", self.received_kv)
        check_padding(self.padding, self.cost.model.mask)
        for name in ("tried_micro_batch_counts", "solver_nodes", "solver_buckets", "least_degree"):
            check_whole_number(f"system.{name}", getattr(self, name), 1)
        check_choice("system.solver", self.solver, ("search", "milp"))
        if (
            isinstance(self.solver_seconds, bool)
            or not isinstance(self.solver_seconds, (int, float))
            or not self.solver_seconds > 0
        ):
            raise ValueError(f"system.solver_seconds is {self.solver_seconds!r}; it takes a number of seconds above 0")
        object.__setattr__(self, "objective", objective(self.cost, self.received_kv, self.least_degree))

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        """Returns one plan a micro-batch, the slowest first. Its notes: what the objective says of it, what none can
        beat, and by how much it misses that."""
        given = PaddedLengths.of(batch, self.padding, self.cost)
        parts = self.micro_batches(given.lengths)
        return tuple(micro_batch_plan(part, given, self.cost, self.objective, self.received_kv) for part in parts)

    def micro_batches(self, lengths: Ints) -> tuple[MicroBatch, ...]:
        """Returns the micro-batches and their groups, the slowest first. lengths: int64 [n]."""
        of = self.objective.holding(int(lengths.max()))
        # Micro-batches: cuts are compared by a glance at their groups; groups are searched (or solved) for the best.
        parts = split_batch(
            lengths,
            of,
            self.tried_micro_batch_counts,
            lambda x: glance(x, of),
            lambda x: self.choose_groups(x, of),
        )
        assert parts is not None  # every sequence fits a group by itself
        return parts

    def choose_groups(self, lengths: Ints, of: Objective) -> FoundGroups | None:
        """Returns the groups of a micro-batch: the search's, or the solver's where asked for and better."""
        found = search_groups(lengths, of)
        if self.solver == "search" or found is None:
            return found
        solved = solve(lengths, of, found.packed, Limits(self.solver_nodes, self.solver_seconds, self.solver_buckets))
        if solved.packed is not None and solved.packed.seconds < found.packed.seconds:
            return replace(found, packed=solved.packed, method=f"milp ({solved.ended})", solver_seconds=solved.took)
        return replace(found, method=f"search, not bettered by milp ({solved.ended})", solver_seconds=solved.took)


class PaddedLengths(NamedTuple):
    """A batch's lengths as groups have them, and by how much each is padded; None: not at all."""

    lengths: Ints
    padding: Ints | None

    @staticmethod
    def of(batch: Batch, padding: Padding, cost: Cost) -> "PaddedLengths":
        """Pads a batch as `padding` says."""
        by = padding_of(batch.lengths, padding, cost.cluster.num_ranks)
        return PaddedLengths(batch.lengths if by is None else batch.lengths + by, by)


def micro_batch_plan(part: MicroBatch, batch: PaddedLengths, cost: Cost, of: Objective, backward: Mode) -> Plan:
    """Returns the micro-batch as a plan: groups on ranks in order, the largest first, so that small ones stay inside
    nodes."""
    sequences = np.sort(part.sequences)
    group = part.found.packed.group[np.argsort(part.sequences)]
    index = part.found.packed.index
    builder = Builder(
        batch.lengths[sequences], cost.cluster.num_ranks, cost.model.num_heads, cost.model.mask, sequences=sequences
    )
    first = np.cumsum(of.degree[index]) - of.degree[index]
    for k in np.unique(index[np.unique(group)])[::-1]:
        mine = np.flatnonzero(index[group] == k)
        used, place = np.unique(group[mine], return_inverse=True)
        ranks = first[used][:, None] + np.arange(of.degree[k])
        ulysses_ring(builder, mine, place, ranks.reshape(len(used), *group_shape(int(of.degree[k]), cost)))
    seconds, bound = part.found.packed.seconds, part.found.bound_seconds
    notes: dict[str, float | str] = {"method": part.found.method, "objective_seconds": seconds}
    notes |= {"bound_seconds": bound, "gap": seconds / bound - 1} if bound else {}
    notes |= {"solver_seconds": part.found.solver_seconds} if part.found.solver_seconds else {}
    padding = None if batch.padding is None else batch.padding[sequences]
    return reverse(builder.build(), backward).with_(notes=notes, padding=padding)
