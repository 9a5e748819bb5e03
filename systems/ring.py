"""Ring attention over all ranks: Transformer Engine's context parallelism.

Every sequence, however short, is cut in 2N zigzag chunks over all N ranks, and kv goes once round.
Balanced to a token, but a short sequence pays N - 1 messages and N tiny kernel calls.
Source: Transformer Engine's `AttnFuncWithCPAndKVP2P` (variable-length, "p2p"); Liu et al. 2023
(arXiv 2310.01889). What its loop does besides, and ours does not have to, is a key each (docs/systems/ring.md).
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_choice
from zbench.interfaces.protocols import Size
from zbench.interfaces.published import Published, PublishedValue
from zbench.passes import into_rounds, reverse
from zbench.passes.reverse import Mode, check_mode
from zbench.plans.build import Builder
from zbench.plans.patterns import ring
from zbench.plans.plan import Ints, Plan
from zbench.systems.common.padding import Padding, check_padding, padding_of

SOURCE = "Transformer Engine 2.18 (27486e03), pytorch/attention/dot_product_attention/context_parallel.py"


@dataclass(frozen=True, slots=True)
class Ring:
    """Ring attention as a system: one zigzag ring over all ranks.

    wait: "overlapped", a rank waits for data alone; "published", for what it sends and receives of every step
    (zbench.passes.rounds). run_ahead: "overlapped", a rank goes on to its linear modules with messages under way;
    "published", when all of its messages have arrived. received_kv: what becomes of it until the backward
    (zbench.passes.reverse). padding: "none"; "published", every sequence is padded to a multiple of 2N tokens, which
    are computed and sent as all others are.

    Raises:
        ValueError: a key has none of its values.
    """

    PUBLISHED: ClassVar[Published] = {
        "wait": PublishedValue("published", f"{SOURCE}: both requests are waited for before the next step"),
        "run_ahead": PublishedValue("published", f"{SOURCE}: the last step's requests are waited for inside of it"),
        "padding": PublishedValue("published", f"{SOURCE}: cu_seqlens are divided by two chunks a rank"),
        "received_kv": PublishedValue("carry", f"{SOURCE}, backward: kv is sent beside its gradient in every step"),
    }

    cost: Cost
    wait: Literal["overlapped", "published"] = "overlapped"
    run_ahead: Literal["overlapped", "published"] = "overlapped"
    padding: Padding = "none"
    received_kv: Mode = "carry"

    def __post_init__(self) -> None:
        check_mode("system.received_kv", self.received_kv)
        for name in ("wait", "run_ahead"):
            check_choice(f"system.{name}", getattr(self, name), ("overlapped", "published"))
        check_padding(self.padding, self.cost.model.mask)

    def size(self, lengths: Ints, count: int) -> Size:
        """Estimates the size of a step's plans: every rank attends to and passes on every chunk of keys; a sequence is
        cut in as many pieces as it can be."""
        most = 2 * self.cost.cluster.num_ranks
        chunks = np.minimum(lengths, most) if self.padding == "none" else np.full(len(lengths), most)
        ranks = min(self.cost.cluster.num_ranks, count * int(chunks.max()))
        return Size(operations=4 * ranks**2, pieces=int(count * float(chunks.mean())))

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        count, ranks = len(batch.lengths), self.cost.cluster.num_ranks
        padding = padding_of(batch.lengths, self.padding, ranks)
        lengths = batch.lengths if padding is None else batch.lengths + padding
        builder = Builder(lengths, ranks, self.cost.model.num_heads, self.cost.model.mask)
        ring(builder, np.arange(count), np.zeros(count, np.int64), np.arange(ranks).reshape(1, -1))
        plan = reverse(builder.build(), self.received_kv)
        plan = plan.with_(until_sent=self.run_ahead == "published", padding=padding)
        return (into_rounds(plan) if self.wait == "published" else plan,)
