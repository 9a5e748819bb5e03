"""Plans of simpler systems, for batches and networks where nodewise's own are no faster. Pure: no torch.

nodewise evens work out over nodes, which costs NICs; where they are narrow, nodes that stay uneven are sooner done.
Systems that keep sequences inside nodes, or cut fewer of them, have such plans. They are planned and played as a whole
training step, parameters and gradients included, only where nodewise's own step is far from the bound.
"""

from collections.abc import Iterator

from zbench.batch import Batch
from zbench.cost import Cost
from zbench.plan import Plan
from zbench.protocols import System
from zbench.simulate import Simulated
from zbench.systems.flexsp import FlexSP
from zbench.systems.mesh import Mesh
from zbench.systems.zeppelin import Zeppelin

Plans = tuple[Plan, ...]
# Judgements, to keep planning short: flexsp and meshes were faster from FAR on only, where tried.
NEAR, FAR = 0.96, 0.86  # of the bound: a step nearer has no rival worth its planning; one farther has all of them
MOST_RANKS = 256  # beyond it rivals take longer to plan than all the rest


def fastest(own: Plans, batch: Batch, cost: Cost) -> Plans:
    """`own`, or what a simpler system plans where a step of that takes less and fits memory."""
    if cost.cluster.num_ranks > MOST_RANKS:
        return own
    executor = Simulated(cost)
    result = executor.step(batch, own)
    ratio = result.bound_seconds / result.seconds
    best, least = own, (result.out_of_memory, result.seconds)
    for rival in rivals(cost, ratio):
        plans = rival.plan(batch)
        result = executor.step(batch, plans)
        if (result.out_of_memory, result.seconds) < least:
            best, least = plans, (result.out_of_memory, result.seconds)
    return best


def rivals(cost: Cost, ratio: float) -> Iterator[System]:
    """Systems that may be faster than a step at that share of the bound."""
    inside = cost.cluster.gpus_per_node
    if ratio < NEAR:
        yield Zeppelin(cost)
    if ratio < FAR:
        yield FlexSP(cost)
        yield Mesh(cost, "ulysses", inside, "balanced")
        yield Mesh(cost, "ring", inside, "balanced")
