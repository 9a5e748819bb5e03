"""python -m zbench.correctness reshard: brings weights from training to generation on processes. An edge.

Every layout of training and of generation on up to 8 processes, by every engine: weights afterwards are to the bit the
slices of the whole ones; bytes that messages brought are those of HybridFlow's table, of the step that is proven, and
of elements counted by hand; what is kept twice is measured, by the memory that weights lie in.
Exit codes: 0; 1 something differs; 2 bad input; 130 stopped by Ctrl-C, with the table so far.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.table import Table

from zbench.console.command import Parser
from zbench.console.console import show
from zbench.console.meter import Meter
from zbench.correctness.reshard.cases import Reshard, ReshardedGpu, cover, expected_gpu, layouts
from zbench.describe.checks import check_whole_number
from zbench.rollouts.engines import EVERY_ENGINE
from zbench.runtime.processes.fleet import RankFailed
from zbench.runtime.processes.launch import LocalFleet
from zbench.step.byte_law import stated_bytes
from zbench.step.proof.prove import StepError, prove_step
from zbench.step.template import Step

MOST_RANKS = 8  # up to which all degrees divide the weights
RANK = "zbench.correctness.reshard.rank:ReshardRank"
TITLES = ("engine", "layouts", "received, bytes", "kept twice, bytes", "shards inside", "shards apart", "failed")


@dataclass(frozen=True)
class ReshardVerdict:
    """The verdict on a layout. found: by GPU, nothing where nothing came back; fault: what is wrong, "" if nothing."""

    case: Reshard
    found: tuple[ReshardedGpu, ...]
    fault: str


def main(arguments: Sequence[str]) -> int:
    """Runs the command with the words that follow its name; returns the exit code."""
    parser = Parser(prog="python -m zbench.correctness reshard", description="Weights, brought on to generation.")
    parser.add_argument("--ranks", type=int, default=MOST_RANKS, help=f"processes (default {MOST_RANKS})")
    parser.add_argument("--some", type=int, default=0, help="so many layouts, drawn by the seed (default all)")
    parser.add_argument("--seed", type=int, default=0, help="of the weights, and of what is drawn (default 0)")
    parser.add_argument("--batched", action="store_true", help="messages in batches, as over NCCL, instead of singly")
    asked = parser.parse_args(list(arguments))
    check_whole_number("--ranks", asked.ranks, 1, MOST_RANKS)
    check_whole_number("--some", asked.some, 0)
    check_whole_number("--seed", asked.seed, 0)
    chosen = cover(asked.ranks, asked.seed, asked.some) if asked.some else list(layouts(asked.ranks))
    found: list[ReshardVerdict] = []
    try:
        with Meter(len(chosen), unit="layout") as meter:
            for verdict in brought(chosen, asked.ranks, "batched" if asked.batched else "single", asked.seed):
                found.append(verdict)
                meter.show("reshard", len(found))
    finally:  # Ctrl-C, too, leaves the table of what was finished
        _print(found)
    return 1 if any(one.fault for one in found) or not found else 0


def brought(chosen: Sequence[Reshard], ranks: int, way: str, seed: int) -> Iterator[ReshardVerdict]:
    """Brings weights from layout to layout, one after the other, on the same processes; after one that fails, on fresh
    ones."""
    left = list(chosen)
    while left:
        with LocalFleet(ranks, RANK, way, timeout=120) as fleet:
            while left:
                case = left.pop(0)
                made = case.made
                try:
                    prove_step(made.step)
                except StepError as error:
                    yield ReshardVerdict(case, (), str(error))
                    continue
                try:
                    found = fleet.call("run", case, made, seed)
                except RankFailed as error:
                    yield ReshardVerdict(case, (), str(error))
                    break
                yield judged_reshard(case, found[: case.num_gpus], made.step)


def judged_reshard(case: Reshard, found: Sequence[ReshardedGpu], step: Step) -> ReshardVerdict:
    """Compares what came out on every GPU with arithmetic by hand, with the step and with the published table."""
    faults, stated = [], stated_bytes(step)
    for gpu, one in enumerate(found):
        wanted = expected_gpu(case, gpu)
        faults += [one.fault] if one.fault else []
        for name in ("received", "peak", "generating", "kept", "after", "inside"):
            if getattr(one, name) != getattr(wanted, name):
                faults.append(f"GPU {gpu} has {name}={getattr(one, name)}; it takes {getattr(wanted, name)}")
        told = stated[gpu].get("parameters", (0, 0))[1]
        if one.received != told:
            faults.append(f"GPU {gpu} received {one.received} bytes; the step says {told}")
        received, peak, twice = case.table(gpu)
        if not case.norms and (one.received, one.peak) != (received, peak):
            faults.append(
                f"GPU {gpu} received {one.received} and has {one.peak} bytes; the table {received} and {peak}"
            )
        if not case.norms and kept_twice(one) > twice:
            faults.append(f"GPU {gpu} keeps {kept_twice(one)} bytes twice; the table has at most {twice}")
    return ReshardVerdict(case, tuple(found), "; ".join(faults))


def kept_twice(one: ReshardedGpu) -> int:
    """Returns the bytes of a GPU that generates which lie apart from what it generates with."""
    return one.kept - one.generating if one.generating else 0


def _print(found: Sequence[ReshardVerdict]) -> None:
    """Prints a row for each engine, then failures and a last line that counts them."""
    table = Table(title="weights brought to generation, all layouts of an engine together")
    for name in TITLES:
        table.add_column(name, justify="right" if name != TITLES[0] else "left")
    for engine in EVERY_ENGINE:
        some = [one for one in found if one.case.engine == engine]
        gpus = [gpu for one in some for gpu in one.found]
        inside = [flag for gpu in gpus for flag in gpu.inside]
        sizes = sum(gpu.received for gpu in gpus), sum(map(kept_twice, gpus)), sum(inside), len(inside) - sum(inside)
        numbers = len(some), *sizes, sum(bool(one.fault) for one in some)
        table.add_row(engine, *(f"{number:,}" for number in numbers))
    show(table)
    failed = [one for one in found if one.fault]
    for one in failed:
        print(f"FAILED {one.case}: {one.fault}")
    print(f"{len(found)} layouts, {len(failed)} of them FAILED")
