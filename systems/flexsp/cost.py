"""FlexSP's objective on a described cluster: seconds and memory of a group of every degree.

A group of d ranks with sequences s takes square_d sum(s^2) + linear_d sum(s) + fixed_d seconds: FlexSP's
(alpha1 sum(s^2) + alpha2 sum(s)) / d + beta1 + alpha3 sum(s) / (d v_d) + beta2 (arXiv 2412.01523, equations
11 to 14) with terms of the same power put together. FlexSP profiles its constants on GPUs; here three small
groups of every degree are played on the described cluster's clock, so that what heads that do not divide,
few kv heads, or a ring above the number of heads cost is in them.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.cost.job import of_parts
from zbench.cost.memory.copies import kept_over_own, moment_bytes
from zbench.cost.memory.host_copies import HostCopies
from zbench.cost.memory.needs import memory_of
from zbench.describe.arrays import Floats
from zbench.describe.expert_schedule import USUAL_EXPERTS
from zbench.passes import reverse
from zbench.passes.reverse import Mode
from zbench.plans.area import TILE
from zbench.plans.build import Builder
from zbench.plans.patterns import ulysses_ring
from zbench.plans.plan import Ints, Plan
from zbench.simulator.attention import programs
from zbench.simulator.clock import Free, run_hops
from zbench.simulator.estimate.layers import finished
from zbench.simulator.hop_graph import HopGraph

TILES = 32  # of a rank's tokens in a profile: 4,096 tokens, so that no call is bound by its start
ROWS = 4  # of the longest ring that is played; a thousand ranks take seconds, and hops repeat themselves
SLACK = 4  # tokens a rank may have above an even share, by rounding in rows, columns and chunks


# (square, linear, fixed, capacity) of an Objective. A plain tuple: numba takes a named one in 1 us more, and a search
# calls its loops thousands of times.
GroupCosts = tuple[Floats, Floats, Floats, Ints]


@dataclass(frozen=True, slots=True)
class Objective:
    """FlexSP's objective, the seconds and the capacity of groups of every degree; arrays [num_degrees], ascending by
    degree.

    degree: ranks. square, linear, fixed: seconds a token^2, a token, a group and micro-batch.
    capacity: tokens a group holds. num_ranks: of the cluster; groups of a micro-batch have no more in all.
    collectives: of data parallelism, which the paper's fixed constants may hold (see docs/systems/flexsp.md).
    """

    degree: Ints
    square: Floats
    linear: Floats
    fixed: Floats
    capacity: Ints
    num_ranks: int
    collectives: Collectives

    @property
    def group_costs(self) -> GroupCosts:
        """Returns the columns that compiled loops take."""
        return self.square, self.linear, self.fixed, self.capacity

    def seconds(self, lengths: Ints, index: int) -> float:
        """Returns the seconds of one group of degree[index] with sequences of `lengths`."""
        s = lengths.astype(np.float64)
        return float(self.square[index] * (s * s).sum() + self.linear[index] * s.sum() + self.fixed[index])

    def holding(self, longest: int, index: int = -1) -> "Objective":
        """Returns the objective with room for at least `longest` tokens in groups of degree[index]: a sequence that no
        group can hold is planned all the same, and the executor's verdict is out of memory, as with every other
        system."""
        capacity = self.capacity.copy()
        capacity[index] = max(int(capacity[index]), longest)
        return self.with_(capacity=capacity)

    def with_(self, **changes: object) -> "Objective":
        """Returns a copy with these fields changed."""
        return replace(self, **changes)  # type: ignore[arg-type]


def group_degrees(cost: Cost) -> list[int]:
    """Lists the sizes of groups, each dividing the next: powers of two where GPUs and nodes are.

    Products of the prime factors of a node's GPUs, then of the nodes, smallest first: groups laid largest
    first then never leave a gap, and one that fits a node stays inside it.
    """
    found = [1]
    for count in (cost.cluster.gpus_per_node, cost.cluster.num_nodes):
        for prime in _prime_factors(count):
            found.append(found[-1] * prime)
    return found


def _prime_factors(number: int) -> list[int]:
    found, factor = [], 2
    while number > 1:
        while number % factor == 0:
            found.append(factor)
            number //= factor
        factor += 1
    return found


def group_shape(degree: int, cost: Cost) -> tuple[int, int]:
    """Returns (rows, columns) of a group: a ring of rows of as many columns as heads allow, exchanging heads."""
    columns = max(d for d in group_degrees(cost) if d <= cost.model.num_heads and degree % d == 0)
    return degree // columns, columns


def objective(cost: Cost, backward: Mode, least: int = 1) -> Objective:
    """Returns the objective with the constants of every degree on the described cluster. least: degrees below it are
    not offered, but for the largest."""
    sizes = group_degrees(cost)
    size = np.array(sizes, np.int64)
    tokens, piece = TILE * TILES * size.astype(np.float64), 2 * TILE
    # Profiles are the same whatever tokens choose in a batch and whichever part of a step it is; lines through them
    # have the rate of many tokens, as a wave of tiles more or less is no slope.
    alike = of_parts(cost.routed_by(USUAL_EXPERTS, (0, None)).of_step)
    one, many, half, *held = group_profiles(alike, backward).T
    square = np.maximum(one - many, 0.0) / (tokens * (tokens - piece))
    linear = np.maximum((many - half) / (tokens / 2) - square * piece, 0.0)
    fixed = np.maximum(2 * half - many, 0.0)
    lines, memory = memory_of(cost), cost.cluster.device.memory_bytes
    room = [lines.tokens(memory, *each) for each in zip(*held, strict=True)]
    per_rank = np.floor(np.array(room) - SLACK)
    capacity = np.maximum(per_rank, 0).astype(np.int64) * size
    on = size >= min(least, sizes[-1])
    of = cost.cluster.num_ranks, Collectives.of(cost)
    return Objective(size[on], square[on], linear[on], fixed[on], capacity[on], *of)


@lru_cache(maxsize=16)
def group_profiles(cost: Cost, backward: Mode) -> Floats:
    """Returns [num_degrees, 5], not to be written to: seconds of one long sequence, of many short ones, of half as
    many; bytes of the fullest rank, a token and layer: of received q and kv that stay, and of what comes and goes.

    All with as many tokens a rank. Kept, because a command makes several planners of the same cluster and model (a
    baseline, a check that plans again) and playing the groups takes longer than planning a batch. Of rings that cross
    nodes only the three with the fewest rows are played, a thousand ranks would take seconds: each further row is one
    more equal hop, so the numbers go on in a line.
    """
    sizes = group_degrees(cost)
    rows = [group_shape(degree, cost)[0] for degree in sizes]
    crossing = [i for i in range(len(sizes)) if rows[i] > 1 and sizes[i] > cost.cluster.gpus_per_node]
    found = [group_profile(sizes[i], cost, backward) for i in range(len(sizes)) if i not in crossing[3:]]
    for i in crossing[3:]:
        a, b = crossing[1:3]
        found.append(found[a] + (found[b] - found[a]) * ((rows[i] - rows[a]) / (rows[b] - rows[a])))
    profiles = np.stack(found)
    profiles.flags.writeable = False
    return profiles


def group_profile(degree: int, cost: Cost, backward: Mode) -> Floats:
    """Returns a row of `group_profiles` by playing groups of `degree` ranks."""
    pieces = np.full(TILES * degree // 2, 2 * TILE, np.int64)
    groups = [_group(x, degree, cost, backward) for x in (pieces.sum()[None], pieces, pieces[::2])]
    plan, small = groups[0]
    waits = [_waited(*groups[1]), _waited(*groups[2])]  # of short sequences; a long one's curve is of what it computes
    ways = (plan.forward, False), (plan.backward, True)
    held = int(kept_over_own(plan, small).max()), max(int(moment_bytes(plan, *way, small).max()) for way in ways)
    played = np.array([_seconds(plan, small) for plan, small in groups]) + np.array([waits[0], *waits])
    return np.array([*played, *(size / (TILE * TILES) for size in held)])


def _group(lengths: Ints, degree: int, cost: Cost, backward: Mode) -> tuple[Plan, Cost]:
    """Plans one group on as many nodes as it needs; returns the plan and the cost of those nodes."""
    nodes = -(-degree // cost.cluster.gpus_per_node)
    small = replace(cost, cluster=replace(cost.cluster, num_nodes=nodes))
    builder = Builder(lengths, small.cluster.num_ranks, cost.model.num_heads, cost.model.mask)
    seqs = np.arange(len(lengths), dtype=np.int64)
    ulysses_ring(builder, seqs, 0 * seqs, np.arange(degree, dtype=np.int64).reshape(1, *group_shape(degree, cost)))
    return reverse(builder.build(), backward), small


def _seconds(plan: Plan, cost: Cost) -> float:
    """Returns the seconds, forward and backward, of the whole model for one group, all its ranks starting together,
    nothing overlapped."""
    model = cost.model
    again = model.forwards_again
    forward, backward = (_slowest(program, cost) for program in programs(plan, cost))
    tokens = plan.tokens_per_rank.max()[None]
    linear = float(cost.linear_seconds(tokens)[0])
    layer = (1 + again) * (linear + forward) + float(cost.backward_linear_seconds(tokens)[0]) + backward
    return model.num_layers * layer + float(cost.head_seconds(tokens)[0])


def _waited(plan: Plan, cost: Cost) -> float:
    """Returns the seconds for which such a group waits for its layers' copies to and from hosts."""
    copies = HostCopies.of(cost)
    if copies is None:
        return 0.0
    forward, backward = (_slowest(program, cost) for program in programs(plan, cost))
    tokens = plan.tokens_per_rank.max()[None]
    begun, left = cost.linear_seconds(tokens) + forward, cost.backward_linear_seconds(tokens) + backward
    return cost.model.num_layers * float(copies.waited(begun, left + cost.model.forwards_again * begun, tokens)[0])


def _slowest(program: HopGraph, cost: Cost) -> float:
    ready = np.zeros(cost.cluster.num_ranks)
    timeline = run_hops(program, ready, Free.zero(cost.cluster))
    return float(finished(program, timeline, ready).max())
