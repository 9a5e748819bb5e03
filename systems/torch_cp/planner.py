"""PyTorch's context parallelism, as torchtitan runs it: keys gathered, queries placed by a load balancer.

Ranks are cut once into groups of `degree` neighbours (context_parallel_degree), packs are filled in the order in which
documents come, and every group takes a pack of each micro-batch. In each layer a group's ranks gather keys and values
of its whole pack and attend with the queries they own, to what each may see alone (FlexAttention's document mask).
Which tokens a rank owns is the balancer's choice (systems/torch_cp/balancers.py).

Sources: PyTorch 2.13, torch/distributed/tensor/experimental/_context_parallel; torchtitan,
torchtitan/distributed/context_parallel/api.py (b5bcd76c).
"""

from dataclasses import dataclass

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_whole_number
from zbench.passes.reverse import Mode, check_mode
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.plan import Ints, Plan
from zbench.systems.common.mesh_groups import gathered
from zbench.systems.common.mesh_packs import pack_batch
from zbench.systems.common.mesh_plans import check_keys, holding, laid_plans, largest_fitting
from zbench.systems.torch_cp.balancers import BALANCERS, Balancer, pieces


@dataclass(frozen=True, slots=True)
class TorchCP:
    """PyTorch's context parallelism as a system: keys are gathered, and a load balancer decides who owns which queries.
    balancer: headtail, per_document or ptrr. degree: ranks of a group; None: the fewest that hold a sequence of
    `context_limit` tokens in memory. pack_tokens: of a group's rank, up to which packs are filled; None: the fewest
    with which there are no more micro-batches than memory asks for. tile: tokens of a tile of ptrr's mask. received_kv:
    what becomes of gathered kv until the backward. context_limit: tokens of the longest sequence; the run gives its
    workload's.

    Raises:
        ValueError: a key has no such value, or degree does not divide the ranks.
    """

    cost: Cost
    balancer: Balancer = "headtail"
    degree: int | None = None
    pack_tokens: int | None = None
    tile: int = 128
    received_kv: Mode = "regather"
    context_limit: int | None = None

    def __post_init__(self) -> None:
        check_mode("system.received_kv", self.received_kv)
        if self.balancer not in BALANCERS:
            raise ValueError(f"system.balancer is {self.balancer!r}; it takes {', '.join(BALANCERS)}")
        check_whole_number("system.tile", self.tile, 1)
        check_keys(self.cost, self.degree, self.pack_tokens, self.context_limit)

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        cost, ranks, longest = self.cost, self.cost.cluster.num_ranks, self.context_limit or batch.num_tokens
        degree = self.degree or holding(longest, ranks, cost, lambda alone, n: self._plans(alone, n, longest)[0])
        return largest_fitting(batch, degree, self.pack_tokens, cost, lambda most: self._plans(batch, degree, most))

    def _plans(self, batch: Batch, degree: int, most: int) -> tuple[Plan, ...]:
        """Returns a plan for every micro-batch of packs of at most `most` tokens."""
        groups = self.cost.cluster.num_ranks // degree
        limit = most if self.pack_tokens else least_limit(batch.lengths, groups, most, self.cost)
        pack = pack_batch("arrival", batch.lengths, groups, limit, self.cost)
        return laid_plans(batch, self._lay, self.received_kv, degree, self.cost, pack)

    def _lay(self, builder: Builder, *, group: Ints, groups: Ints, gpus_per_node: int) -> None:
        degree = groups.shape[1]
        if degree == 1:
            local(builder, np.arange(len(group), dtype=np.int64), group)
            return
        for number in np.unique(group):
            mine = np.flatnonzero(group == number)
            owned = pieces(self.balancer, builder.lengths[mine], degree, self.tile)
            gathered(builder, mine, owned, groups[number], gpus_per_node)


def least_limit(lengths: Ints, num_groups: int, most: int, cost: Cost) -> int:
    """Returns the fewest tokens of a pack with which packs, filled in order, make no more micro-batches than with
    `most`."""

    def turns(limit: int) -> int:
        return int(pack_batch("arrival", lengths, num_groups, limit, cost)[-1, 0]) + 1

    fewest, low, high = turns(most), int(lengths.max()), most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if turns(middle) <= fewest else (middle + 1, high)
    return high
