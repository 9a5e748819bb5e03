"""A static mesh: context parallelism inside groups of ranks, data parallelism across them.

What most training jobs run. The ranks are cut once into groups of `degree` neighbours, and a group attends to its
sequences by one method, the same for every batch. Sequences are packed, and every group takes a pack of each
micro-batch; packs are as large as memory allows, and as small as the fewest micro-batches then allow.

Sources: Megatron-LM's context_parallel_size, torchtitan's context_parallel_degree and DeepSpeed's sequence
parallelism are such meshes of one degree; the methods are those of zbench.patterns. Packs by order of arrival are
what data loaders make (Megatron-LM's GPTDataset); best-fit decreasing is Coffman, Garey and Johnson 1978 (doi
10.1137/0207001); balanced packs are longest processing time first (zbench.systems.bins). Pure: no torch.
"""

from dataclasses import dataclass
from typing import get_args

import numpy as np

from zbench.batch import Batch
from zbench.build import Builder
from zbench.cost import Cost
from zbench.plan import Ints, Plan
from zbench.rewrite import reverse
from zbench.rewrite.reverse import Mode
from zbench.systems.mesh_groups import METHODS, Method, lay
from zbench.systems.mesh_packs import Batching, packed
from zbench.systems.micro_batches import fitting_tokens, need_bytes

BACKWARD: dict[Method, Mode] = {"ring": "carry", "allgather": "regather", "ulysses": "keep"}  # as systems of that name
SMALLER = 0.9  # of a pack's tokens, where a micro-batch of such packs does not fit


@dataclass(frozen=True, slots=True)
class Mesh:
    """method: ring, allgather or ulysses. degree: ranks of a group; None: the fewest that hold a sequence of
    `context_limit` tokens in memory. batching: arrival, best_fit or balanced. pack_tokens: of a group's rank at most;
    None: what fits a GPU. context_limit: tokens of the longest sequence; the run gives its workload's.

    Raises:
        ValueError: a key has no such value, or degree does not divide the ranks.
    """

    cost: Cost
    method: Method = "ring"
    degree: int | None = None
    batching: Batching = "best_fit"
    pack_tokens: int | None = None
    context_limit: int | None = None

    def __post_init__(self) -> None:
        for name, choices in (("method", METHODS), ("batching", get_args(Batching))):
            if getattr(self, name) not in choices:
                raise ValueError(f"system.{name} is {getattr(self, name)!r}; it takes {', '.join(choices)}")
        for name in ("degree", "pack_tokens", "context_limit"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise ValueError(f"system.{name} is {value!r}; it takes a whole number of at least 1, or null")
        ranks = self.cost.cluster.num_ranks
        if self.degree is not None and ranks % self.degree:
            raise ValueError(f"system.degree is {self.degree}; it takes a divisor of the {ranks} ranks, or null")

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        ranks, free = self.cost.cluster.num_ranks, fitting_tokens(self.cost)
        degree = self.degree or least_degree(self.context_limit or batch.num_tokens, free, ranks)
        most = degree * min(free, self.pack_tokens or free)
        while True:
            pack = packed(self.batching, batch.lengths, ranks // degree, most, self.cost)
            plans = tuple(self._micro_batch(batch, pack, turn, degree) for turn in range(int(pack[:, 0].max()) + 1))
            if most < batch.lengths.max() or all(fits(plan, self.cost) for plan in plans):
                return plans
            most = int(SMALLER * most)

    def _micro_batch(self, batch: Batch, pack: Ints, turn: int, degree: int) -> Plan:
        """pack: [num_sequences, 2], micro-batch and group of every sequence."""
        cluster, seqs = self.cost.cluster, np.flatnonzero(pack[:, 0] == turn)
        builder = Builder(batch.lengths[seqs], cluster.num_ranks, self.cost.model.num_heads, sequences=seqs)
        groups = np.arange(cluster.num_ranks, dtype=np.int64).reshape(-1, degree)
        lay(builder, self.method, pack[seqs, 1], groups, cluster.gpus_per_node)
        return reverse(builder.build(), BACKWARD[self.method])


def least_degree(longest: int, free: int, num_ranks: int) -> int:
    """The least divisor of the ranks whose ranks hold a sequence of `longest` tokens, `free` each; else all of them."""
    return next((n for n in range(1, num_ranks + 1) if num_ranks % n == 0 and n * free >= longest), num_ranks)


def fits(plan: Plan, cost: Cost) -> bool:
    """Whether the fullest rank has room for it."""
    return need_bytes(plan, cost) <= cost.cluster.device.memory_bytes
