"""Static groups of ranks, each with a pack of documents of its own whose tokens its ranks own by a permutation: the
context parallelism of PyTorch beside data parallelism, as torchtitan runs it.

Documents go whole to groups: in the order in which they come, as torchtitan's loader has them, in the fewest packs, or
so that packs take about as long. Inside a group tokens are owned as for all ranks together
(zbench.systems.in_contract.permutation). Every way of the one with every way of the other is played as a whole step.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import get_args

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.passes.reverse import Mode
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.plan import Ints, Plan
from zbench.systems.common.mesh_groups import gathered
from zbench.systems.common.mesh_packs import Batching, pack_batch
from zbench.systems.common.mesh_plans import laid_plans
from zbench.systems.common.micro_batches import fitting_tokens
from zbench.systems.in_contract.choice import SHARES, lack_and_seconds
from zbench.systems.in_contract.permutation import TILES, dealt_tiles, owned_pieces, padded
from zbench.systems.torch_cp.balancers import BALANCERS, Pieces, pieces
from zbench.systems.torch_cp.planner import least_limit

Owned = Callable[[Ints], Pieces]  # of a pack's lengths, what every rank of its group owns
PACKINGS: tuple[Batching, ...] = get_args(Batching)


def fastest_groups(batch: Batch, degree: int, cost: Cost, backward: Mode) -> tuple[Plan, ...]:
    """Returns the plans of groups of `degree` ranks that take least on the clock; with packs of fewer tokens where the
    fastest do not fit. backward: what becomes of gathered kv."""
    every: list[tuple[tuple[int, float], tuple[Plan, ...]]] = []
    for share in SHARES:
        cap = max(int(share * fitting_tokens(cost) * degree), int(batch.lengths.max()))
        some = [
            (lack_and_seconds(batch, plans, cost), plans) for plans in _candidates(batch, degree, cap, cost, backward)
        ]
        every += some
        if min(some, key=lambda one: one[0][1])[0][0] == 0:
            break
    return min(every, key=lambda one: one[0])[1]


def _candidates(batch: Batch, degree: int, cap: int, cost: Cost, backward: Mode) -> Iterator[tuple[Plan, ...]]:
    """Yields the plans of a batch for every way to pack it and to own packs. cap: tokens of a pack at most."""
    groups = cost.cluster.num_ranks // degree
    first = least_limit(batch.lengths, groups, cap, cost)
    packs = [pack_batch(one, batch.lengths, groups, first if one == "arrival" else cap, cost) for one in PACKINGS]
    different = {pack.tobytes(): pack for pack in packs}
    for pack in different.values():
        for owned in _ways(degree, cost):
            yield laid_plans(batch, partial(_lay, owned=owned), backward, degree, cost, pack)


def _ways(degree: int, cost: Cost) -> Iterator[Owned]:
    """Yields the ways to own a pack's tokens: PyTorch's balancers, and tiles of several sizes dealt by area."""
    for balancer in BALANCERS[: 1 if degree == 1 else None]:  # of one rank they are all the same
        yield partial(pieces, balancer, num_ranks=degree, tile=TILES[0])
    for tile in TILES[: 0 if degree == 1 else None]:
        yield partial(_by_area, degree=degree, tile=tile, cost=cost)


def _by_area(lengths: Ints, degree: int, tile: int, cost: Cost) -> Pieces:
    return owned_pieces(dealt_tiles(padded(lengths, degree), degree, tile, cost), len(lengths))


def _lay(builder: Builder, *, group: Ints, groups: Ints, gpus_per_node: int, owned: Owned) -> None:
    """Lays a micro-batch's packs over their groups (zbench.systems.common.mesh_groups.Lay)."""
    if groups.shape[1] == 1:
        local(builder, np.arange(len(group), dtype=np.int64), group)
        return
    for number in np.unique(group):
        mine = np.flatnonzero(group == number)
        gathered(builder, mine, owned(builder.lengths[mine]), groups[number], gpus_per_node)
