"""Holds schedules to contracts: the first thing that an engine could not run, in a sentence. Pure.

Whatever is given, the answer is nothing (it keeps to the contract) or a ContractError that names micro-batch, rank and
sample; never an assertion, and never ranks that wait for each other.
"""

from itertools import pairwise

import numpy as np

from zbench.contracts.contract import (
    AlignedPow2Rings,
    Contract,
    EqualTokenPermutation,
    RingContract,
    WholeOnDP,
    contract_name,
)
from zbench.contracts.schedule import ContractError, RingGroup, SampleId, SampleSchedule, Schedule, TokenPermutation
from zbench.describe.units import with_noun

_Where = dict[SampleId, tuple[int, int]]  # the micro-batch and first rank at which a sample was seen


def check_schedule(schedule: Schedule, contract: Contract) -> None:
    """Returns if an engine of this contract runs the schedule, and every token of it once.

    Raises:
        ContractError: it breaks a rule; the message names micro-batch, rank and sample.
    """
    name = contract_name(contract)
    if isinstance(contract, EqualTokenPermutation):
        if not isinstance(schedule, TokenPermutation):
            raise ContractError(f"{_what(schedule)}; contract {name} takes a permutation of tokens (order)")
        _check_permutation(schedule, contract)
        return
    if not isinstance(schedule, SampleSchedule):
        raise ContractError(f"{_what(schedule)}; contract {name} takes micro_batches of samples")
    _check_count(schedule, contract)
    seen: _Where = {}
    for number, lists in enumerate(schedule.micro_batches):
        if len(lists) != contract.ranks:
            raise ContractError(
                f"micro-batch {number} has lists for {with_noun(len(lists), 'rank')}; the contract has "
                f"{contract.ranks}",
                number,
            )
        groups = (
            [RingGroup(rank, 1, samples) for rank, samples in enumerate(lists)]
            if isinstance(contract, WholeOnDP)
            else _rings(number, lists)
        )
        for group in groups:
            _check_samples(schedule, number, group, seen)
            if not isinstance(contract, WholeOnDP):
                _check_size(number, group, contract)
            _check_tokens(schedule, number, group, contract.max_tokens)
        if not isinstance(contract, WholeOnDP) and contract.multiple > 1:
            _check_falling(number, groups)
    _check_all_there(schedule, seen)
    if isinstance(contract, WholeOnDP) and contract.equal_size:
        _check_equal(schedule)


def _what(schedule: object) -> str:
    if isinstance(schedule, TokenPermutation):
        return "the schedule is a permutation of tokens"
    if isinstance(schedule, SampleSchedule):
        return "the schedule deals samples"
    return f"the schedule is of type {type(schedule).__name__}"


def _check_count(schedule: SampleSchedule, contract: RingContract | WholeOnDP) -> None:
    count = len(schedule.micro_batches)
    if not count:
        raise ContractError("the schedule has no micro-batch; every sample has to be in one")
    if count % contract.multiple:
        raise ContractError(
            f"the schedule has {with_noun(count, 'micro-batch')}; with virtual stages it takes a multiple of "
            f"{contract.multiple}"
        )


def _rings(number: int, lists: tuple[tuple[SampleId, ...], ...]) -> list[RingGroup]:
    """Returns the groups of a micro-batch: neighbours with the same samples. Ranks that share some samples, and not all
    of them in the same order, would wait for each other."""
    groups: list[RingGroup] = []
    first, held = 0, lists[0]
    for rank, samples in enumerate(lists[1:], 1):
        if samples and held == samples:
            continue
        if shared := set(held) & set(samples):
            one = next(sample for sample in samples if sample in shared)
            raise ContractError(
                f"micro-batch {number}: rank {rank} has sample {one!r} together with rank {first}, whose list "
                "is another; ranks of a ring have the same samples in the same order",
                number,
                rank,
                one,
            )
        groups.append(RingGroup(first, rank - first, held))
        first, held = rank, samples
    return [*groups, RingGroup(first, len(lists) - first, held)]


def _check_samples(schedule: SampleSchedule, number: int, group: RingGroup, seen: _Where) -> None:
    """Refuses an empty rank, a sample that is not the batch's, and one that is run twice."""
    rank = group.first
    if not group.samples:
        raise ContractError(
            f"micro-batch {number}, rank {rank} has no sample; every rank has to have one, as it would not take part "
            "in the others' collectives",
            number,
            rank,
        )
    for sample in group.samples:
        if sample not in schedule.lengths:
            raise ContractError(
                f"micro-batch {number}, rank {rank} has sample {sample!r}, which is none of the batch's",
                *_at(number, rank, sample),
            )
        if sample in seen:
            raise ContractError(
                f"micro-batch {number}, rank {rank} has sample {sample!r}, which micro-batch {seen[sample][0]}, rank "
                f"{seen[sample][1]} has too; each runs once",
                *_at(number, rank, sample),
            )
        seen[sample] = number, rank


