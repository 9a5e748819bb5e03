"""Hybrid data parallelism by Megatron-LM's own scheduler, beside systems/hybrid_dp.py, which re-tells its policy.

Which sequences run together, on how many ranks, in which round is what `BalancedCPScheduler` of the installed
megatron-core says; micro-batches and rings are made of that as in systems/hybrid_dp.py. Two limits are put
here, as it fails without: a sequence that needs more than all ranks gets all of them; and of ranks that are no
power of two it is told the power below, the narrowest groups taking the rest. Needs the extra `peers`.
Source: megatron-core 0.16, megatron/core/pipeline_parallel/hybrid_cp_schedule.py. Pure to import: megatron-core,
which imports torch, is imported when the system is made.
"""

import warnings
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from typing import Any, ClassVar

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_whole_number
from zbench.passes.reverse import Mode, check_mode
from zbench.plans.plan import Ints, Plan
from zbench.systems.hybrid_dp import Group, fastest_stretch, fill_idle_ranks, schedule_plans

MODULE = "megatron.core.pipeline_parallel.hybrid_cp_schedule"


@dataclass(frozen=True, slots=True)
class HybridDPMegatron:
    """Megatron-LM's hybrid data parallelism as a system: the rounds are those of its own scheduler. tokens_per_rank:
    longest stretch of a sequence a rank takes before it is cut wider; None: for every batch the fastest predicted, as
    in systems/hybrid_dp.py. received_kv: what becomes of it until the backward.

    Raises:
        ValueError: tokens_per_rank is not a whole number of at least 1, or megatron-core is not there.
    """

    packages: ClassVar[tuple[str, ...]] = ("megatron-core",)  # a run's fingerprint has their versions
    cost: Cost
    tokens_per_rank: int | None = None
    received_kv: Mode = "carry"

    def __post_init__(self) -> None:
        check_mode("system.received_kv", self.received_kv)
        check_whole_number("system.tokens_per_rank", self.tokens_per_rank, 1, or_null=True)
        _scheduler()

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        ranks, lengths = self.cost.cluster.num_ranks, batch.lengths
        return fastest_stretch(
            self.tokens_per_rank,
            batch,
            self.cost,
            lambda limit: schedule_plans(
                lengths, scheduler_rounds(lengths, limit, ranks), limit, self.cost, self.received_kv
            ),
        )


def scheduler_rounds(lengths: Ints, limit: int, num_ranks: int) -> list[list[Group]]:
    """Returns the scheduler's rounds of groups, in order of their ranks; a group's load is sum of length^2 over its
    ranks."""
    world = 1 << (num_ranks.bit_length() - 1)
    samples = [(seq, int(length)) for seq, length in enumerate(lengths)]
    _, schedule = _scheduler()(limit, _Ranks(world)).get_groups_and_subsamples(samples, None)
    return [_groups(seqs_of_rank, lengths, num_ranks - world) for seqs_of_rank in schedule]


def _groups(seqs_of_rank: list[list[int]], lengths: Ints, free: int) -> list[Group]:
    """Forms groups of neighbouring ranks with the same sequences."""
    groups = []
    for seqs, members in groupby(seqs_of_rank):
        assert seqs, "the scheduler left a rank idle"
        size = len(list(members))
        groups.append(Group(size, list(seqs), sum(float(lengths[seq]) ** 2 for seq in seqs) / size))
    fill_idle_ranks(groups, free)
    return groups


@dataclass(frozen=True, slots=True)
class _Ranks:
    """The one thing the scheduler asks of its process group."""

    count: int

    def size(self) -> int:
        return self.count


def _scheduler() -> Any:
    """Returns BalancedCPScheduler, with a sequence's ranks limited to those there are (as MagiAttention limits them).

    Importing it takes seconds, and it warns of every accelerated package it does without.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scheduler: Any = import_module(MODULE).BalancedCPScheduler
    except ImportError as error:
        raise ValueError(
            f"system is hybrid_dp_megatron; it takes its schedule from megatron-core 0.16 or later, which the extra "
            f"'peers' installs and which cannot be imported here: {error}"
        ) from error

    class Limited(scheduler):  # type: ignore[misc]
        def gpus_needed(self, seq_len: int) -> int:
            return min(int(super().gpus_needed(seq_len)), int(self.total_hdp_gpus))

    return Limited
