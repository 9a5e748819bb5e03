"""Whole samples on data-parallel ranks: packs of about equal seconds, and what verl and slime would make of them."""

from collections.abc import Iterator

import numpy as np

from zbench.contracts.contract import WholeOnDP
from zbench.contracts.schedule import ContractError, SampleSchedule
from zbench.cost.cost import Cost
from zbench.describe.units import with_noun
from zbench.plans.plan import Ints
from zbench.systems.common.bins import bins
from zbench.systems.common.differencing import balanced_sets
from zbench.systems.in_contract.rates import ring_rates
from zbench.systems.in_contract.ring_seconds import seconds_of_groups
from zbench.systems.slime_schedule import forward_flops, slime_packs
from zbench.systems.verl_balance import group_sequences, pack_shares

MORE = 3  # numbers of micro-batches that are tried, from the fewest that hold the tokens
UNIT = 1e-9  # seconds, as whole numbers: the differencing method's sums are exact
Packs = list[list[list[int]]]  # [micro-batch][rank] -> samples


def check_whole(lengths: Ints, contract: WholeOnDP) -> None:
    """Returns if the samples can be dealt to the ranks.

    Raises:
        ContractError: there are fewer samples than ranks and micro-batches, as many for every rank cannot be had, or
            one is longer than a pack may be.
    """
    count, ranks, longest = len(lengths), contract.ranks, int(np.argmax(lengths))
    if count < ranks * contract.multiple:
        raise ContractError(
            f"the batch has {with_noun(count, 'sample')}; {with_noun(ranks, 'data-parallel rank')} with "
            f"{with_noun(contract.multiple, 'micro-batch')} take at least "
            f"{ranks * contract.multiple}, as each has one"
        )
    if contract.equal_size and count % ranks:
        raise ContractError(
            f"the batch has {with_noun(count, 'sample')}, of which {with_noun(ranks, 'data-parallel rank')} cannot "
            "have as many"
        )
    if contract.max_tokens is not None and lengths[longest] > contract.max_tokens:
        raise ContractError(
            f"sample {longest} has {int(lengths[longest]):,} tokens; a pack has at most {contract.max_tokens:,} "
            "(max_tokens), and no sample is cut",
            sample=longest,
        )


def whole_schedules(lengths: Ints, contract: WholeOnDP, cost: Cost, cap: int) -> Iterator[SampleSchedule]:
    """Yields candidates, not all of them inside the contract. cap: tokens of a pack at most, but for a longer sample.

    cost: of the cluster that has `degree` GPUs for every rank of the contract.
    """
    seconds = sample_seconds(lengths, cost.cluster.num_ranks // contract.ranks, cost)
    ranks, most = contract.ranks, len(lengths) // contract.ranks
    fewest = -(-int(lengths.sum()) // (cap * ranks))
    first = -(-max(fewest, 1) // contract.multiple) * contract.multiple
    for count in range(first, min(most, first + (MORE - 1) * contract.multiple) + 1, contract.multiple):
        if not contract.equal_size:
            pack = bins(seconds, lengths, ranks * count, max(cap, int(lengths.max())))
            yield _schedule(lengths, _together(_members(pack, ranks * count), seconds, ranks))
        yield _schedule(lengths, _in_equal_numbers(seconds, ranks, count))
    whole = [int(length) for length in lengths]
    verl = pack_shares(whole, group_sequences(whole, ranks), cap, within_limit=True)
    yield _dealt(lengths, verl, ranks)
    flops = [forward_flops(cost.model, length) for length in whole]
    yield _dealt(lengths, slime_packs(whole, flops, ranks, cap, balance_data=True, balance_by_flops=False), ranks)


def sample_seconds(lengths: Ints, degree: int, cost: Cost) -> np.ndarray:
    """Returns float64 [num_samples]: the seconds of a layer that each sample adds to a rank of `degree` GPUs."""
    rates = ring_rates(lengths, np.array([degree]), True, cost, "carry")
    seconds = seconds_of_groups(rates, [0] * (len(lengths) + 1), [*([one] for one in range(len(lengths))), []])
    return np.asarray(seconds[:-1] - seconds[-1])


def _in_equal_numbers(seconds: np.ndarray, ranks: int, count: int) -> Packs:
    """Deals as many samples to every rank, up to one, and each rank's to `count` micro-batches, the heavy ones
    together."""
    works = [round(one / UNIT) for one in seconds.tolist()]
    missing = -len(works) % ranks
    packs: Packs = [[] for _ in range(count)]
    for share in balanced_sets(works + [0] * missing, ranks, equal_counts=True):
        mine = [seq for seq in share if seq < len(works)]
        parts = balanced_sets([works[seq] for seq in mine], count, equal_counts=False)
        members = [[mine[i] for i in part] for part in parts]
        members += [[] for _ in range(count - len(members))]
        for turn, part in enumerate(sorted(members, key=lambda part: -sum(works[seq] for seq in part))):
            packs[turn].append(part)
    return packs


def _members(pack: Ints, count: int) -> list[list[int]]:
    return [np.flatnonzero(pack == number).tolist() for number in range(max(count, int(pack.max()) + 1))]


def _together(members: list[list[int]], seconds: np.ndarray, ranks: int) -> Packs:
    """Puts packs of about equal seconds into a micro-batch, as its ranks wait for each other; ranks take them in turn,
    every second micro-batch backwards."""
    members = sorted(members, key=lambda part: -float(seconds[part].sum()))
    turns = [members[at : at + ranks] for at in range(0, len(members), ranks)]
    return [turn if number % 2 == 0 else turn[::-1] for number, turn in enumerate(turns)]


def _dealt(lengths: Ints, pack: Ints, ranks: int) -> SampleSchedule:
    """Returns the schedule of int64 [num_samples, 2], micro-batch and rank of every sample."""
    packs: Packs = [[[] for _ in range(ranks)] for _ in range(int(pack[:, 0].max()) + 1)]
    for seq, (turn, rank) in enumerate(pack.tolist()):
        packs[turn][rank].append(seq)
    return _schedule(lengths, packs)


def _schedule(lengths: Ints, packs: Packs) -> SampleSchedule:
    return SampleSchedule.of(lengths.tolist(), packs)
