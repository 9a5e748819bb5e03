"""The planner inside a contract: the schedule that a framework's engine runs fastest, by the cost model and the clock.

docs/contracts.md describes contracts and planner. A schedule is a function of lengths, contract and cost alone, so that
every rank of a job finds the same one by itself.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from zbench.contracts.bound import check_ranks
from zbench.contracts.check import check_schedule
from zbench.contracts.contract import (
    CONTRACTS,
    AlignedPow2Rings,
    AnyRings,
    Contract,
    EqualTokenPermutation,
    RingContract,
    WholeOnDP,
)
from zbench.contracts.schedule import Schedule
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_boolean, check_whole_number
from zbench.describe.units import with_noun
from zbench.passes.reverse import Mode, check_mode
from zbench.plans.plan import Ints, Plan
from zbench.systems.common.mesh_plans import holding_degree
from zbench.systems.common.micro_batches import fitting
from zbench.systems.in_contract.choice import fastest_permutation, fastest_rounds, fastest_whole
from zbench.systems.in_contract.groups import fastest_groups
from zbench.systems.in_contract.laid import plans_of_rings, plans_of_whole
from zbench.systems.in_contract.permutation import check_even, padded, plan_of_permutation

PLAYED = 6  # candidates of the estimate that the clock decides between; a judgement


def schedule_lengths(
    lengths: Ints, contract: Contract, cost: Cost, backward: Mode = "carry", played: int = PLAYED
) -> Schedule:
    """Returns the schedule of the contract that is fastest on the clock; samples are 0, 1, and so on.

    lengths: int64 [num_samples]; of a permutation the documents of one pack, in order. cost: of the cluster with the
    contract's ranks, or, of whole samples, as many GPUs for each of them. backward: what becomes of received kv in
    rings. played: candidates that the clock decides between.

    Raises:
        ContractError: no schedule of the contract holds them.
        ValueError: the contract is for other ranks than the cluster's.
    """
    check_ranks(contract, cost)
    schedule: Schedule
    if isinstance(contract, WholeOnDP):
        schedule = fastest_whole(lengths, contract, cost)
    elif isinstance(contract, EqualTokenPermutation):
        check_even(lengths, contract.ranks)
        schedule = fastest_permutation(lengths, cost)
    else:
        schedule = fastest_rounds(lengths, contract, cost, backward, played)
    check_schedule(schedule, contract)
    return schedule


@dataclass(frozen=True, slots=True)
class InContract:
    """The planner inside a contract as a system. contract: its name (zbench.contracts.contract). max_tokens,
    least_degree, micro_batch_multiple, equal_size: the contract's. degree: with whole_on_dp, GPUs of a data-parallel
    rank, which exchange heads; None: the fewest that hold a sequence of `context_limit` tokens and leave every rank a
    sample. With equal_token_permutation, ranks of a context-parallel group; None: all. received_kv: what becomes of it
    in rings; of gathered keys, which no chain carries back, "carry" is "regather". played_candidates: that the clock
    decides between. context_limit: tokens of the longest sequence; the run gives its workload's.

    Permutations are of packs that fit memory, padded to as many tokens for every rank of a group.

    Raises:
        ValueError: a key has no such value.
    """

    cost: Cost
    contract: str = "aligned_pow2_rings"
    max_tokens: int | None = None
    least_degree: int = 1
    micro_batch_multiple: int = 1
    degree: int | None = None
    equal_size: bool = False
    received_kv: Mode = "carry"
    played_candidates: int = PLAYED
    context_limit: int | None = None

    def __post_init__(self) -> None:
        check_mode("system.received_kv", self.received_kv)
        ranks = self.cost.cluster.num_ranks
        for name, most, or_null in (
            ("max_tokens", None, True),
            ("least_degree", ranks, False),
            ("micro_batch_multiple", None, False),
            ("degree", ranks, True),
            ("played_candidates", None, False),
            ("context_limit", None, True),
        ):
            check_whole_number(f"system.{name}", getattr(self, name), 1, most, or_null)
        check_boolean("system.equal_size", self.equal_size)
        if self.contract not in CONTRACTS:
            raise ValueError(f"system.contract is {self.contract!r}; it takes one of {', '.join(CONTRACTS)}")
        if self.degree is not None and ranks % self.degree:
            raise ValueError(
                f"system.degree is {self.degree}; it takes a divisor of the {with_noun(ranks, self.cost.owner)}, "
                "or null"
            )

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        kind = CONTRACTS[self.contract]
        if kind is EqualTokenPermutation and self.degree is not None:
            return fastest_groups(batch, self.degree, self.cost, self._gathered_kv())
        if kind is EqualTokenPermutation:
            return fitting(batch.lengths, self.cost, lambda seqs, _: self._permuted(batch.lengths, seqs))
        if kind is WholeOnDP:
            ranks = self.cost.cluster.num_ranks // self._degree_of(batch)
            whole = fastest_whole(
                batch.lengths, WholeOnDP(ranks, self.equal_size, self.max_tokens, self.micro_batch_multiple), self.cost
            )
            return plans_of_whole(whole, self.cost)
        schedule = fastest_rounds(batch.lengths, self._rings(), self.cost, self.received_kv, self.played_candidates)
        return plans_of_rings(schedule, self.cost, self.received_kv)

    def _rings(self) -> RingContract:
        kind = AlignedPow2Rings if self.contract == "aligned_pow2_rings" else AnyRings
        return kind(self.cost.cluster.num_ranks, self.max_tokens, self.least_degree, self.micro_batch_multiple)

    def _degree_of(self, batch: Batch) -> int:
        """Returns the GPUs of a data-parallel rank."""
        if self.degree is not None:
            return self.degree
        ranks, longest = self.cost.cluster.num_ranks, self.context_limit or batch.num_tokens
        least = holding_degree(longest, "ulysses", ranks, self.cost)
        wide = (one for one in range(least, ranks) if ranks % one == 0 and len(batch.lengths) * one >= ranks)
        return next(wide, ranks)

    def _permuted(self, lengths: Ints, seqs: Ints) -> Iterator[Plan]:
        pack = padded(lengths[seqs], self.cost.cluster.num_ranks)
        order = fastest_permutation(pack, self.cost, self._gathered_kv())
        yield plan_of_permutation(order, seqs, self.cost, self._gathered_kv())

    def _gathered_kv(self) -> Mode:
        """Returns what becomes of gathered kv."""
        return "keep" if self.received_kv == "keep" else "regather"
