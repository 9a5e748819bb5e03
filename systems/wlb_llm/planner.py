"""WLB-LLM: packs of equal work instead of equal tokens, each cut over its group per sequence or per document.

Groups of G ranks gather keys and values (context parallelism as in Llama 3's training), one pack a group. Packs have
different numbers of tokens, so that attention and linear work together are the same; each pack is cut in the way its
attention kernels take less time with. The third idea, holding very long documents back, changes which samples a
batch has and so is a workload here (workloads/delayed.py). Source: WLB-LLM (arXiv 2503.17924, OSDI 2025), whose code
is not published; what differs is told in docs/systems/wlb_llm.md.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.job import of_parts
from zbench.cost.memory.host_copies import waiting
from zbench.cost.memory.needs import memory_of
from zbench.describe.arrays import Floats
from zbench.describe.batch import Batch
from zbench.describe.checks import check_boolean, check_choice
from zbench.describe.model import KV
from zbench.interfaces.dealt import dealt
from zbench.passes import reverse
from zbench.passes.reverse import Mode, check_mode
from zbench.plans.build import Builder
from zbench.plans.patterns import all_gather, local
from zbench.plans.plan import Ints, Plan
from zbench.systems.common.bins import bins
from zbench.systems.common.micro_batches import fitting
from zbench.systems.wlb_llm.shard import (
    ShardPieces,
    attend_seconds,
    kv_gather_seconds,
    mixed,
    shard_per_document,
    shard_per_sequence,
)

Shard = Literal["adaptive", "sequence", "document"]
FORWARD = 4 / 14  # share of attention's FLOPs (docs/cost.md) that the forward has


@dataclass(frozen=True, slots=True, eq=False)
class Packing:
    """Sequences packed for groups of one degree. degree: ranks of a group. pack: int64 [num_sequences]. busiest:
    predicted seconds of the pack with most work if its ranks share it evenly. fits: whether no pack has more tokens
    than its ranks hold."""

    degree: int
    pack: Ints
    busiest: float
    fits: bool


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """A packing whose packs are cut over their groups. pieces: what every rank owns. seconds: float64 [num_packs],
    predicted, of one layer, forward and backward. by_document: share of the packs that are cut per document."""

    packing: Packing
    pieces: ShardPieces
    seconds: Floats
    by_document: float


@dataclass(frozen=True, slots=True)
class WLBLLM:
    """WLB-LLM as a system: packs of equal work, and for each the way to cut it that its kernels prefer. degree: ranks
    of a group (a divisor of a node's, or whole nodes); None: the best for each batch. equal_work_packs: packs of equal
    work; off: of equal tokens. shard: how packs are cut; "adaptive": as their kernels take less time. received_kv:
    what becomes of it until the backward; Llama 3's context parallelism gathers it again.

    Raises:
        ValueError: degree is not one of the cluster's, equal_work_packs not true or false, shard an unknown one.
    """

    cost: Cost
    degree: int | None = None
    equal_work_packs: bool = True
    shard: Shard = "adaptive"
    received_kv: Mode = "regather"

    def __post_init__(self) -> None:
        check_mode("system.received_kv", self.received_kv)
        check_boolean("system.equal_work_packs", self.equal_work_packs)
        check_choice("system.shard", self.shard, ("adaptive", "sequence", "document"))
        sizes = context_degrees(self.cost)
        if self.degree is not None and (isinstance(self.degree, bool) or self.degree not in sizes):
            raise ValueError(f"system.degree is {self.degree!r}; it takes null or one of {', '.join(map(str, sizes))}")

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        """Returns as few micro-batches as the groups' memory asks for, each packed by itself; more where that is too
        few."""
        lengths, ranks = batch.lengths, self.cost.cluster.num_ranks
        # Micro-batches by equal tokens, as few as the degree with most memory needs; each is packed by itself.
        sizes = [self.degree] if self.degree else context_degrees(self.cost)
        most = max(ranks // size * capacity(size, self.cost, self.received_kv) for size in sizes)
        count = min(-(-batch.num_tokens // most), len(lengths))
        parts = dealt(np.arange(len(lengths), dtype=np.int64), lengths, count)
        return tuple(plan for part in parts if len(part) for plan in self._fitting(lengths, part))

    def _fitting(self, lengths: Ints, part: Ints) -> tuple[Plan, ...]:
        return fitting(lengths[part], self.cost, lambda seqs, _: self._plans(lengths, part[seqs]))

    def _plans(self, lengths: Ints, sequences: Ints) -> Iterator[Plan]:
        """Yields a plan of every degree: what fits and has the fastest slowest pack first.

        Degrees are cut in the order of what their packs take if all ranks of a group have the same to do, until that
        alone is more than the best found; the others are cut only where a caller asks on, for memory.
        """
        mine = lengths[sequences]
        # Packing, for every degree; then cutting, while a packing's even share could still be the best.
        packings = [
            self.packed(mine, degree) for degree in ([self.degree] if self.degree else context_degrees(self.cost))
        ]
        packings.sort(key=lambda one: (not one.fits, one.busiest if one.fits else -one.degree))
        found: list[Cut] = []
        for packing in packings:
            if found and (not packing.fits or packing.busiest >= min(one.seconds.max() for one in found)):
                break
            found.append(self.cut(mine, packing))
        for one in sorted(found, key=lambda one: one.seconds.max()):
            yield self._laid(mine, sequences, one)
        for packing in packings[len(found) :]:
            if not packing.fits and len(mine) > 1:  # fewer sequences do
                return
            yield self._laid(mine, sequences, self.cut(mine, packing))

    def packed(self, lengths: Ints, degree: int) -> Packing:
        """Packs sequences, a pack for each group of `degree` ranks."""
        cost, count = self.cost, self.cost.cluster.num_ranks // degree
        room, longest = capacity(degree, cost, self.received_kv), int(lengths.max())
        work = work_seconds(lengths, degree, cost, self.received_kv)
        pack = bins(work if self.equal_work_packs else lengths.astype(np.float64), lengths, count, max(room, longest))
        fits = bool(np.bincount(pack, lengths).max() <= room)
        return Packing(degree, pack, float(np.bincount(pack, work).max()), fits)

    def cut(self, lengths: Ints, packing: Packing) -> Cut:
        """Cuts every pack over its group, per sequence or per document."""
        cost, degree, pack = self.cost, packing.degree, packing.pack
        count = cost.cluster.num_ranks // degree
        # Cutting: both ways for every pack, and for each the one whose slowest rank is done first.
        document, sequence = (
            cut(lengths, pack, degree, cost.model.mask) for cut in (shard_per_document, shard_per_sequence)
        )
        times = [attend_seconds(pieces, lengths, count, degree, cost) for pieces in (document, sequence)]
        first = times[0] < times[1] if self.shard == "adaptive" else np.full(count, self.shard == "document")
        tokens = np.bincount(pack, lengths, count).astype(np.float64)
        attention = np.where(first, *times)
        seconds = attention + linear_seconds(tokens, degree, cost, self.received_kv)
        seconds = seconds + waiting(cost, tokens / degree, FORWARD * attention, (1 - FORWARD) * attention)
        pieces = mixed(document, sequence, pack, first)
        return Cut(packing, pieces, np.where(tokens > 0, seconds, 0.0), float(first[tokens > 0].mean()))

    def _laid(self, lengths: Ints, sequences: Ints, cut: Cut) -> Plan:
        cluster, degree, pack = self.cost.cluster, cut.packing.degree, cut.packing.pack
        builder = Builder(
            lengths, cluster.num_ranks, self.cost.model.num_heads, self.cost.model.mask, sequences=sequences
        )
        if degree == 1:
            local(builder, np.arange(len(lengths), dtype=np.int64), pack)
        else:
            width = min(degree, cluster.gpus_per_node)
            groups = np.arange(cluster.num_ranks).reshape(-1, degree // width, width)
            for number in np.unique(pack).tolist():
                all_gather(builder, *cut.pieces.of(pack, number, degree), groups[number])
        notes: dict[str, float | str] = {
            "degree": degree,
            "by_document": cut.by_document,
            "busiest_seconds": float(cut.seconds.max()),
            "mean_seconds": float(cut.seconds.mean()),
        }
        return reverse(builder.build(), self.received_kv if degree > 1 else "keep").with_(notes=notes)


def context_degrees(cost: Cost) -> list[int]:
    """Lists every size of a group that divides a node, or is made of nodes and divides the cluster."""
    node, nodes = cost.cluster.gpus_per_node, cost.cluster.num_nodes
    inside = [size for size in range(1, node + 1) if node % size == 0]
    return inside + [node * size for size in range(2, nodes + 1) if nodes % size == 0]


def capacity(degree: int, cost: Cost, backward: Mode) -> int:
    """Returns how many tokens of a pack fit its group: each rank's share, and keys and values of all (with their
    gradients) of the layer under way, or of every layer where they are kept."""
    others = (degree - 1) * cost.model.message_bytes_per_token(KV, 0, cost.model.num_heads)
    received, copies = (others, others) if backward == "keep" else (0, 2 * others)
    memory = int(cost.cluster.device.memory_bytes)
    return max(int(degree * memory_of(cost).tokens(memory, received, copies)), 1)


def linear_seconds(tokens: Floats, degree: int, cost: Cost, backward: Mode) -> Floats:
    """Returns the seconds that grow with a pack's tokens [n], one layer, both directions: linear modules and the
    gathers."""
    own = tokens / degree
    linear = cost.linear_seconds(own) + cost.gradient_seconds(own) + cost.again_seconds(own)
    return np.asarray(linear + kv_gather_seconds(tokens, degree, cost, backward))


def work_seconds(lengths: Ints, degree: int, cost: Cost, backward: Mode) -> Floats:
    """Returns float64 [n]: the seconds of a document's attention and linear work on each rank of its group; a pack's
    are their sum."""
    ways = [cost.whole_seconds(lengths, back) for back in (False, True)]
    attention, tokens = np.asarray(sum(ways)) / degree, lengths.astype(np.float64)
    part = of_parts(cost)
    linear = linear_seconds(tokens, degree, part, backward)
    # Starts, which a pack has once, are taken off; what it waits for copies to and from hosts is as if it were alone.
    found = attention + linear - linear_seconds(np.full(1, 1e-9), degree, part, backward)
    return np.asarray(found + waiting(cost, tokens / degree, ways[0] / degree, ways[1] / degree), np.float64)
