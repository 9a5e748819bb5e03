"""Candidates for rounds of rings: by the estimate, in one round or several, and the shipped scheduler's own.

A candidate is a list of rounds, a round a list of groups (zbench.systems.hybrid_dp.Group), every one inside the
contract; which is the fastest is for the clock to say (zbench.systems.in_contract.choice).
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np

from zbench.contracts.contract import AlignedPow2Rings, RingContract
from zbench.contracts.schedule import ContractError
from zbench.describe.units import with_noun
from zbench.plans.plan import Ints
from zbench.systems.dynamic_cp import dynamic_rounds
from zbench.systems.hybrid_dp import Group
from zbench.systems.in_contract.rates import RingRates
from zbench.systems.in_contract.ring_seconds import seconds_of_groups
from zbench.systems.in_contract.rings import least_round
from zbench.systems.in_contract.rounds import Placed, rounds_in_common, rounds_under

SHIPPED = (1, 2, 4, 8)  # times an even share of the batch: limits of the shipped scheduler that are tried
SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)  # longest samples that have a round of their own
Rounds = list[list[Group]]


def check_holds(lengths: Ints, contract: RingContract) -> None:
    """Returns if some schedule of the contract has all samples.

    Raises:
        ContractError: a sample is longer than all ranks may hold, or there are fewer samples than micro-batches.
    """
    longest = int(np.argmax(lengths))
    if contract.max_tokens is not None and lengths[longest] > contract.ranks * contract.max_tokens:
        raise ContractError(
            f"sample {longest} has {int(lengths[longest]):,} tokens; {with_noun(contract.ranks, 'rank')} of at most "
            f"{contract.max_tokens:,} (max_tokens) hold {contract.ranks * contract.max_tokens:,}",
            sample=longest,
        )
    if len(lengths) < contract.multiple:
        raise ContractError(
            f"the batch has {with_noun(len(lengths), 'sample')}; with a multiple of "
            f"{with_noun(contract.multiple, 'micro-batch')} it takes at least as many, as every rank of each has one"
        )


def candidate_rounds(rates: RingRates, contract: RingContract, cap: float) -> Iterator[Rounds]:
    """Yields rounds by the estimate, each candidate once or more. cap: tokens of a rank at most."""
    order = np.argsort(-rates.length, kind="stable")
    for part in _narrower(rates, contract, cap):
        rounds = _as_rounds(rounds_under(part, order, np.inf, cap, contract.ranks), order)
        yield rounds
        for count in range(len(rounds) if len(rounds) > 1 else 2, len(rounds) + 2):
            yield _as_rounds(rounds_in_common(part, order, cap, contract.ranks, count), order)
        for long in SPLITS:
            if long < len(order):
                most = least_round(part, order[:long], np.inf, cap, contract.ranks).seconds
                if np.isfinite(most):
                    yield _as_rounds(rounds_under(part, order, most, cap, contract.ranks, once=True), order)


def shipped_rounds(lengths: Ints, contract: RingContract) -> Iterator[Rounds]:
    """Yields the shipped scheduler's rounds, at limits of 1, 2, 4 and 8 times an even share of the tokens."""
    even = max(1, int(lengths.sum()) // contract.ranks)
    least = 1 << (contract.least - 1).bit_length()
    for times in SHIPPED:
        limit = times * even if contract.max_tokens is None else min(times * even, contract.max_tokens)
        if least <= contract.ranks:
            yield dynamic_rounds(lengths, contract.ranks, limit, least)


def rounds_seconds(rounds: Rounds, rates: RingRates) -> float:
    """Estimates the seconds of a layer of all rounds; a round takes no less than what it gathers and reduces."""
    place = {int(size): k for k, size in enumerate(rates.sizes)}
    groups = [group for one in rounds for group in one]
    seconds = seconds_of_groups(rates, [place[group.size] for group in groups], [group.seqs for group in groups])
    ends = accumulate((len(one) for one in rounds), initial=0)
    return sum(max(float(seconds[a:b].max()), rates.collective) for a, b in pairwise(ends))


def operations(rounds: Rounds) -> int:
    """Returns how many operations the plans of all rounds have at most, if received kv is carried: attends and
    transfers, forward and backward."""
    return sum(5 * group.size**2 - 3 * group.size for groups in rounds for group in groups)


def multiplied(rounds: Rounds, rates: RingRates, contract: RingContract, cap: float) -> Rounds | None:
    """Makes the number of rounds a multiple of the contract's: the longest ones are cut in two as long as one has two
    samples, else those with the fewest tokens are joined on all ranks. Returns None where neither can be."""
    rounds = list(rounds)
    seconds = [rounds_seconds([one], rates) for one in rounds] if len(rounds) % contract.multiple else []
    while len(rounds) % contract.multiple:
        several = [number for number, groups in enumerate(rounds) if sum(len(group.seqs) for group in groups) > 1]
        if not several:
            return _joined(rounds, rates, contract)
        longest = max(several, key=seconds.__getitem__)
        seqs = sorted((seq for group in rounds[longest] for seq in group.seqs), key=lambda seq: -rates.length[seq])
        halves = [np.array(seqs[half::2], np.int64) for half in (0, 1)]
        cut = [_as_rounds(rounds_under(rates, half, np.inf, cap, contract.ranks), half) for half in halves]
        rounds[longest : longest + 1] = [one for half in cut for one in half]
        seconds[longest : longest + 1] = [rounds_seconds([one], rates) for half in cut for one in half]
    return rounds


def _joined(rounds: Rounds, rates: RingRates, contract: RingContract) -> Rounds | None:
    """Joins rounds on all ranks, two with the fewest tokens at a time; None where they are too many for max_tokens."""
    samples = [[seq for group in groups for seq in group.seqs] for groups in rounds]
    while len(samples) % contract.multiple:
        samples.sort(key=lambda seqs: -sum(int(rates.length[seq]) for seq in seqs))
        if len(samples) < 2:
            return None
        samples.append(samples.pop() + samples.pop())
    tokens = max(sum(int(rates.length[seq]) for seq in seqs) for seqs in samples)
    if contract.max_tokens is not None and tokens > contract.max_tokens * contract.ranks:
        return None
    return [[Group(contract.ranks, seqs)] for seqs in samples]


def _narrower(rates: RingRates, contract: RingContract, cap: float) -> Iterator[RingRates]:
    """Yields the rates with all sizes, with powers of two, and with what lies inside a node alone, where these hold the
    longest sample."""
    every, seen = np.arange(len(rates.sizes)), set()
    powers = np.flatnonzero((rates.sizes & (rates.sizes - 1) == 0) | (rates.sizes == contract.ranks))
    for kept in (every, powers, every[rates.across[every] == 0], powers[rates.across[powers] == 0]):
        if len(kept) and tuple(kept) not in seen and rates.length.max() <= cap * rates.sizes[kept[-1]]:
            seen.add(tuple(kept))
            yield rates._replace(
                sizes=rates.sizes[kept],
                ahead=np.ascontiguousarray(rates.ahead[:, kept]),
                back=np.ascontiguousarray(rates.back[:, kept]),
                start=rates.start[kept],
                hop=rates.hop[kept],
                latency=rates.latency[kept],
                across=rates.across[kept],
            )


def _as_rounds(placed: Placed, order: Ints) -> Rounds:
    """Returns rounds of groups, the widest first, each with its samples in their order."""
    first = placed.first.tolist()
    rounds = [[Group(ranks) for ranks in placed.ranks[a:b].tolist()] for a, b in pairwise(first)]
    for seq, turn, group in zip(
        order.tolist(), placed.round[order].tolist(), placed.group[order].tolist(), strict=True
    ):
        rounds[turn][group].seqs.append(seq)
    return [sorted(groups, key=lambda group: -group.size) for groups in rounds]


def arranged(groups: Sequence[Group], contract: RingContract, per_node: int) -> list[tuple[int, Group]]:
    """Returns groups with their first ranks: the widest first, or, of rings that may begin anywhere, so that few cross
    nodes: of what fits the rest of a node always the widest."""
    left = sorted(groups, key=lambda group: -group.size)
    free = contract.multiple == 1 and not isinstance(contract, AlignedPow2Rings)
    found: list[tuple[int, Group]] = []
    rank = 0
    while left:
        room = per_node - rank % per_node
        wide = next((i for i, group in enumerate(left) if group.size > per_node and rank % per_node == 0), None)
        fits = next((i for i, group in enumerate(left) if group.size <= room), len(left) - 1)
        at = (fits if wide is None else wide) if free else 0
        found.append((rank, left.pop(at)))
        rank += found[-1][1].size
    return found
