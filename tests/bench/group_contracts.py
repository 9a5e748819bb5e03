"""Tables of docs/contracts.md for engines with static groups: `python tests/bench/group_contracts.py verl [NODES]`,
and `torchtitan` or `torch` in its place (simulated).

verl: whole samples on data-parallel ranks of `degree` GPUs. torchtitan: documents whole on context-parallel groups of
`degree` GPUs, whose ranks gather all keys of a pack and own as many of its tokens; every group has as many, so a degree
is one at which an even share of the batch holds the longest document. torch: any degree that holds it. A row is a cell
of docs/standing.md, three batches. Every planner and every scheduler has, in hindsight, the settings that are fastest
in the cell, of those that zbench advise tries; `default` has those that a user starts from.
"""

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from hydra import compose, initialize_config_dir

from zbench.advise.framework import degrees
from zbench.advise.torchtitan import cp_settings
from zbench.advise.verl import balance_settings
from zbench.contracts.bound import contract_bound_seconds
from zbench.contracts.contract import Contract, EqualTokenPermutation, WholeOnDP
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.interfaces.protocols import System
from zbench.passes.reverse import Mode
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.run.warm import warm
from zbench.simulated.executor import Simulated
from zbench.systems.in_contract.planner import InContract
from zbench.systems.torch_cp.balancers import BALANCERS
from zbench.systems.torch_cp.planner import TorchCP
from zbench.systems.verl_balance import VerlBalance

CONF = Path(__file__).parents[2] / "conf"
CLUSTERS = ("a800_4x8", "h800_4x8", "h200_4x8")
LONG_TAILED = ("longtail_128k", "arxiv", "github", "wikipedia", "prolong64k", "byted_2m", "pystdlib")
WORKLOADS = (*LONG_TAILED, "fixed_128k", "fixed_512")
BATCHES = 3
VERL_LIMIT = 16384  # tokens of a GPU: ppo_max_token_len_per_gpu of verl's trainer/config/actor (0.9.1)
Keys = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cell:
    """The batches of a cell. longest: tokens of a sequence that the workload may have."""

    cost: Cost
    batches: tuple[Batch, ...]
    longest: int
    nodewise: System

    def seconds(self, system: System) -> float:
        """Returns the seconds of all batches; infinite where one does not fit, or cannot be planned."""
        total = 0.0
        for batch in self.batches:
            try:
                result = Simulated(self.cost).step(batch, system.plan(batch))
            except ValueError:
                return float("inf")
            total += float("inf") if result.out_of_memory else result.seconds
        return total

    def best(self, systems: Iterable[System]) -> float:
        return min(map(self.seconds, systems), default=float("inf"))


def cells(nodes: int) -> Iterator[tuple[str, str, Cell]]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for cluster in CLUSTERS:
            for workload in WORKLOADS:
                over = [f"cluster={cluster}", f"cluster.num_nodes={nodes}", f"workload={workload}", "tracker=none"]
                config = compose("config", [*over, "system=nodewise"])
                parts = Parts.of(config, Settings.of(config))
                batches = tuple(parts.workload.batch(step) for step in range(BATCHES))
                tokens, keys = batches[0].num_tokens, config.workload
                longest = min(tokens, int(keys.get("length", tokens)), int(keys.context_limit))
                yield cluster, workload, Cell(parts.cost, batches, longest, make_system(config, parts.cost))


def verl_systems(cell: Cell) -> tuple[list[InContract], list[VerlBalance], VerlBalance]:
    """Returns planners inside the contract, verl's balancing with its settings, and with what a user starts from."""
    cost, tokens = cell.cost, cell.batches[0].num_tokens
    settings = balance_settings(cost, tokens, cell.longest)
    wide = sorted({int(one["degree"]) for one in settings})
    planners = [InContract(cost, contract="whole_on_dp", degree=degree) for degree in wide]
    default = VerlBalance(cost, pack_tokens=VERL_LIMIT, context_limit=cell.longest)
    return planners, [VerlBalance(cost, **one) for one in settings], default


