"""verl's balancing: whole sequences dealt to data-parallel groups by predicted work, Ulysses inside a group.

`balance_batch` deals a batch to the groups in equal numbers and of about equal work; each group then cuts its share
into micro-batches of about equal work (`use_dynamic_bsz`), every group as many. Both are the largest differencing
method (systems/common/differencing.py) on 24,576 L + L^2 for a sequence of L tokens. A group is `degree` neighbouring
ranks (ulysses_sequence_parallel_size), which exchange heads.

Source: verl, verl/utils/seqlen_balancing.py and the trainers' _balance_batch (1dda039b and release 0.9.1), Ulysses:
Jacobs et al. 2023 (arXiv 2309.14509).
"""

from dataclasses import dataclass
from math import gcd

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_boolean
from zbench.describe.units import with_noun
from zbench.plans.plan import Ints, Plan
from zbench.systems.common.differencing import balanced_sets
from zbench.systems.common.mesh_plans import check_keys, fitting_plans, holding_degree, pack_limits

LINEAR = 24576  # verl's calculate_workload: 6 x 4,096, a dense 7B model's work of a token over that of a visible pair


@dataclass(frozen=True, slots=True)
class VerlBalance:
    """verl's balancing as a system: whole sequences dealt to data-parallel groups by work, with Ulysses inside a group.
    degree: ranks of a group; None: the fewest that hold a sequence of `context_limit` tokens in memory. pack_tokens: of
    a group's rank at most (ppo_max_token_len_per_gpu); None: a run chooses it before (zbench.run.fastest), and without
    a run it is what fits a GPU. enforce_pack_tokens: micro-batches are made smaller until none has more, as from verl
    0.9.1 on; else only their number is reckoned by it. context_limit: tokens of the longest sequence; the run gives its
    workload's.

    Raises:
        ValueError: a key has no such value, or degree does not divide the ranks and the heads.
    """

    cost: Cost
    degree: int | None = None
    pack_tokens: int | None = None
    enforce_pack_tokens: bool = True
    context_limit: int | None = None

    def __post_init__(self) -> None:
        check_keys(self.cost, self.degree, self.pack_tokens, self.context_limit)
        check_boolean("system.enforce_pack_tokens", self.enforce_pack_tokens)
        heads = self.cost.model.num_heads
        if self.degree is not None and heads % self.degree:
            raise ValueError(
                f"system.degree is {self.degree}; it takes a divisor of the {with_noun(heads, 'head')} as well, or "
                "null: verl's Ulysses gives every rank of a group as many"
            )

    def limits(self, tokens: int) -> list[dict[str, int]]:
        """Lists the limits of a pack to choose from, for batches of so many tokens (zbench.interfaces.protocols)."""
        return pack_limits(self.cost, tokens, self.pack_tokens)

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        ranks, longest = self.cost.cluster.num_ranks, self.context_limit or batch.num_tokens
        widest = gcd(ranks, self.cost.model.num_heads)
        degree = self.degree or holding_degree(longest, "ulysses", widest, self.cost)
        lengths = [int(length) for length in batch.lengths]
        shares = group_sequences(lengths, ranks // degree)
        return fitting_plans(
            batch,
            "ulysses",
            degree,
            self.pack_tokens,
            self.cost,
            lambda most: pack_shares(lengths, shares, most, self.enforce_pack_tokens),
        )


def sequence_work(length: int) -> int:
    """Returns what verl takes a sequence's work for, in its own unit: the work of a visible pair of tokens."""
    return LINEAR * length + length * length


def group_sequences(lengths: list[int], num_groups: int) -> list[list[int]]:
    """Deals sequences to groups: as many each, up to one, light ones at both ends; returns the sequences of every
    group.

    verl fills batches up to a multiple of the groups; here what is missing is sequences without tokens, and left out.
    """
    missing = -len(lengths) % num_groups
    works = [sequence_work(length) for length in lengths] + [0] * missing
    out = []
    for share in balanced_sets(works, num_groups, equal_counts=True):
        rising = sorted((seq for seq in share if seq < len(lengths)), key=lambda seq: (works[seq], seq))
        out.append(rising[::2] + rising[1::2][::-1])
    return out


def pack_shares(lengths: list[int], shares: list[list[int]], most: int, within_limit: bool) -> Ints:
    """Returns int64 [num_sequences, 2]: micro-batch and group of every sequence. shares: the sequences of every group.

    As many micro-batches as the group with the most tokens needs at least, and more as long as one has above `most`
    tokens (`within_limit`), or above the longest sequence's; but no more than a group has sequences.
    """
    limit, largest = max(most, *lengths), max(len(share) for share in shares)
    fewest = max(-(-sum(lengths[seq] for seq in share) // max(most, 1)) for share in shares)
    count = min(fewest, largest)
    while True:
        groups = [split_group([lengths[seq] for seq in share], count) for share in shares]
        made = [[[share[i] for i in one] for one in group] for share, group in zip(shares, groups, strict=True)]
        fullest = max(sum(lengths[seq] for seq in one) for group in made for one in group)
        if fullest <= limit or not within_limit:
            break
        count += 1
    out = np.empty((len(lengths), 2), np.int64)
    for number, group in enumerate(made):
        for turn, members in enumerate(group):
            out[members] = turn, number
    return out


def split_group(lengths: list[int], count: int) -> list[list[int]]:
    """Divides a group's sequences into `count` micro-batches of about equal work, the lighter ones at both ends; some
    may be empty."""
    works = [sequence_work(length) for length in lengths]
    sets = balanced_sets(works, count, equal_counts=False)
    falling = sorted(sets, key=lambda one: (sum(works[i] for i in one), one[:1]), reverse=True)
    return falling[::2][::-1] + falling[1::2]
