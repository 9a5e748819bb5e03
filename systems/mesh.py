"""A static mesh: context parallelism inside groups of ranks, data parallelism across them.

What most training jobs run. The ranks are cut once into groups of `degree` neighbours, and a group attends to its
sequences by one method, the same for every batch. Sequences are packed, and every group takes a pack of each
micro-batch; packs are as large as memory allows, and as small as the fewest micro-batches then allow.

Sources: Megatron-LM's context_parallel_size, torchtitan's context_parallel_degree and DeepSpeed's sequence
parallelism are such meshes of one degree; the methods are those of zbench.plans.patterns. Packs by order of arrival are
what data loaders make (Megatron-LM's GPTDataset); best-fit decreasing is Coffman, Garey and Johnson 1978 (doi
10.1137/0207001); balanced packs are longest processing time first (zbench.systems.common.bins).
"""

from dataclasses import dataclass
from typing import get_args

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.plans.plan import Plan
from zbench.systems.common.mesh_groups import METHODS, Method
from zbench.systems.common.mesh_packs import Batching, pack_batch
from zbench.systems.common.mesh_plans import check_keys, fitting_plans, holding_degree


@dataclass(frozen=True, slots=True)
class Mesh:
    """A static mesh as a system: groups of ranks of one size, each with one method of context parallelism. method:
    ring, allgather or ulysses. degree: ranks of a group; None: the fewest that hold a sequence of `context_limit`
    tokens in memory. batching: arrival, best_fit or balanced. pack_tokens: of a group's rank at most; None: what fits a
    GPU. context_limit: tokens of the longest sequence; the run gives its workload's.

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
        check_keys(self.cost, self.degree, self.pack_tokens, self.context_limit)

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        ranks = self.cost.cluster.num_ranks
        longest = self.context_limit or batch.num_tokens
        degree = self.degree or holding_degree(longest, self.method, ranks, self.cost)
        return fitting_plans(
            batch,
            self.method,
            degree,
            self.pack_tokens,
            self.cost,
            lambda most: pack_batch(self.batching, batch.lengths, ranks // degree, most, self.cost),
        )
