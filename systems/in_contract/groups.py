"""Static groups of ranks, each with a pack of documents of its own whose tokens its ranks own by a permutation: the
context parallelism of PyTorch beside data parallelism, as torchtitan runs it.

Documents go whole to groups: in the order in which they come, as torchtitan's loader has them, in the fewest packs, or
so that packs take about as long. Inside a group tokens are owned as for all ranks together
(zbench.systems.in_contract.permutation). Every way of the one with every way of the other is compared by planners'
estimate.
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
from zbench.systems.common.mesh_plans import laid_plans, largest_fitting
from zbench.systems.in_contract.choice import lack_and_seconds
from zbench.systems.in_contract.permutation import TILES, dealt_tiles, owned_pieces, padded
from zbench.systems.torch_cp.balancers import BALANCERS, Pieces, pieces
from zbench.systems.torch_cp.planner import least_limit

Owned = Callable[[Ints], Pieces]  # of a pack's lengths, what every rank of its group owns
PACKINGS: tuple[Batching, ...] = get_args(Batching)


def fastest_groups(batch: Batch, degree: int, cost: Cost, backward: Mode) -> tuple[Plan, ...]:
    """Returns the plans of groups of `degree` ranks that take least on the clock. backward: what becomes of gathered
    kv. Packs of every way are as large as memory allows."""
    candidates = [plans for packing in PACKINGS for plans in _candidates(batch, degree, cost, backward, packing)]
    return min(candidates, key=lambda plans: lack_and_seconds(plans, cost))


def _candidates(batch: Batch, degree: int, cost: Cost, backward: Mode, packing: Batching) -> Iterator[tuple[Plan, ...]]:
    """Yields the plans of every way to own a pack's tokens. The first way says how large packs may be, and the others,
    whose ranks have about as many tokens, begin with that."""
    roomy: list[int] = []

    def plans_at(most: int, owned: Owned) -> tuple[Plan, ...]:
        roomy.append(most)
        return _plans(batch, degree, cost, backward, packing, owned, most)

    pack_tokens = None
    for owned in _ways(degree, cost):
        yield largest_fitting(batch, degree, pack_tokens, cost, partial(plans_at, owned=owned))
        pack_tokens = max(1, roomy[-1] // degree)


def _plans(
    batch: Batch, degree: int, cost: Cost, backward: Mode, packing: Batching, owned: Owned, most: int
) -> tuple[Plan, ...]:
    """Returns a plan for every micro-batch of packs of at most `most` tokens, or of one longer document."""
    groups = cost.cluster.num_ranks // degree
    limit = least_limit(batch.lengths, groups, most, cost) if packing == "arrival" else most
    pack = pack_batch(packing, batch.lengths, groups, limit, cost)
    return laid_plans(batch, partial(_lay, owned=owned), backward, degree, cost, pack)


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
