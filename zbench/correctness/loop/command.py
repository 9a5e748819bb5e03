"""python -m zbench.correctness loop: generates and trains by GRPO, PPO, ReMax or Safe RLHF, on
processes. An edge.

Every loop goes through iterations of generation by tensor-parallel groups, a reward by a rule, and updates by whole
steps, with weights brought from one layout to the other by an engine; beside it one process does the same. Responses
have to be the same tokens, losses and weights the same to 1e-12 in float64, and bytes of weights those of the step.
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
from zbench.correctness.loop.driver import LoopDriver, LoopIteration
from zbench.describe.checks import check_whole_number
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import DS_CHAT, HYBRIDFLOW, HYBRIDFLOW_V, STANDALONE
from zbench.rollouts.experience import GRPO, LEARNT_BY, SAFE_RLHF
from zbench.runtime.job.step_job import Sizes
from zbench.runtime.processes.fleet import RankFailed
from zbench.runtime.processes.launch import LocalFleet
from zbench.runtime.rollouts.policy_job import PolicyJob

LIMIT = 1e-12  # of differences, in float64
NAN = float("nan")
RANK = "zbench.correctness.loop.rank:LoopRank"
SYSTEMS = ("verl_balance", "dynamic_cp", "flexsp", "zeppelin", "nodewise")
# engine, training's degrees, generation's, replicas of it: on up to four processes
LAYOUTS = (
    (DS_CHAT, "1-2-2", "1-2", 1),
    (DS_CHAT, "1-4-1", "1-1", 1),
    (HYBRIDFLOW_V, "1-2-2", "1-2", 1),
    (HYBRIDFLOW_V, "1-4-1", "1-2", 1),
    (HYBRIDFLOW_V, "2-2-1", "1-1", 1),
    (HYBRIDFLOW, "1-2-2", "1-1", 1),
    (HYBRIDFLOW, "1-4-1", "1-2", 1),
    (HYBRIDFLOW, "2-2-1", "1-2", 1),
    (HYBRIDFLOW, "2-1-2", "1-1", 1),
    (STANDALONE, "1-2-1", "1-1", 2),
    (STANDALONE, "1-2-1", "1-2", 1),
    (STANDALONE, "1-1-3", "1-1", 1),
)
TITLES = ("loop", "tokens", "clipped", "loss", "weights", "bytes to generation", "multiplier", "shards shared", "")


@dataclass(frozen=True)
class LoopVerdict:
    """The verdict on a loop. tokens: of all responses; clipped: losses whose ratio, or value, was, of all updates;
    loss, weights: the largest differences, nan where nothing came back; moved: bytes of weights that came to GPUs that
    generate; shared: of shards of weights in training, how many lay in the memory of what was generated with, and all;
    multiplier: of the cost at the end, 1 without one; fault: what is wrong, "" if nothing."""

    loop: Loop
    tokens: int
    clipped: int
    loss: float
    weights: float
    moved: int
    shared: tuple[int, int]
    fault: str
    multiplier: float = 1.0

    def row(self) -> list[str]:
        """Returns the row of a table."""
        numbers = f"{self.tokens:,}", f"{self.clipped:,}", f"{self.loss:.0e}", f"{self.weights:.0e}", f"{self.moved:,}"
        multiplier = f"{self.multiplier:.4f}" if self.loop.algorithm == SAFE_RLHF else "-"
        return [str(self.loop), *numbers, multiplier, "{} of {}".format(*self.shared), "FAILED" if self.fault else ""]


def main(arguments: Sequence[str]) -> int:
    """Runs the command with the words that follow its name; returns the exit code."""
    parser = Parser(prog="python -m zbench.correctness loop", description="Generation and training, on processes.")
    parser.add_argument("--systems", default=",".join(SYSTEMS), help=f"that train (default {','.join(SYSTEMS)})")
    parser.add_argument("--algorithms", default=",".join(LEARNT_BY), help=f"of {', '.join(LEARNT_BY)} (default all)")
    parser.add_argument("--all", action="store_true", help="every system with every layout, not each once")
    parser.add_argument("--seed", type=int, default=0, help="of weights, prompts and what is drawn (default 0)")
    parser.add_argument("--resumed", action="store_true", help="each goes on from a checkpoint on fresh processes, too")
    asked = parser.parse_args(list(arguments))
    check_whole_number("--seed", asked.seed, 0)
    algorithms = asked.algorithms.split(",")
    for one in algorithms:
        if one not in LEARNT_BY:
            raise ValueError(f"--algorithms has {one!r}; it takes {', '.join(LEARNT_BY)}, by commas")
    chosen = loops(asked.systems.split(","), algorithms, asked.all)
    _ = [LoopSteps.of(one.system, one.cost) for one in chosen]  # refuses systems that there are not
    found: list[LoopVerdict] = []
    try:
        with Meter(len(chosen), unit="loop") as meter:
            for one in chosen:
                found.append(compared_loop(one, one.job(asked.seed), asked.seed, asked.resumed))
                meter.show("loop", len(found))
    finally:  # Ctrl-C, too, leaves the table of what was finished
        _print(found)
    return 1 if any(one.fault for one in found) or not found else 0


def loops(systems: Sequence[str], algorithms: Sequence[str] = (GRPO,), every: bool = False) -> list[Loop]:
    """Lists loops: every layout with every algorithm and one system, these in turns, or with all; and every system at
    least once."""
    layouts = [
        (engine, TrainDegrees.of(train), GenerateDegrees.of(generate), replicas)
        for engine, train, generate, replicas in LAYOUTS
    ]
    pairs = [(layout, algorithm) for algorithm in algorithms for layout in layouts]
    if every:
        return [Loop(*layout, system, algorithm) for layout, algorithm in pairs for system in systems]
    turns = range(max(len(pairs), len(systems)))
    found = [(*pairs[at % len(pairs)], systems[at % len(systems)]) for at in turns]
    return [Loop(*layout, system, algorithm) for layout, algorithm, system in found]


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
        if not abs(one.multiplier - wanted.multiplier) < LIMIT:
            faults.append(f"the multiplier is {one.multiplier}, and in one process {wanted.multiplier}")
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
    return LoopVerdict(loop, tokens, clipped, *off, moved, inside, "; ".join(faults), multiplier)


def _other_tokens(one: LoopIteration, wanted: AloneReport) -> list[int]:
    """Lists the sequences that have other tokens than in one process."""
    pairs = enumerate(zip(one.sequences, wanted.sequences, strict=True))
    return [number for number, (mine, other) in pairs if mine.tolist() != other.tolist()]


def _print(found: Sequence[LoopVerdict]) -> None:
    """Prints the table, then failures and a last line that counts them."""
    table = Table(title=f"{GROUP} responses a prompt; differences to one process")
    for name in TITLES:
        table.add_column(name, justify="right" if name in TITLES[1:8] else "left")
    for one in found:
        table.add_row(*one.row())
    show(table)
    failed = [one for one in found if one.fault]
    for one in failed:
        print(f"FAILED {one.loop}: {one.fault}")
    print(f"{len(found)} loops, {len(failed)} of them FAILED")
