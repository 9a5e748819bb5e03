"""Schedules as frameworks exchange them: which samples every rank runs in every micro-batch, or who owns which tokens.

A schedule says less than a plan (zbench.plans.plan): not what is sent, as the framework's engine decides that. Pure.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.units import with_noun

SampleId: TypeAlias = int | str
SHOWN = 8  # micro-batches, groups of each and samples of each group that text for people has


class ContractError(ValueError):
    """A schedule that an engine could not run, or lengths that no schedule of a contract holds; one sentence.

    micro_batch, rank, sample: where it breaks the contract; None where it is not of a single one.
    """

    def __init__(
        self, message: str, micro_batch: int | None = None, rank: int | None = None, sample: SampleId | None = None
    ) -> None:
        super().__init__(message)
        self.micro_batch, self.rank, self.sample = micro_batch, rank, sample


@dataclass(frozen=True, slots=True)
class RingGroup:
    """Consecutive ranks, `size` of them from `first` on, that run `samples` as one pack: each sample cut over all."""

    first: int
    size: int
    samples: tuple[SampleId, ...]


@dataclass(frozen=True)
class SampleSchedule:
    """Micro-batches of whole samples or rings, in the order they run.

    lengths: tokens of every sample of the batch, by its id. micro_batches: [micro-batch][rank], the ids of the samples
    that the rank runs in it, in their order in the pack; ranks of a ring have the same ones. This is the form of
    Megatron's `sample_id_groups`. Whether it keeps to a contract is for zbench.contracts.check to say.
    """

    lengths: Mapping[SampleId, int]
    micro_batches: tuple[tuple[tuple[SampleId, ...], ...], ...]

    @staticmethod
    def of(samples: Sequence[int] | Iterable[tuple[SampleId, int]], micro_batches: Any) -> "SampleSchedule":
        """Makes a schedule of what a framework has. samples: (id, tokens) of each, or tokens alone, whose ids are 0, 1,
        and so on. micro_batches: lists in lists, as above.

        Raises:
            ContractError: they are no such lists, an id is there twice, or a length is no whole number of at least 1.
        """
        return SampleSchedule(_lengths(samples), _micro_batches(micro_batches))

    @staticmethod
    def of_groups(lengths: Mapping[SampleId, int], rounds: Iterable[Iterable[RingGroup]]) -> "SampleSchedule":
        """Makes a schedule of rounds of ring groups, which lie side by side and together have all ranks."""
        return SampleSchedule(
            lengths, tuple(tuple(group.samples for group in groups for _ in range(group.size)) for groups in rounds)
        )

    @cached_property
    def ranks(self) -> int:
        """The number of ranks that the first micro-batch has a list for."""
        return len(self.micro_batches[0]) if self.micro_batches else 0

    def groups(self) -> tuple[tuple[RingGroup, ...], ...]:
        """Returns every micro-batch's groups: runs of neighbouring ranks with the same samples."""
        return tuple(tuple(ring_groups(lists)) for lists in self.micro_batches)

    def lists(self) -> list[list[list[SampleId]]]:
        """Returns micro_batches as lists, as Megatron's schedulers return them."""
        return [[list(samples) for samples in ranks] for ranks in self.micro_batches]

    def __str__(self) -> str:
        head = (
            f"schedule of {with_noun(len(self.lengths), 'sample')}, {with_noun(sum(self.lengths.values()), 'token')}, "
            f"for {with_noun(self.ranks, 'rank')}"
        )
        lines = [f"{head}: {with_noun(len(self.micro_batches), 'micro-batch')}"]
        for number, groups in enumerate(self.groups()[:SHOWN]):
            told = [f"{_ranks(one)} {_some(one.samples)}" for one in groups[:SHOWN]]
            more = f"; {len(groups) - SHOWN} more groups" if len(groups) > SHOWN else ""
            lines.append(f"  micro-batch {number}: {'; '.join(told)}{more}")
        if len(self.micro_batches) > SHOWN:
            lines.append(f"  {len(self.micro_batches) - SHOWN} more")
        return "\n".join(lines)


