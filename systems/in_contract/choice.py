"""Chooses among candidates by planners' estimate of a step: the fastest that fits memory is taken."""

import numpy as np

from zbench.contracts.bound import ring_sizes
from zbench.contracts.check import check_schedule
from zbench.contracts.contract import AlignedPow2Rings, Contract, RingContract, WholeOnDP
from zbench.contracts.schedule import ContractError, RingGroup, SampleSchedule, TokenPermutation
from zbench.cost.cost import Cost
from zbench.describe.units import with_noun
from zbench.passes.reverse import Mode
from zbench.plans.plan import Ints, Plan
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.common.micro_batches import fitting_tokens
from zbench.systems.in_contract.candidates import (
    Rounds,
    arranged,
    candidate_rounds,
    check_holds,
    multiplied,
    operations,
    rounds_seconds,
    shipped_rounds,
)
from zbench.systems.in_contract.laid import plans_of_rings, plans_of_whole
from zbench.systems.in_contract.permutation import permutations, plan_of_permutation
from zbench.systems.in_contract.rates import RingRates, ring_rates
from zbench.systems.in_contract.whole import check_whole, whole_schedules

HOPELESS = 1.5  # times the least estimate: of the shipped scheduler's rounds, those are not played
OPERATIONS = 400_000  # of the plans that are played at most, so that large clusters do not take seconds
SHARES = (1.0, 0.85, 0.7, 0.5, 0.35)  # of the tokens that fit a GPU: what rings receive needs room, too


def fastest_rounds(lengths: Ints, contract: RingContract, cost: Cost, backward: Mode, played: int) -> SampleSchedule:
    """Returns the rounds of rings that take least on the clock; samples are 0, 1, and so on. played: candidates of the
    estimate that are played at most, besides the shipped scheduler's.

    Raises:
        ContractError: no schedule of the contract has all samples.
    """
    check_holds(lengths, contract)
    aligned = isinstance(contract, AlignedPow2Rings)
    rates = ring_rates(lengths, ring_sizes(contract), aligned, cost, backward)
    every: list[tuple[tuple[int, float], SampleSchedule]] = []
    for share in SHARES:
        timed: list[tuple[tuple[int, float], SampleSchedule]] = []
        cap = max(share * fitting_tokens(cost), float(lengths.max()) / contract.ranks)
        cap = cap if contract.max_tokens is None else min(cap, float(contract.max_tokens))
        own = [multiplied(one, rates, contract, cap) for one in candidate_rounds(rates, contract, cap)]
        shipped = [multiplied(one, rates, contract, cap) for one in shipped_rounds(lengths, contract)]
        for rounds in _promising([one for one in own if one], [one for one in shipped if one], rates, played):
            schedule = schedule_of_rounds(rounds, lengths, contract, cost)
            if _keeps(schedule, contract):
                seconds = lack_and_seconds(plans_of_rings(schedule, cost, backward), cost)
                timed.append((seconds, schedule))
        every += timed
        if timed and fastest_fits(timed):
            break
    if not every:
        raise ContractError(
            f"no schedule was found whose micro-batches are a multiple of {contract.multiple}, every rank with a "
            f"sample and at most {contract.max_tokens} tokens (max_tokens)"
        )
    return min(every, key=lambda one: one[0])[1]


def _promising(own: list[Rounds], shipped: list[Rounds], rates: RingRates, played: int) -> list[Rounds]:
    """Returns the candidates to play: the best `played` of our own by estimate, and of the shipped scheduler's those
    that are near the best; not more than OPERATIONS together, but one at least."""
    seconds = {id(one): rounds_seconds(one, rates) for one in (*own, *shipped)}
    own = sorted(_different(own), key=lambda one: seconds[id(one)])[:played]
    if not own:
        return []
    near = [one for one in shipped if seconds[id(one)] <= HOPELESS * seconds[id(own[0])]]
    found, total = [own[0]], operations(own[0])
    for one in sorted(_different([*own, *near])[1:], key=lambda one: seconds[id(one)]):
        total += operations(one)
        if total <= OPERATIONS:
            found.append(one)
    return found


