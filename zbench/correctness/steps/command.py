"""python -m zbench.correctness steps: executes training steps on processes and compares them with a dense one. An edge.

Every combination's step is proven, run on processes of this machine in float64, and compared with one dense process:
the loss, every gradient and every updated parameter, and by queue the bytes that every process sent and received with
those that the step says. Exit codes: 0; 1 something differs; 2 bad input; 130 stopped by Ctrl-C, with the table so far.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from rich.console import Console
from rich.table import Table

from zbench.console.command import Parser
from zbench.console.meter import Meter
from zbench.correctness.steps.cases import Executed, ProcessOptions
from zbench.correctness.steps.combination import StepCombination, every_combination
from zbench.correctness.steps.covering import covering
from zbench.correctness.steps.pipelines import PipelineCombination, every_pipeline_combination
from zbench.describe.checks import check_whole_number
from zbench.describe.units import with_noun
from zbench.runtime.job.job import DEVICES
from zbench.runtime.job.settings import no_gpu
from zbench.runtime.processes.fleet import RankFailed
from zbench.runtime.processes.launch import LocalFleet
from zbench.step.byte_law import chosen_rows, sent_by_purpose, stated_bytes
from zbench.step.proof.prove import StepError, prove_step

LIMIT = 1e-12  # of differences over the largest element, in float64
NAN = float("nan")
MOST_RANKS = 16  # processes on one machine
RANK = "zbench.correctness.steps.rank:StepRank"
Combination = StepCombination | PipelineCombination
TITLES = ("combination", "loss", "gradients", "parameters", "bytes", "")


@dataclass(frozen=True)
class StepVerdict:
    """The verdict on a combination. loss, gradients, parameters: largest differences, nan where nothing came back;
    bytes: sent by all processes, by queue; fault: what is wrong, "" if nothing."""

    combination: Combination
    loss: float
    gradients: float
    parameters: float
    bytes: dict[str, int]
    fault: str

    def row(self) -> list[str]:
        """Returns the row of a table."""
        differences = [f"{one:.0e}" for one in (self.loss, self.gradients, self.parameters)]
        sent = ", ".join(f"{name} {size:,}" for name, size in self.bytes.items())
        return [str(self.combination), *differences, sent, "FAILED" if self.fault else ""]


def main(arguments: Sequence[str]) -> int:
    """Runs the command with the words that follow its name; returns the exit code."""
    parser = Parser(prog="python -m zbench.correctness steps", description="Training steps, executed on processes.")
    parser.add_argument("--ranks", type=int, default=4, help="processes, a GPU of the step each (default 4)")
    parser.add_argument("--all", action="store_true", help="all combinations, not only enough to have every pair")
    parser.add_argument("--seed", type=int, default=0, help="of the pairs, the words and the parameters (default 0)")
    parser.add_argument("--batched", action="store_true", help="messages in batches, as over NCCL, instead of singly")
    parser.add_argument("--device", choices=DEVICES, default="auto", help="auto: a GPU if there is one (default)")
    parser.add_argument("--markdown", action="store_true", help="the table for a document")
    asked = parser.parse_args(list(arguments))
    check_whole_number("--ranks", asked.ranks, 1, MOST_RANKS)
    check_whole_number("--seed", asked.seed, 0)
    if asked.device == "cuda" and (why := no_gpu(os.environ)):
        raise ValueError(f"--device is cuda; it takes a GPU, and {why} (auto takes one if there is one)")
    count, chosen = combinations(asked.ranks, asked.seed, asked.all)
    found: list[StepVerdict] = []
    where, options = set[str](), ProcessOptions(asked.batched, asked.device)
    try:
        with Meter(count, unit="combination") as meter:
            for verdict in executed(chosen, asked.ranks, options, asked.seed, where.add):
                found.append(verdict)
                meter.show("steps", len(found))
    finally:  # Ctrl-C, too, leaves the table of what was finished
        _print(found, asked.markdown, ", ".join(sorted(where)) or "nothing")
    return 1 if any(one.fault for one in found) or not found else 0


def combinations(ranks: int, seed: int, every: bool = False) -> tuple[int, Iterable[Combination]]:
    """Returns how many combinations there are to execute on so many GPUs, and which, pipelines side by side last:
    enough to have every pair of choices, or every one that there is, made one by one."""
    alike, side_by_side = every_combination(ranks), every_pipeline_combination(ranks)
    if every:
        return len(alike) + len(side_by_side), chain(alike, side_by_side)
    chosen: list[Combination] = [*covering(alike, seed), *covering(side_by_side, seed)]
    return len(chosen), chosen


def executed(
    chosen: Iterable[Combination],
    ranks: int,
    options: ProcessOptions,
    seed: int,
    tell: Callable[[str], None] = lambda words: None,
) -> Iterator[StepVerdict]:
    """Executes combinations one after the other, on the same processes; after one that fails, on fresh ones. tell: is
    told in words what processes compute on."""
    left = iter(chosen)
    following = next(left, None)
    while following is not None:
        with LocalFleet(ranks, RANK, options, timeout=120) as fleet:
            tell(fleet.call("about")[0])
            while following is not None:
                one, following = following, next(left, None)
                case = one.case(seed)
                try:
                    prove_step(case.step)
                except StepError as error:
                    yield StepVerdict(one, NAN, NAN, NAN, {}, str(error))
                    continue
                try:
                    found = fleet.call("run", case)
                except RankFailed as error:
                    yield StepVerdict(one, NAN, NAN, NAN, {}, str(error))
                    break
                yield judged_step(one, found, stated_bytes(case.step, chosen_rows(rank.rows for rank in found) or None))


def judged_step(
    one: Combination, found: Sequence[Executed], stated: Sequence[dict[str, tuple[int, int]]]
) -> StepVerdict:
    """Compares what processes came to. stated: the bytes of each that the step has."""
    losses = [rank.loss for rank in found if rank.loss is not None]
    loss = _largest([abs(loss / found[0].wanted_loss - 1) for loss in losses] or [float("inf")])
    gradients, parameters = (_largest([getattr(rank, name) for rank in found]) for name in ("gradients", "parameters"))
    faults = [
        f"the {name} differ by {off:.1e}, above {LIMIT:g}"
        for name, off in (("losses", loss), ("gradients", gradients), ("parameters", parameters))
        if not off < LIMIT
    ]
    for number, rank in enumerate(found):
        wanted = stated[number] if number < len(stated) else {}
        if dict(rank.bytes) != wanted:
            faults.append(f"process {number} has (sent, received) {dict(rank.bytes)}; the step says {wanted}")
    return StepVerdict(
        one, loss, gradients, parameters, sent_by_purpose(rank.bytes for rank in found), "; ".join(faults)
    )


def _largest(values: Sequence[float]) -> float:
    """Returns the largest number, and what is none where there is such."""
    return float(np.max(values))


def _print(found: Sequence[StepVerdict], markdown: bool, where: str) -> None:
    """Prints the table, then failures and a last line that counts them. where: what processes computed on."""
    if markdown:
        for row in (TITLES, ["---", *["---:"] * 3, "---", "---"], *(one.row() for one in found)):
            print(f"| {' | '.join(row)} |")
    else:
        table = Table(title="steps executed, relative differences to one dense process, bytes sent")
        for name in TITLES:
            table.add_column(name, justify="right" if name in TITLES[1:4] else "left")
        for one in found:
            table.add_row(*one.row())
        Console(width=180).print(table)
    failed = [one for one in found if one.fault]
    for one in failed:
        print(f"FAILED {one.combination}: {one.fault}")
    print(f"{with_noun(len(found), 'combination')} executed on {where}, {len(failed)} of them FAILED")
