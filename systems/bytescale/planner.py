"""ByteScale's hybrid data parallelism: any number of ranks a sequence, and ranks balanced over all micro-batches.

One ring over all ranks for the longest sequence, a few ranks for a shorter one, packs of short ones on single
ranks, all at once; a rank that is done with its part of a long sequence early has more packs, and so may have
another number of micro-batches than its neighbours. With pipeline stages micro-batches are of equal work besides
(PP-balance, zbench.systems.bytescale.slots). Source: ByteScale (arXiv 2502.21231, SIGCOMM 2025), whose code is not
published. Where inputs of layers wait in host memory, so that a rank holds more of a sequence, that is
zbench.systems.bytescale.offload. What is derived is told in docs/systems/bytescale.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.memory.needs import memory_of
from zbench.describe.batch import Batch
from zbench.describe.checks import check_whole_number
from zbench.describe.degrees import degrees_of
from zbench.interfaces.published import Published, PublishedValue
from zbench.passes import reverse
from zbench.passes.reverse import Mode, check_mode
from zbench.plans.build import Builder
from zbench.plans.patterns import ring
from zbench.plans.plan import Ints, Plan
from zbench.systems.bytescale.balance import RingAssignment, balanced, cuts, share_seconds
from zbench.systems.bytescale.offload import tokens_with_hosts
from zbench.systems.bytescale.slots import even, filled_seconds, micro_batch_counts, split_by_room
from zbench.systems.common.best_fit import best_fit
from zbench.systems.common.micro_batches import fitting, need_bytes
from zbench.systems.zeppelin.zones import capacity_tokens


@dataclass(frozen=True, slots=True)
class ByteScale:
    """ByteScale's hybrid data parallelism as a system: long sequences over rings of many ranks, short ones whole.
    tokens_per_rank: C, the longest stretch of a sequence a rank takes before it is cut over more; None: the one whose
    busiest rank is done first, or without `balance_micro_batches` what fits a GPU, which "published" is always.
    balance_micro_batches: "dp", of ranks, by predicted seconds over all micro-batches; "pp", of every micro-batch by
    itself, all of them alike; true: what the job asks for, "pp" where it has stages, else "dp"; false: none,
    micro-batches filled in turn, longest first (the paper's naive HDP).
    received_kv: what becomes of it until the backward.

    Raises:
        ValueError: tokens_per_rank is neither a whole number of at least 1 nor "published", or balance_micro_batches
            is none of these, or "pp" without stages.
    """

    plans_stages: ClassVar[bool] = True
    PUBLISHED: ClassVar[Published] = {
        "tokens_per_rank": PublishedValue("published", "arXiv 2502.21231, algorithm 1: C is what a GPU holds"),
    }

    cost: Cost
    tokens_per_rank: int | Literal["published"] | None = None
    balance_micro_batches: bool | Literal["dp", "pp"] = True
    received_kv: Mode = "carry"

    def __post_init__(self) -> None:
        check_mode("system.received_kv", self.received_kv)
        if self.tokens_per_rank != "published":
            check_whole_number("system.tokens_per_rank", self.tokens_per_rank, 1, or_null=True)
        if not isinstance(self.balance_micro_batches, bool) and self.balance_micro_batches not in ("dp", "pp"):
            raise ValueError(
                f"system.balance_micro_batches is {self.balance_micro_batches!r}; it takes true, false, dp or pp"
            )
        if self.balance_micro_batches == "pp" and self.cost.pp == 1:
            raise ValueError(
                "system.balance_micro_batches is 'pp'; it takes stages to balance, as "
                "parallel.pipeline_parallel=4 makes them"
            )

    @property
    def plans_hosts(self) -> bool:
        """Whether how much waits on hosts is the paper's choice, by sequence (zbench.interfaces.abilities)."""
        return self.tokens_per_rank == "published"

    @property
    def _one_by_one(self) -> bool:
        """Whether every micro-batch is balanced by itself; else all of them are balanced together."""
        meet = degrees_of(self.cost.model.sharding).gradients != 1
        return bool(self.balance_micro_batches) and (meet or self._by_stages)

    @property
    def _by_stages(self) -> bool:
        return self.cost.pp > 1 and self.balance_micro_batches in (True, "pp")

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        """Returns as few plans as memory asks for, and with stages more. A rank with nothing in one of them goes on to
        the next.

        The largest shares run last: what the last backward takes hides the reduction of gradients, and stages wait
        least for what becomes longer step by step. With ZeRO-2 and 3, where ranks meet in every micro-batch, each of
        them is balanced by itself.
        """
        room = capacity_tokens(self.cost)
        # PP-balance; then balance of every micro-batch by itself; then DP-balance over all micro-batches.
        if self._by_stages:
            return self._evened(batch.lengths, room)
        if self._one_by_one:
            return fitting(batch.lengths, self.cost, lambda seqs, _: self._together(batch.lengths, seqs, room))
        every = np.arange(len(batch.lengths), dtype=np.int64)
        room = room if self.cost.pp == 1 else self._staged_room(batch.lengths, room)
        return tuple(reversed(self._fitting(batch.lengths, every, room)))

    def _evened(self, lengths: Ints, room: int) -> tuple[Plan, ...]:
        """Returns the micro-batches that take all ranks about the same time."""
        way, found = even(lengths, lambda mine: self.layout(mine, room), self.cost, self.received_kv)
        plans = [plan for part in found for plan in self._alone(lengths, part, room)]
        plans.sort(key=lambda plan: float(plan.notes["busiest_seconds"]))
        return tuple(plan.with_(notes={**plan.notes, "parts": way}) for plan in plans)

    def _alone(self, lengths: Ints, part: Ints, room: int) -> list[Plan]:
        """Plans of `part`: one, or as many as memory asks for."""
        found = fitting(lengths[part], self.cost, lambda seqs, _: self._together(lengths[part], seqs, room))
        return [plan.with_(sequences=part[plan.sequences]) for plan in found]

    def _staged_room(self, lengths: Ints, room: int) -> int:
        """Returns the tokens of a rank's micro-batch: an even share of the job's number of micro-batches, or with
        balance of the number that is done first."""
        counts = (
            micro_batch_counts(lengths, self.cost) if self.balance_micro_batches else [self.cost.model.micro_batches]
        )
        rooms = [min(room, -(-int(lengths.sum()) // (count * self.cost.cluster.num_ranks))) for count in counts]
        seconds = [
            filled_seconds(lengths, self.layout(lengths, most), most, self.cost, self.received_kv) for most in rooms
        ]
        return rooms[int(np.argmin(seconds))]

    def layout(self, lengths: Ints, room: int) -> RingAssignment:
        """Returns the ranks of every sequence; no rank gets more than `room` tokens of one, as far as there are
        ranks."""
        wanted = self.tokens_per_rank if isinstance(self.tokens_per_rank, int) else room
        most = max(min(wanted, room), -(-int(lengths.max()) // self.cost.cluster.num_ranks))
        if not self.balance_micro_batches:
            return self._in_turn(lengths, most)
        tokens = cuts(lengths, self.cost.cluster.num_ranks, most) if self.tokens_per_rank is None else [most]
        least = room if self._one_by_one else np.inf
        held = tokens_with_hosts(lengths, self.cost)
        return balanced(lengths, tokens, self.cost, self.received_kv, room=least, held=held)

    def _together(self, lengths: Ints, seqs: Ints, room: int) -> Iterator[Plan]:
        """Plans of all `seqs` at once, the next ones with less room: what is received is not in it."""
        while True:
            layout = self.layout(lengths[seqs], room)
            yield self.layout_plan(lengths, seqs, layout.sets, layout)
            if layout.degree.min() >= min(self.cost.cluster.num_ranks, int(lengths[seqs].min())) or room == 1:
                return
            # What a ring receives is not in `room`: with less of it sequences are cut over more ranks.
            room = max(room // 2, 1)

    def _fitting(self, lengths: Ints, seqs: Ints, room: int) -> list[Plan]:
        """Plans of `seqs`. What still does not fit (what is received is not in `room`) is laid out anew with less."""
        cost, out = self.cost, []
        layout = self.layout(lengths[seqs], room)
        lines, memory = memory_of(cost), int(cost.cluster.device.memory_bytes)
        free = lines.tokens(memory)
        sets = layout.sets
        for part in split_by_room(
            lengths[seqs], layout, cost.cluster.num_ranks, room if self.balance_micro_batches else layout.cut
        ):
            plan = self.layout_plan(lengths, seqs[part], [sets[s] for s in part], layout)
            need = need_bytes(plan, cost)
            widest = len(part) == 1 and layout.degree[part[0]] >= min(cost.cluster.num_ranks, lengths[seqs[part[0]]])
            if need <= memory or free <= 0 or widest:
                out.append(plan)
            else:
                # Less room by as much as memory was exceeded, between 0.3 and 0.9 of it.
                out += self._fitting(
                    lengths, seqs[part], max(int(room * np.clip(free / lines.tokens(need), 0.3, 0.9)), 1)
                )
        return out

    def layout_plan(self, lengths: Ints, seqs: Ints, ranks: list[Ints], layout: RingAssignment) -> Plan:
        """Makes the plan of a layout: rings, the widest first, then what is local; sequences on the same ranks share a
        ring."""
        mine = lengths[seqs]
        builder = Builder(
            mine, self.cost.cluster.num_ranks, self.cost.model.num_heads, self.cost.model.mask, sequences=seqs
        )
        width = np.array([len(on) for on in ranks])
        for size in np.unique(width)[::-1]:
            same = np.flatnonzero(width == size)
            rows, group = np.unique(np.array([ranks[i] for i in same]), axis=0, return_inverse=True)
            ring(builder, same, group.reshape(-1).astype(np.int64), self.spread_over_nics(rows))
        notes = {"tokens_per_rank": layout.cut, "busiest_seconds": layout.busiest, "mean_seconds": layout.mean}
        return reverse(builder.build(), self.received_kv).with_(notes=notes)

    def spread_over_nics(self, rows: Ints) -> Ints:
        """Orders the ranks of rings [K, G] node by node, each ring beginning with another GPU of its nodes: so they
        leave by different NICs."""
        node = self.cost.cluster.gpus_per_node
        place = rows - rows % node + (rows + np.arange(len(rows))[:, None]) % node
        return np.take_along_axis(rows, np.argsort(place, axis=1), axis=1)

    def _in_turn(self, lengths: Ints, cut: int) -> RingAssignment:
        """Lays long sequences and best-fit packs of the others, `cut` tokens a rank, on the next free ranks in turn."""
        ranks = self.cost.cluster.num_ranks
        held = tokens_with_hosts(lengths, self.cost)
        degree = np.minimum(-(-lengths // (cut if held is None else np.minimum(cut, held))), ranks)
        short = np.flatnonzero(degree == 1)
        unit = np.arange(len(lengths))
        if len(short):
            unit[short] = len(lengths) + best_fit(lengths[short], cut)
        first: dict[int, int] = {}
        at, places = 0, [np.zeros(0, np.int64)] * len(lengths)
        for seq in np.lexsort((unit, -np.where(degree > 1, lengths, 0))).tolist():
            if unit[seq] not in first:
                at = 0 if at + degree[seq] > ranks else at
                first[int(unit[seq])] = at
                at += int(degree[seq])
            places[seq] = first[int(unit[seq])] + np.arange(degree[seq])
        load = share_seconds(lengths, degree, self.cost, self.received_kv)
        flat = np.concatenate(places)
        total = np.bincount(flat, weights=np.repeat(load, degree), minlength=ranks)
        return RingAssignment(degree, flat, cut, float(total.max()), float(total.mean()))
