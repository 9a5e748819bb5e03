"""python -m zbench.correctness seesaw: generates on processes, prompts by one layout and words by another. An edge.

Weights and keys and values are in memory that processes share, as host memory is to GPUs. Responses have to be the
tokens of one process; how often layouts change, and the bytes of weights, keys and values that each process copies,
those of arithmetic that shares nothing with it.
Exit codes: 0; 1 something differs; 2 bad input; 130 stopped by Ctrl-C, with the table so far.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.table import Table

from zbench.console.command import Parser
from zbench.console.console import show
from zbench.console.meter import Meter
from zbench.correctness.seesaw.cases import SeesawCase, expected_ranks, seesaw_cases, seesaw_prompts
from zbench.describe.arrays import Ints
from zbench.describe.checks import check_whole_number
from zbench.describe.units import with_noun
from zbench.runtime.processes.fleet import RankFailed
from zbench.runtime.processes.launch import LocalFleet
from zbench.runtime.rollouts.seesaw_job import SeesawReport

MOST_RANKS = 4
RANK = "zbench.correctness.seesaw.rank:SeesawCheckRank"
SHARED = Path("/dev/shm")  # a folder in memory, where there is one
TITLES = ("layouts", "processes", "tokens", "changes", "weights, bytes", "kv out", "kv in", "most at once", "")


@dataclass(frozen=True)
class SeesawVerdict:
    """The verdict on a pair of layouts. found: by process, nothing where nothing came back; fault: what is wrong, "" if
    nothing."""

    case: SeesawCase
    found: tuple[SeesawReport, ...]
    fault: str

    def row(self) -> list[str]:
        """Returns the row of a table: sums over processes, and the changes of one replica."""
        size = self.case.decode.num_gpus
        numbers = (
            self.case.replicas * size,
            sum(len(one) for report in self.found[::size] for one in report.tokens.values()),
            max((report.loads - 1 for report in self.found), default=0),
            sum(report.weights for report in self.found),
            sum(report.written for report in self.found),
            sum(report.read for report in self.found),
            max((report.most for report in self.found), default=0),
        )
        return [str(self.case), *(f"{number:,}" for number in numbers), "FAILED" if self.fault else ""]


def main(arguments: Sequence[str]) -> int:
    """Runs the command with the words that follow its name; returns the exit code."""
    parser = Parser(prog="python -m zbench.correctness seesaw", description="Generation by two layouts, on processes.")
    parser.add_argument("--ranks", type=int, default=MOST_RANKS, help=f"processes (default {MOST_RANKS})")
    parser.add_argument("--seed", type=int, default=0, help="of weights, prompts and what is drawn (default 0)")
    asked = parser.parse_args(list(arguments))
    check_whole_number("--ranks", asked.ranks, 2, MOST_RANKS)
    check_whole_number("--seed", asked.seed, 0)
    chosen, found = seesaw_cases(asked.ranks), list[SeesawVerdict]()
    try:
        with Meter(len(chosen), unit="pair") as meter:
            for verdict in generated_pairs(chosen, asked.ranks, asked.seed):
                found.append(verdict)
                meter.show("seesaw", len(found))
    finally:  # Ctrl-C, too, leaves the table of what was finished
        _print(found)
    return 1 if any(one.fault for one in found) or not found else 0


def generated_pairs(chosen: Sequence[SeesawCase], ranks: int, seed: int) -> Iterator[SeesawVerdict]:
    """Generates by each pair of layouts, on the same processes; after one that fails, on fresh ones."""
    left = list(chosen)
    while left:
        with LocalFleet(ranks, RANK, timeout=60) as fleet:
            alone: dict[int, Ints] = fleet.call("alone", seed)[0]
            while left:
                case = left.pop(0)
                try:
                    with TemporaryDirectory(dir=SHARED if SHARED.is_dir() else None) as folder:
                        found = fleet.call("run", case.job(seed), folder)
                except RankFailed as error:
                    yield SeesawVerdict(case, (), str(error))
                    break
                yield judged_seesaw(case, [one for one in found if one is not None], alone, seed)


def judged_seesaw(
    case: SeesawCase, found: Sequence[SeesawReport], alone: Mapping[int, Ints], seed: int
) -> SeesawVerdict:
    """Compares what came out on every process with one process, and with arithmetic."""
    faults: list[str] = []
    seen: set[int] = set()
    wanted = expected_ranks(case, seesaw_prompts(seed), alone)
    for gpu, (one, want) in enumerate(zip(found, wanted, strict=True)):
        other = [number for number, tokens in one.tokens.items() if tokens.tolist() != alone[number].tolist()]
        seen |= one.tokens.keys()
        faults += [f"sequence {other[0]} of process {gpu} has other tokens than in one process"] if other else []
        for name in ("loads", "weights", "written", "read"):
            if getattr(one, name) != getattr(want, name):
                faults.append(f"process {gpu} has {name}={getattr(one, name)}; it takes {getattr(want, name)}")
    if seen != alone.keys():
        faults.append(f"{len(alone.keys() - seen)} sequences were not generated")
    return SeesawVerdict(case, tuple(found), "; ".join(faults))


def _print(found: Sequence[SeesawVerdict]) -> None:
    """Prints a row for each pair, then failures and a last line that counts them."""
    table = Table(title="generation by two layouts, all processes together")
    for name in TITLES:
        table.add_column(name, justify="left" if name in (TITLES[0], TITLES[-1]) else "right")
    for one in found:
        table.add_row(*one.row())
    show(table)
    failed = [one for one in found if one.fault]
    for one in failed:
        print(f"FAILED {one.case}: {one.fault}")
    print(f"{with_noun(len(found), 'pair')} of layouts, {len(failed)} of them FAILED")
