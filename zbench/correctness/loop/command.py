"""python -m zbench.correctness loop: generates and trains by GRPO, PPO, ReMax or Safe RLHF, on
processes. An edge.

Every loop goes through iterations of generation by tensor-parallel groups, rewards, and updates by whole steps, with
weights brought from one layout to the other by an engine, by a schedule, and with sets of models on processes of their
own by a placement; beside it one process does the same. Responses have to be the same tokens, losses and weights the
same to 1e-12 in float64, bytes of weights and of tokens' numbers those of their steps, and what was given up, and how
old the policy was that generated, the same as in one process.
Exit codes: 0; 1 something differs; 2 bad input; 130 stopped by Ctrl-C, with the table so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from tempfile import TemporaryDirectory

import numpy as np
from rich.table import Table

from zbench.console.command import Parser
from zbench.console.console import show
from zbench.console.meter import Meter
from zbench.correctness.loop.cases import GROUP, AloneReport, Loop, LoopSteps
from zbench.correctness.loop.chosen import SYSTEMS, each_layout, every_loop, paired_loops
from zbench.correctness.loop.driver import LoopDriver, LoopIteration
from zbench.describe.checks import check_whole_number
from zbench.describe.rollouts.stages import COLOCATE, PLACEMENTS
from zbench.describe.units import with_noun
from zbench.rollouts.engines import HYBRIDFLOW
from zbench.rollouts.experience import LEARNT_BY, SAFE_RLHF
from zbench.runtime.job.step_job import Sizes
from zbench.runtime.processes.fleet import RankFailed
from zbench.runtime.processes.launch import LocalFleet
from zbench.runtime.rollouts.policy_job import LOOP_SCHEDULES, PolicyJob

LIMIT = 1e-12  # of differences, in float64
NAN = float("nan")
RANK = "zbench.correctness.loop.rank:LoopRank"
TITLES = (
    "loop",
    "tokens",
    "clipped",
    "loss",
    "weights",
    "bytes to generation",
    "bytes of numbers",
    "between sets",
    "trained at once",
    "multiplier",
    "shards shared",
    "age",
    "given up",
    "scored meanwhile",
    "",
)


@dataclass(frozen=True)
class LoopVerdict:
    """The verdict on a loop. tokens: of all responses; clipped: losses whose ratio, or value, was, of all updates;
    loss, weights: the largest differences, nan where nothing came back; moved: bytes of weights that came to GPUs that
    generate; shared: of shards of weights in training, how many lay in the memory of what was generated with, and all;
    numbers, between: bytes of tokens' numbers that ranks received, and of these from another set of models; busy:
    seconds in which critics trained apart from the policy, and of these those in which the policy was trained, too;
    multiplier: of the cost at the end, 1 without one; age: most updates of the policy between generating a batch and
    training on it; given_up: tokens of responses; early: responses that were scored while others were generated;
    fault: what is wrong, "" if nothing."""

    loop: Loop
    tokens: int
    clipped: int
    loss: float
    weights: float
    moved: int
    shared: tuple[int, int]
    fault: str
    multiplier: float = 1.0
    age: int = 0
    given_up: int = 0
    early: int = 0
    numbers: int = 0
    between: int = 0
    busy: tuple[float, float] = (0.0, 0.0)

    def row(self) -> list[str]:
        """Returns the row of a table."""
        numbers = f"{self.tokens:,}", f"{self.clipped:,}", f"{self.loss:.0e}", f"{self.weights:.0e}", f"{self.moved:,}"
        carried = (
            f"{self.numbers:,}",
            f"{self.between:,}",
            f"{self.busy[1] / self.busy[0]:.0%}" if self.busy[0] else "-",
        )
        multiplier = f"{self.multiplier:.4f}" if self.loop.algorithm == SAFE_RLHF else "-"
        schedule = str(self.age), f"{self.given_up:,}", str(self.early)
        shared = "{} of {}".format(*self.shared)
        return [str(self.loop), *numbers, *carried, multiplier, shared, *schedule, "FAILED" if self.fault else ""]


def main(arguments: Sequence[str]) -> int:
    """Runs the command with the words that follow its name; returns the exit code."""
    parser = Parser(
        prog="python -m zbench.correctness loop",
        description="Generation and training by turns on processes, compared with one process that does the same.",
    )
    choices = {"systems": SYSTEMS, "algorithms": LEARNT_BY, "schedules": LOOP_SCHEDULES, "placements": PLACEMENTS}
    for name, some in choices.items():
        parser.add_argument(f"--{name}", default=",".join(some), help="by commas (default %(default)s)")
    parser.add_argument(
        "--beside", default="", help="processes of each set of models behind the actor's, as in 2 or 1,1,2"
    )
    parser.add_argument("--quick", action="store_true", help="each layout once, not every pair of these once")
    parser.add_argument("--all", action="store_true", help="every layout with all of these: hundreds of loops")
    parser.add_argument("--seed", type=int, default=0, help="of weights, prompts and what is drawn (default 0)")
    parser.add_argument("--resumed", action="store_true", help="each goes on from a checkpoint on fresh processes, too")
    asked = parser.parse_args(list(arguments))
    check_whole_number("--seed", asked.seed, 0)
    given = [getattr(asked, name).split(",") for name in choices]
    for name, some in zip(choices, given, strict=True):
        for one in some if name != "systems" else ():  # those are refused by the room that has them
            if one not in choices[name]:
                raise ValueError(f"--{name} has {one!r}; it takes {', '.join(choices[name])}, by commas")
    if asked.quick and asked.all:
        raise ValueError("--quick and --all are given; it takes one of them")
    chosen = (each_layout if asked.quick else every_loop if asked.all else paired_loops)(*given)
    if not chosen:
        told = " ".join(f"--{name} {getattr(asked, name)}" for name in choices)
        raise ValueError(f"no layout goes with all of {told}; see docs/rollouts.md")
    if asked.beside:
        chosen = _with_beside(chosen, asked.beside)
    _ = [(LoopSteps.of(one.system, one.cost), one.job(asked.seed)) for one in chosen]  # refuses what there is not
    found: list[LoopVerdict] = []
    try:
        with Meter(len(chosen), unit="loop") as meter:
            for one in chosen:
                found.append(compared_loop(one, one.job(asked.seed), asked.seed, asked.resumed))
                meter.show("loop", len(found))
    finally:  # Ctrl-C, too, leaves the table of what was finished
        _print(found)
    return 1 if any(one.fault for one in found) or not found else 0


def _with_beside(loops: Sequence[Loop], text: str) -> list[Loop]:
    """Returns loops with as many processes in the sets behind the actor's as a text has, of those that have such sets.

    Raises:
        ValueError: the text is something else, or no loop has.
    """
    words = text.split(",")
    if not all(word.isascii() and word.isdigit() for word in words):
        raise ValueError(f"--beside is {text!r}; it takes a whole number for each set behind the actor's, by commas")
    found = [replace(one, beside=tuple(map(int, words))) for one in loops if one.placement != COLOCATE]
    if not found:
        raise ValueError(
            f"--beside is {text}; with --placements {COLOCATE} all models share processes, so it takes none"
        )
    return found


def compared_loop(loop: Loop, job: PolicyJob, seed: int, resumed: bool = False) -> LoopVerdict:
    """Runs a loop on processes and compares it with one process. job: what its ranks are told. resumed: whether it goes
    on from a checkpoint of its first iteration on fresh processes, too, which has to come to the same bits."""
    found: list[LoopIteration] = []
    again: list[LoopIteration] = []
    try:
        with TemporaryDirectory() as folder:
            path = f"{folder}/checkpoint"
            with LocalFleet(loop.num_ranks, RANK, job, timeout=120) as fleet:
                alone: list[AloneReport] = fleet.call("alone", loop)[0]
                driver = LoopDriver(loop, job, fleet, seed)
                for iteration, wanted in enumerate(alone):
                    found.append(driver.iterate(iteration))
                    if _other_tokens(found[-1], wanted):  # which later ones follow from
                        break
                    if resumed and iteration == 0:
                        driver.save(path, 1)
            if resumed and len(found) == len(alone):
                with LocalFleet(loop.num_ranks, RANK, job, timeout=120) as fleet:
                    driver = LoopDriver(loop, job, fleet, seed)
                    again = [driver.iterate(iteration, False) for iteration in range(driver.load(path), len(alone))]
    except RankFailed as error:
        return LoopVerdict(loop, 0, 0, NAN, NAN, 0, (0, 0), str(error))
    verdict = judged_loop(loop, found, alone, driver.stated)
    return replace(verdict, fault="; ".join(one for one in (verdict.fault, judged_again(found, again)) if one))


def judged_again(found: Sequence[LoopIteration], again: Sequence[LoopIteration]) -> str:
    """Compares the last iterations with those that went on from a checkpoint, to the bit; returns what is wrong."""
    for number in range(len(found) - len(again), len(found)):
        one, other = found[number], again[number - len(found)]
        tokens = [[words.tolist() for words in some.sequences] for some in (one, other)]
        if (tokens[0], one.losses, one.digests, one.multiplier) != (
            tokens[1],
            other.losses,
            other.digests,
            other.multiplier,
        ):
            return f"iteration {number} is another one after a checkpoint"
    return ""


def judged_loop(
    loop: Loop, found: Sequence[LoopIteration], alone: Sequence[AloneReport], stated: Sequence[Sizes]
) -> LoopVerdict:
    """Compares iterations with those of one process. stated: by rank, bytes of weights that the step of their change
    says."""
    losses, faults = [0.0], list[str]()
    for number, (one, wanted) in enumerate(zip(found, alone, strict=False)):
        if wrong := _other_tokens(one, wanted):
            faults.append(f"responses {', '.join(map(str, wrong))} of iteration {number} have other tokens")
        if list(one.moved) != list(stated):
            faults.append(f"ranks have (sent, received) {one.moved} bytes of weights; the step says {stated}")
        for way in one.numbers:
            if way.counted != way.stated:
                told = f"ranks have (sent, received) {way.counted} bytes of tokens' numbers in iteration {number}"
                faults.append(f"{told}; the step says {way.stated}")
        if not abs(one.multiplier - wanted.multiplier) < LIMIT:
            faults.append(f"the multiplier is {one.multiplier}, and in one process {wanted.multiplier}")
        if (one.age, one.given_up) != (wanted.age, wanted.given_up):
            faults.append(
                f"iteration {number} trains on what a policy of {one.age} updates before generated, and gave "
                f"{one.given_up} tokens up; in one process it is {wanted.age} and {wanted.given_up}"
            )
        for mine, other, scale in zip(one.losses, wanted.losses, wanted.scales, strict=True):
            losses += [abs(loss - other) / scale for loss in mine] or [NAN]
    off = float(np.max(losses)), float(np.max([0.0, *(one.weights for one in found)]))
    for name, size in zip(("losses", "weights"), off, strict=True):
        if not size < LIMIT:
            faults.append(f"the {name} differ by {size:.1e}, above {LIMIT:g}")
    shared = [flag for one in found for flag in one.shared]
    if loop.engine == HYBRIDFLOW and not all(shared):
        faults.append(f"{len(shared) - sum(shared)} shards of training lay apart from what was generated with")
    tokens = sum(one.counted for one in found)
    moved = sum(received for one in found for _, received in one.moved)
    clipped = sum(one.clipped for one in alone[: len(found)])
    inside, multiplier = (sum(shared), len(shared)), found[-1].multiplier
    age, given_up, early = (
        max(one.age for one in found),
        sum(one.given_up for one in found),
        sum(one.early for one in found),
    )
    ways = [way for one in found for way in one.numbers]
    numbers, between = sum(got for way in ways for _, got in way.counted), sum(way.between for way in ways)
    busy = sum(one.busy[0] for one in found), sum(one.busy[1] for one in found)
    verdict = LoopVerdict(loop, tokens, clipped, *off, moved, inside, "; ".join(faults), multiplier)
    return replace(verdict, age=age, given_up=given_up, early=early, numbers=numbers, between=between, busy=busy)


def _other_tokens(one: LoopIteration, wanted: AloneReport) -> list[int]:
    """Lists the sequences that have other tokens than in one process."""
    pairs = enumerate(zip(one.sequences, wanted.sequences, strict=True))
    return [number for number, (mine, other) in pairs if mine.tolist() != other.tolist()]


def _print(found: Sequence[LoopVerdict]) -> None:
    """Prints the table, then failures and a last line that counts them."""
    table = Table(
        title=f"{GROUP} responses a prompt; differences to one process",
        caption="A loop: the engine that brings weights to generation, training's degrees (pipeline-tensor-data) to "
        "generation's (pipeline-tensor), algorithm, schedule, system",
    )
    for name in TITLES:
        table.add_column(name, justify="right" if name in TITLES[1:-1] else "left")
    for one in found:
        table.add_row(*one.row())
    show(table)
    failed = [one for one in found if one.fault]
    for one in failed:
        print(f"FAILED {one.loop}: {one.fault}")
    loops = with_noun(len(found), "loop")
    print(f"{loops} of generation and training compared with one process, {len(failed)} of them FAILED")