def schedule_of_rounds(rounds: Rounds, lengths: Ints, contract: RingContract, cost: Cost) -> SampleSchedule:
    """Returns rounds of groups as a schedule, each group on its ranks (zbench.systems.in_contract.candidates)."""
    per_node = cost.cluster.gpus_per_node
    placed = (
        [RingGroup(first, group.size, tuple(group.seqs)) for first, group in arranged(groups, contract, per_node)]
        for groups in rounds
    )
    return SampleSchedule.of_groups(dict(enumerate(lengths.tolist())), placed)


def _keeps(schedule: SampleSchedule, contract: Contract) -> bool:
    """Returns whether a candidate is inside the contract: the shipped scheduler's may have more than `max_tokens`."""
    try:
        check_schedule(schedule, contract)
    except ContractError:
        return False
    return True


def _different(candidates: list[Rounds]) -> list[Rounds]:
    """Returns the candidates without repetitions, in order."""
    found = {
        tuple(tuple((group.size, tuple(sorted(group.seqs))) for group in groups) for groups in rounds): rounds
        for rounds in reversed(candidates)
    }
    return list(reversed(found.values()))


def fastest_fits(timed: list[tuple[tuple[int, float], SampleSchedule]]) -> bool:
    """Returns whether the fastest of the last ones played has room; else there may be faster ones of fewer tokens a
    rank than what fits so far. timed: (bytes that are lacking, seconds) and schedule of each."""
    return min(timed, key=lambda one: one[0][1])[0][0] == 0


def lack_and_seconds(plans: tuple[Plan, ...], cost: Cost) -> tuple[int, float]:
    """Returns the bytes that the fullest GPU lacks for a step, and its seconds, by planners' estimate."""
    estimate = StepEstimate(cost)
    return estimate.lacking_bytes(plans), estimate.seconds(plans)


def fastest_whole(lengths: Ints, contract: WholeOnDP, cost: Cost) -> SampleSchedule:
    """Returns the packs of whole samples that take least on the clock; samples are 0, 1, and so on.

    Raises:
        ContractError: no schedule of the contract has all samples, or none was found.
    """
    check_whole(lengths, contract)
    degree = cost.cluster.num_ranks // contract.ranks
    every: list[tuple[tuple[int, float], SampleSchedule]] = []
    for share in SHARES:
        timed: list[tuple[tuple[int, float], SampleSchedule]] = []
        cap = max(int(share * fitting_tokens(cost) * degree), int(lengths.max()))
        cap = cap if contract.max_tokens is None else min(cap, contract.max_tokens)
        for schedule in whole_schedules(lengths, contract, cost, cap):
            if _keeps(schedule, contract) and all(schedule != one for _, one in [*every, *timed]):
                timed.append((lack_and_seconds(plans_of_whole(schedule, cost), cost), schedule))
        every += timed
        if timed and fastest_fits(timed):
            break
    if not every:
        raise ContractError(
            f"no schedule was found that gives {with_noun(contract.ranks, 'data-parallel rank')} a sample in every "
            f"micro-batch and packs of at most {contract.max_tokens or cap:,} tokens"
        )
    return min(every, key=lambda one: one[0])[1]


def fastest_permutation(lengths: Ints, cost: Cost, backward: Mode = "regather") -> TokenPermutation:
    """Returns the permutation of a pack's tokens that takes least on the clock; the cluster's ranks divide them.
    backward: what becomes of gathered kv."""
    seqs = np.arange(len(lengths))
    timed = [
        (lack_and_seconds((plan_of_permutation(one, seqs, cost, backward),), cost), one)
        for one in permutations(lengths, cost.cluster.num_ranks, cost)
    ]
    return min(timed, key=lambda one: one[0])[1]