def torch_systems(cell: Cell, is_even: bool) -> tuple[list[InContract], list[TorchCP], TorchCP]:
    """As verl_systems: PyTorch's balancers, of which a user starts from head-tail in the narrowest groups. is_even:
    only degrees at which an even share of a batch's tokens holds the longest sequence, as torchtitan asks for."""
    cost, tokens = cell.cost, cell.batches[0].num_tokens
    wide = degrees(cost, cell.longest, cost.cluster.num_ranks)
    if is_even:
        wide = sorted({int(one["degree"]) for one in cp_settings("headtail", cost, tokens, cell.longest)})
    modes: tuple[Mode, ...] = ("keep", "regather")  # without and with recomputation of what is gathered
    own = [InContract(cost, "equal_token_permutation", degree=one, received_kv=kv) for one in wide for kv in modes]
    shipped = [TorchCP(cost, one, degree, received_kv=kv) for degree in wide for one in BALANCERS for kv in modes]
    default = TorchCP(cost, degree=wide[0]) if is_even else TorchCP(cost, context_limit=cell.longest)
    return own, shipped, default


SYSTEMS: dict[str, Callable[[Cell], tuple[Sequence[InContract], Sequence[System], System]]] = {
    "verl": verl_systems,
    "torchtitan": partial(torch_systems, is_even=True),
    "torch": partial(torch_systems, is_even=False),
}


def contract_of(framework: str, degree: int, num_ranks: int) -> Contract:
    return WholeOnDP(num_ranks // degree) if framework == "verl" else EqualTokenPermutation(degree)


def table(framework: str, nodes: int) -> None:
    """Prints a row for every cell, and what they come to."""
    print(
        "| cluster | workload | degree | contract's bound | planner | shipped, best settings | shipped, default "
        "| nodewise | planner / shipped best | planner / default | ms |\n|---|---|---|---|---|---|---|---|---|---|---|"
    )
    means, gains, spent = [], [], []
    for cluster, workload, cell in cells(nodes):
        planners, shipped, default = SYSTEMS[framework](cell)
        for system in (cell.nodewise, planners[0]):
            warm(system)
        own, planner, took = _planned(cell, planners)
        inside = contract_of(framework, planner.degree or 1, cell.cost.cluster.num_ranks)
        limit = sum(contract_bound_seconds(batch, inside, cell.cost) for batch in cell.batches)
        any_plan = sum(Simulated(cell.cost).bound_seconds(batch) for batch in cell.batches)
        seconds = (limit, own, cell.best(shipped), cell.seconds(default), cell.seconds(cell.nodewise))
        means.append([any_plan / one for one in seconds])
        gains.append([seconds[2] / own, seconds[3] / own])
        spent.append(took)
        told = " | ".join(f"{one:.3f}" if one else "does not fit" for one in means[-1])
        more = " | ".join(f"{one:.2f}" if np.isfinite(one) else "" for one in gains[-1])
        print(f"| {cluster} | {workload} | {planner.degree} | {told} | {more} | {took:.0f} |", flush=True)
    told = " | ".join(f"{one:.3f}" for one in _means(means))
    more = " | ".join(f"{one:.2f}" for one in _means(gains))
    print(f"| all | geometric mean | | {told} | {more} | {np.median(spent):.0f} |")
    print(
        f"least planner / shipped best {min(one[0] for one in gains):.3f}; {time.process_time():.0f} s of the processor"
    )


def _planned(cell: Cell, planners: Sequence[InContract]) -> tuple[float, InContract, float]:
    """Returns (seconds of the fastest planner, which it is, milliseconds that it plans a batch in)."""
    found = []
    for planner in planners:
        begin = time.process_time()
        seconds = cell.seconds(planner)
        found.append((seconds, planner.degree or 1, planner, time.process_time() - begin))
    seconds, _, planner, spent = min(found, key=lambda one: one[:2])
    return seconds, planner, 1e3 * spent / len(cell.batches)


def _means(rows: list[list[float]]) -> list[float]:
    """Returns the geometric mean of every column, of its finite and positive entries."""
    columns = np.array(rows).T
    return [float(np.exp(np.mean(np.log(one[np.isfinite(one) & (one > 0)])))) for one in columns]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("framework", choices=SYSTEMS)
    parser.add_argument("nodes", type=int, nargs="?", default=4)
    given = parser.parse_args()
    table(given.framework, given.nodes)


if __name__ == "__main__":
    main()