@dataclass(frozen=True)
class TokenPermutation:
    """An order of a pack's tokens, of which every rank owns as many in a row.

    lengths: tokens of the pack's documents, in order. order: int64 [num_tokens], the position in the pack of each token
    in the new order; rank r owns the r-th of `ranks` equal parts. This is the form of PyTorch's load balancers.
    """

    lengths: tuple[int, ...]
    ranks: int
    order: Ints

    def __str__(self) -> str:
        each = len(self.order) // self.ranks
        tokens, documents = with_noun(len(self.order), "token"), with_noun(len(self.lengths), "document")
        return f"order of {tokens} of {documents}: {each:,} on each of {with_noun(self.ranks, 'rank')}"

    def owned(self, rank: int) -> Ints:
        """Returns the positions of a rank's tokens, int64 [num_tokens / ranks]."""
        each = len(self.order) // self.ranks
        return self.order[rank * each : (rank + 1) * each]


Schedule: TypeAlias = SampleSchedule | TokenPermutation


def _ranks(group: RingGroup) -> str:
    last = group.first + group.size - 1
    return f"rank {last} has" if group.size == 1 else f"ranks {group.first} to {last} have"


def _some(samples: Sequence[SampleId]) -> str:
    more = f" and {len(samples) - SHOWN} more" if len(samples) > SHOWN else ""
    return f"{', '.join(map(str, samples[:SHOWN])) or 'none'}{more}"


def ring_groups(lists: Sequence[tuple[SampleId, ...]]) -> list[RingGroup]:
    """Returns runs of neighbouring ranks with the same samples as groups. lists: [rank], the samples of each."""
    found: list[RingGroup] = []
    for rank, samples in enumerate(lists):
        if found and found[-1].samples == samples:
            found[-1] = RingGroup(found[-1].first, found[-1].size + 1, samples)
        else:
            found.append(RingGroup(rank, 1, samples))
    return found


def _lengths(samples: Sequence[int] | Iterable[tuple[SampleId, int]]) -> dict[SampleId, int]:
    found: dict[SampleId, int] = {}
    for number, given in enumerate(_listed(samples, "samples")):
        pair = isinstance(given, tuple | list) and len(given) == 2
        name, tokens = (given[0], given[1]) if pair else (number, given)
        sample, length = _sample(name, f"samples[{number}]"), _whole(tokens)
        if length is None or length < 1:
            raise ContractError(
                f"sample {sample!r} has {tokens!r:.60} tokens; it takes a whole number of at least 1", sample=sample
            )
        if sample in found:
            raise ContractError(f"sample {sample!r} is twice among the samples; every one has an id of its own")
        found[sample] = length
    return found


def _micro_batches(given: Any) -> tuple[tuple[tuple[SampleId, ...], ...], ...]:
    return tuple(
        tuple(
            tuple(
                _sample(one, f"micro-batch {m}, rank {rank}")
                for one in _listed(samples, f"micro-batch {m}, rank {rank}")
            )
            for rank, samples in enumerate(_listed(ranks, f"micro-batch {m}"))
        )
        for m, ranks in enumerate(_listed(given, "micro_batches"))
    )


def _listed(given: Any, where: str) -> list[Any]:
    if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
        raise ContractError(f"{where} is {given!r:.60}; it takes a list")
    return list(given)


def _sample(given: Hashable, where: str) -> SampleId:
    if isinstance(given, str):
        return given
    number = _whole(given)
    if number is None:
        raise ContractError(f"{where} has {given!r:.60}, which is no sample's id: a whole number or text")
    return number


def _whole(given: object) -> int | None:
    """Returns a whole number of Python, of what is one of Python or numpy; else None."""
    if isinstance(given, bool) or not isinstance(given, int | np.integer):
        return None
    return int(given)
