"""Numbers of docs/contracts.md: `python tests/bench/contracts.py fuzz [END] [--from BEGIN]` and `... costs [NODES]`
(simulated).

fuzz: batches BEGIN to END - 1, each of its own seed: random lengths, limits and 2 to 64 ranks (whole samples: 1 to 8),
any number of them; every candidate of the planners of all four contracts is held to its contract, the schedules that
frameworks' own rules would make included, which may break it and are then not played. Which of whole samples'
candidates is the fastest is played in every tenth batch. Counts are printed as it goes, and on Ctrl-C.

costs: in every cell of docs/standing.md of so many nodes, how near the bound
of any plan the bound of Megatron-LM's contract is, the planner in it, the shipped scheduler and nodewise; three batches
a cell.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from hydra import compose, initialize_config_dir

from zbench.contracts.bound import contract_bound_seconds, ring_sizes
from zbench.contracts.check import check_schedule
from zbench.contracts.contract import AlignedPow2Rings, AnyRings, Contract, EqualTokenPermutation, WholeOnDP
from zbench.contracts.schedule import ContractError, SampleSchedule, Schedule
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.model import Model
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.run.warm import warm
from zbench.simulated.executor import Simulated
from zbench.systems.dynamic_cp import DynamicCP
from zbench.systems.in_contract.candidates import (
    SHIPPED,
    candidate_rounds,
    check_holds,
    multiplied,
    shipped_rounds,
)  # fmt: skip
from zbench.systems.in_contract.choice import fastest_whole, schedule_of_rounds
from zbench.systems.in_contract.permutation import check_even, permutations
from zbench.systems.in_contract.planner import InContract
from zbench.systems.in_contract.rates import ring_rates
from zbench.systems.in_contract.whole import check_whole, whole_schedules

CONF = Path(__file__).parents[2] / "conf"
WORKLOADS = (
    "longtail_128k",
    "arxiv",
    "github",
    "wikipedia",
    "prolong64k",
    "byted_2m",
    "pystdlib",
    "fixed_128k",
    "fixed_512",
)
CLUSTERS = ("a800_4x8", "h800_4x8", "h200_4x8")
BATCHES = 3
TOLD, PLAYED = 1000, 10  # batches of the fuzz between two lines; of whole samples one in so many is played
GPU = Device("a100", 312e12, 40e9, 1.24e12, 2e11, 230e12, 217e12, 196e12, 5e-6, 6e-5)
MODEL = Model("m", 4, 4096, 32, 32, 128, 11008, 32000, sharding="zero3")


@dataclass
class Counts:
    """The counts of what was found so far.

    outside: schedules of frameworks' rules that broke their contract; none: candidates that had no multiple of
    micro-batches.
    """

    begin: int
    batches: int = 0
    refused: int = 0
    schedules: int = 0
    micro_batches: int = 0
    outside: int = 0
    none: int = 0

    def __str__(self) -> str:
        return (
            f"batches {self.begin:,} to {self.begin + self.batches - 1:,}: {self.batches:,}, {self.refused:,} of them "
            f"refused in a sentence; {self.schedules:,} schedules of {self.micro_batches:,} micro-batches kept to "
            f"their contracts, {self.outside:,} of other schedulers' did not and are not played, {self.none:,} "
            f"candidates had no multiple of micro-batches; {time.process_time():.0f} s of the processor"
        )


def fuzz(begin: int, end: int) -> None:
    """Prints how many batches and schedules kept to their contracts; the first that does not ends it."""
    counts = Counts(begin)
    try:
        for number in range(begin, end):
            _fuzz_batch(number, counts)
            counts.batches += 1
            if counts.batches % TOLD == 0:
                print(counts, flush=True)
    except KeyboardInterrupt:
        print("stopped", flush=True)
    print(counts, flush=True)


def _fuzz_batch(number: int, counts: Counts) -> None:
    rng = np.random.default_rng([number])
    contract, lengths = _contract(rng), _lengths(rng)
    per_node = int(rng.choice([n for n in range(1, 9) if contract.ranks % n == 0]))
    cluster = Cluster("c", contract.ranks // per_node, per_node, per_node, 25e9, 0.8, 1.5e-5, 2e11, 0.6, 1e-5, GPU)
    cap = max(float(rng.integers(1, 20_000)), float(lengths.max()) / contract.ranks)
    try:
        for made, is_own in _candidates(lengths, contract, Cost(cluster, MODEL), cap, number % PLAYED == 0):
            if made is None:
                counts.none += 1
                continue
            try:
                check_schedule(made, contract)
            except ContractError:
                if is_own:
                    raise AssertionError(f"batch {number}: {contract}") from None
                counts.outside += 1
                continue
            counts.schedules += 1
            counts.micro_batches += len(made.micro_batches) if isinstance(made, SampleSchedule) else 1
    except ContractError:
        counts.refused += 1


def _candidates(
    lengths: np.ndarray, contract: Contract, cost: Cost, cap: float, is_played: bool
) -> Iterator[tuple[Schedule | None, bool]]:
    """Yields (candidate of the planner, None where none has the multiple; whether it is the planner's own, and none
    that a framework's scheduler would make). is_played: the choice among whole samples' candidates, too.

    Raises:
        ContractError: no schedule of the contract holds the lengths.
    """
    if isinstance(contract, EqualTokenPermutation):
        check_even(lengths, contract.ranks)
        yield from ((one, True) for one in permutations(lengths, contract.ranks, cost))
        return
    capped = cap if contract.max_tokens is None else min(cap, float(contract.max_tokens))
    if isinstance(contract, WholeOnDP):
        check_whole(lengths, contract)
        yield from ((one, False) for one in whole_schedules(lengths, contract, cost, max(1, int(capped))))
        if is_played:
            yield fastest_whole(lengths, contract, cost), True
        return
    check_holds(lengths, contract)
    rates = ring_rates(lengths, ring_sizes(contract), isinstance(contract, AlignedPow2Rings), cost, "carry")
    for of, is_own in ((candidate_rounds(rates, contract, capped), True), (shipped_rounds(lengths, contract), False)):
        for rounds in of:
            whole = multiplied(rounds, rates, contract, capped)
            yield (None if whole is None else schedule_of_rounds(whole, lengths, contract, cost)), is_own


def _contract(rng: np.random.Generator) -> Contract:
    ranks, which = int(rng.integers(2, 65)), rng.random()
    if which < 0.05:
        return EqualTokenPermutation(ranks)
    if which < 0.15:
        limit = None if rng.random() < 0.5 else int(np.exp(rng.uniform(0, 13)))
        return WholeOnDP(int(rng.integers(1, 9)), bool(rng.random() < 0.3), limit, int(rng.choice([1, 1, 2, 3])))
    kind = AnyRings if which < 0.4 else AlignedPow2Rings
    limit = None if rng.random() < 0.5 else int(np.exp(rng.uniform(0, 10)))
    return kind(ranks, limit, int(rng.integers(1, min(ranks, 5) + 1)), int(rng.choice([1, 1, 1, 2, 3, 4])))


def _lengths(rng: np.random.Generator) -> np.ndarray:
    """Short ones, a long tail, all equal, a giant among short ones, or ones and twos; 1 to 64 of them."""
    count, kind = int(rng.integers(1, 65)), int(rng.integers(5))
    if kind == 0:
        found = rng.integers(1, 200, count)
    elif kind == 1:
        found = np.minimum(rng.lognormal(7, 1.7, count), 300_000)
    elif kind == 2:
        found = np.full(count, rng.integers(1, 20_000))
    elif kind == 3:
        found = np.concatenate([rng.integers(1, 300, count), rng.integers(1, 400_000, 1)])
    else:
        found = rng.integers(1, 3, count)
    return np.maximum(found.astype(np.int64), 1)


def costs(nodes: int) -> None:
    """Prints a row of the table for every cell, and what they come to."""
    print(
        "| cluster | workload | contract's bound | planner | shipped, best limit | shipped, default | nodewise "
        "| planner / shipped best | planner / default | ms |\n|---|---|---|---|---|---|---|---|---|---|"
    )
    best, default, spent, means = [], [], [], []
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for cluster in CLUSTERS:
            for workload in WORKLOADS:
                cells = list(_cell([f"cluster={cluster}", f"cluster.num_nodes={nodes}", f"workload={workload}"]))
                bound, contract, own, nodewise = (sum(row[at] for row in cells) for at in range(4))
                shipped = [sum(row[4 + at] for row in cells) for at in range(len(SHIPPED))]
                took = float(np.median([row[-1] for row in cells]))
                ratios = [bound / one for one in (contract, own, min(shipped), shipped[0], nodewise)]
                means.append(ratios)
                best.append(min(shipped) / own)
                default.append(shipped[0] / own)
                spent.append(took)
                told = " | ".join(f"{one:.3f}" for one in ratios)
                print(
                    f"| {cluster} | {workload} | {told} | {best[-1]:.2f} | {default[-1]:.2f} | {took:.0f} |", flush=True
                )
    told = " | ".join(f"{one:.3f}" for one in np.exp(np.mean(np.log(means), axis=0)))
    finite = [one for one in default if np.isfinite(one)]
    print(f"| all | geometric mean | {told} | {_mean(best):.2f} | {_mean(finite):.2f} | {np.median(spent):.0f} |")
    print(
        f"least planner / shipped best {min(best):.3f}; of {len(default)} cells the default fits memory in "
        f"{len(finite)}"
    )


def _mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def _cell(overrides: list[str]) -> Iterator[list[float]]:
    """Yields, for every batch, seconds: of the bound, of the contract's bound, of the planner, of nodewise, of the
    shipped scheduler at each of its limits (infinite where it does not fit); and milliseconds of processor time."""
    config = compose("config", [*overrides, "tracker=none", "system=nodewise"])
    parts = Parts.of(config, Settings.of(config))
    cost, ranks = parts.cost, parts.cost.cluster.num_ranks
    nodewise, mine = make_system(config, cost), InContract(cost)
    for system in (nodewise, mine):
        warm(system)
    for step in range(BATCHES):
        batch = parts.workload.batch(step)
        begin = time.process_time()
        plans = mine.plan(batch)
        spent = 1e3 * (time.process_time() - begin)
        even = max(1, batch.num_tokens // ranks)
        shipped = [DynamicCP(cost, pack_tokens=times * even).plan(batch) for times in SHIPPED]
        played = [_seconds(batch, one, cost) for one in (plans, nodewise.plan(batch), *shipped)]
        contract = contract_bound_seconds(batch, AlignedPow2Rings(ranks), cost)
        yield [Simulated(cost).bound_seconds(batch), contract, *played, spent]


def _seconds(batch: Batch, plans: tuple, cost: Cost) -> float:
    result = Simulated(cost).step(batch, plans)
    return float("inf") if result.out_of_memory else result.seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ways = parser.add_subparsers(dest="way", required=True)
    fuzzed = ways.add_parser("fuzz")
    fuzzed.add_argument("end", type=int, nargs="?", default=100_000)
    fuzzed.add_argument("--from", type=int, dest="begin", default=0)
    ways.add_parser("costs").add_argument("nodes", type=int, nargs="?", default=4)
    given = parser.parse_args()
    if given.way == "fuzz":
        fuzz(given.begin, given.end)
    else:
        costs(given.nodes)


if __name__ == "__main__":
    main()
