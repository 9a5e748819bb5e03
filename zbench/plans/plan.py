"""The plan: which rank owns which tokens, and which attends and transfers in what order.

A plan is one micro-batch on all ranks. Tokens are grouped into disjoint **blocks** that live and
move together; an operation is a **transfer** (blocks of one tensor, a range of query heads, from a
rank to another) or an **attend** (query blocks against key-value blocks on one rank). Operations
stand in one total order, and each uses only what earlier ones made; that alone excludes deadlock.
Both are columns (zbench.plans.columns); `Transfer` and `Attend` (zbench.plans.views) show one of them. Whoever makes
or reads plans finds all of these names here.

What moves: q and kv are copied; o, dq and dkv are sums that collect what attends and arrivals add
and leave a rank when they are sent; do is copied. What a plan means and when it is correct is
defined by zbench.plans.dataflow and zbench.proof.verify; this module only holds it.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.mask import CAUSAL, Mask
from zbench.describe.model import TENSOR_NAMES
from zbench.plans.columns import ATTEND, COLUMNS, TRANSFER, Blocks, Column, Lists, Ops
from zbench.plans.pipelines import Pipelines
from zbench.plans.views import Attend, Transfer

if TYPE_CHECKING:
    from zbench.plans.pairs import Pairs

ATTENTIONS = ("", "deepspeed")  # values of Plan.attention
WAITS = ("serial_legs", "in_rounds", "until_sent")  # fields that say what else than data is waited for
__all__ = [
    "ATTEND",
    "COLUMNS",
    "TRANSFER",
    "WAITS",
    "Attend",
    "Blocks",
    "Column",
    "Ints",
    "Lists",
    "Ops",
    "Plan",
    "Transfer",
]


@dataclass(frozen=True)
class Plan:
    """A plan of one micro-batch on all ranks.

    lengths: int64 [num_sequences] of this micro-batch; sequences: int64 [num_sequences], which of the
        batch's sequences they are. num_ranks; num_heads: query heads every operation's range lies in.
    blocks, lists (of blocks), lanes (lists of NIC indices inside a node): what operations refer to.
    forward, backward: operations in order. mask: what a query sees of its sequence.
    backward_mode: what happens to received kv between forward and backward ("keep", "carry" or
        "regather", see zbench.passes.reverse); "" while the plan has no backward.
    serial_legs: the clock plays routed transfers of a rank one after another (zbench.simulator.serial); else hops of
        successive ones overlap.
    padding: int64 [num_sequences], how many of each sequence's last tokens are none of the batch's: they are computed
        and sent as all others are, no token of the batch sees them, and no loss counts them. None: there are none.
    in_rounds: a rank goes from round to round of its list, messages and the attends beside them, and waits for all
        messages of one before it begins the next (zbench.simulator.rounds); else it waits for data alone.
    until_sent: a rank goes on to what follows attention when what it sends has arrived, too; else it leaves its last
        messages under way.
    attention: who computes attention where the plan is really run: "" the plan's own operations; "deepspeed" that
        package, which then stands for them. Of no meaning to anybody else: a plan is proven and timed as it is.
    pipelines: groups of ranks that work as one; None: every rank by itself. Tokens and attends are at their leads.
    notes: what the planner has to say of it (an optimality gap, a fallback used), numbers and words for the record;
        they mean nothing to what verifies or executes the plan.
    """

    lengths: Ints
    sequences: Ints
    num_ranks: int
    num_heads: int
    blocks: Blocks
    lists: Lists
    forward: Ops
    backward: Ops
    lanes: Lists
    mask: Mask = CAUSAL
    backward_mode: str = ""
    serial_legs: bool = False
    in_rounds: bool = False
    until_sent: bool = False
    padding: Ints | None = None
    attention: str = ""
    pipelines: Pipelines | None = None
    notes: Mapping[str, float | str] = field(default_factory=dict)

    def with_(self, **changes: object) -> "Plan":
        """Returns a copy with these fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]

    @property
    def own_lengths(self) -> Ints:
        """The tokens of the batch that each sequence has, int64 [num_sequences]."""
        return self.lengths if self.padding is None else self.lengths - self.padding

    @cached_property
    def tokens_per_rank(self) -> Ints:
        """The tokens that every rank is home of, int64 [num_ranks]."""
        return np.bincount(self.blocks.home, weights=self.blocks.tokens, minlength=self.num_ranks).astype(np.int64)

    @property
    def num_transfers(self) -> int:
        """The number of transfers of a layer, forward and backward; a routed one counts once."""
        return sum(int((ops.kind == TRANSFER).sum()) for ops in (self.forward, self.backward))

    @cached_property
    def list_tokens(self) -> Ints:
        """The tokens of each list of blocks, int64 [num_lists]."""
        total = np.concatenate([[0], np.cumsum(self.blocks.tokens[self.lists.items])])
        return np.asarray(total[self.lists.offsets[1:]] - total[self.lists.offsets[:-1]], np.int64)

    @cached_property
    def pairs(self) -> "Pairs":
        """All distinct (q list, kv list) that attends of the plan have, and their work."""
        from zbench.plans.pairs import Pairs  # which is about plans, and so imports this module

        return Pairs.of(self, self.forward, self.backward)

    def view(self, ops: Ops, index: int) -> Transfer | Attend:
        """Returns one operation of a list, for reading and printing."""
        heads = (int(ops.head_lo[index]), int(ops.head_hi[index]))
        blocks = tuple(self.lists[int(ops.blocks[index])].tolist())
        if ops.kind[index] == ATTEND:
            return Attend(int(ops.src[index]), blocks, tuple(self.lists[int(ops.kv_blocks[index])].tolist()), heads)
        via = tuple(self.lanes[int(ops.via[index])].tolist()) if ops.via[index] >= 0 else ()
        return Transfer(
            TENSOR_NAMES[int(ops.tensor[index])],
            blocks,
            heads,
            int(ops.src[index]),
            int(ops.dst[index]),
            via,
            bool(ops.keep[index]),
            bool(ops.collective[index]),
        )

    def views(self, ops: Ops) -> Iterator[Transfer | Attend]:
        """Returns an iterator over the operations of a list, for reading and printing."""
        return (self.view(ops, index) for index in range(len(ops)))

    def save(self, path: str | PathLike[str]) -> None:
        """Writes the plan into a file of its own (docs/plan_file.md), whole or not at all.

        Raises:
            ValueError: the file cannot be written, or the plan's arrays are not as they have to be.
        """
        import zbench  # the library's own names, which are above this module and imported on use

        zbench.save_plan(self, path)

    @staticmethod
    def load(path: str | PathLike[str]) -> "Plan":
        """Reads the plan of a file that has one, and proves it.

        Raises:
            ValueError: the file is none, another version's, broken, has several plans, or its plan is wrong.
        """
        import zbench

        return zbench.load_plan(path)

    def __str__(self) -> str:
        from zbench.plans.text import summary  # which is about plans, and so imports this module

        return summary(self)