def _at(number: int, rank: int, sample: SampleId) -> tuple[int, int, SampleId]:
    return number, rank, sample


def _check_size(number: int, group: RingGroup, contract: RingContract) -> None:
    sample, size, last = group.samples[0], group.size, group.first + group.size - 1
    ring = f"ranks {group.first} to {last} are a ring" if size > 1 else f"rank {group.first} is a ring"
    where = f"micro-batch {number}, {ring} of {size} with sample {sample!r}"
    if size < contract.least:
        raise ContractError(
            f"{where}; the contract's least is {contract.least}, so a ring has at least "
            f"{with_noun(contract.least, 'rank')}",
            *_at(number, group.first, sample),
        )
    if not isinstance(contract, AlignedPow2Rings) or size == contract.ranks:
        return
    if size & (size - 1):
        raise ContractError(
            f"{where}; its size has to be a power of two, or all {with_noun(contract.ranks, 'rank')}",
            *_at(number, group.first, sample),
        )
    if group.first % size:
        raise ContractError(
            f"{where}; it has to begin at a multiple of {size}",
            *_at(number, group.first, sample),
        )


def _check_tokens(schedule: SampleSchedule, number: int, group: RingGroup, most: int | None) -> None:
    tokens = sum(schedule.lengths[sample] for sample in group.samples)
    if most is not None and tokens > most * group.size:
        longest = max(group.samples, key=lambda sample: schedule.lengths[sample])
        raise ContractError(
            f"micro-batch {number}, rank {group.first} has {tokens:,} tokens on {group.size} rank"
            f"{'s' * (group.size > 1)}, of sample {longest!r} the most; it takes at most {most:,} a rank",
            *_at(number, group.first, longest),
        )


def _check_falling(number: int, groups: list[RingGroup]) -> None:
    for before, group in pairwise(groups):
        if group.size > before.size:
            raise ContractError(
                f"micro-batch {number}: the ring at rank {group.first} with sample {group.samples[0]!r} has "
                f"{with_noun(group.size, 'rank')} and the one before it {before.size}; with virtual stages sizes do "
                "not grow",
                *_at(number, group.first, group.samples[0]),
            )


def _check_all_there(schedule: SampleSchedule, seen: _Where) -> None:
    lost = [sample for sample in schedule.lengths if sample not in seen]
    if lost:
        more = f" and {len(lost) - 1:,} more are" if len(lost) > 1 else " is"
        raise ContractError(
            f"sample {lost[0]!r}{more} in no micro-batch and on no rank; each runs once", sample=lost[0]
        )


def _check_equal(schedule: SampleSchedule) -> None:
    counts = [sum(len(lists[rank]) for lists in schedule.micro_batches) for rank in range(schedule.ranks)]
    for rank, count in enumerate(counts):
        if count != counts[0]:
            raise ContractError(
                f"rank {rank} has {with_noun(count, 'sample')} over all micro-batches and rank 0 has {counts[0]}; all "
                "have as many",
                rank=rank,
            )


def _check_permutation(schedule: TokenPermutation, contract: EqualTokenPermutation) -> None:
    order, tokens = schedule.order, sum(schedule.lengths)
    if schedule.ranks != contract.ranks:
        raise ContractError(
            f"the schedule is for {with_noun(schedule.ranks, 'rank')}; the contract has {contract.ranks}"
        )
    if tokens % contract.ranks:
        raise ContractError(
            f"the pack has {tokens:,} tokens, which {with_noun(contract.ranks, 'rank')} cannot share evenly; pad it "
            "to a multiple"
        )
    if order.shape != (tokens,) or order.dtype.kind not in "iu":
        raise ContractError(f"order has {order.size:,} entries of {order.dtype}; it takes the {tokens:,} positions")
    wrong = np.flatnonzero((order < 0) | (order >= tokens))
    if len(wrong):
        rank = int(wrong[0]) // (tokens // contract.ranks)
        raise ContractError(
            f"order[{wrong[0]}], rank {rank}, is {order[wrong[0]]}; positions are 0 to {tokens - 1}", rank=rank
        )
    count = np.bincount(order, minlength=tokens)
    if (count != 1).any():
        position = int(np.flatnonzero(count != 1)[0])
        document = int(np.searchsorted(np.cumsum(schedule.lengths), position, side="right"))
        owners = sorted({int(at) // (tokens // contract.ranks) for at in np.flatnonzero(order == position)})
        held = f"ranks {owners} have it" if owners else "no rank has it"
        raise ContractError(
            f"position {position} of the pack, of document {document}, is {int(count[position])} times in order "
            f"({held}); every token is there once",
            rank=owners[0] if owners else None,
            sample=document,
        )
