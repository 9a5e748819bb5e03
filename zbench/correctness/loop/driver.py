"""The driver's side of a loop: it hands prompts out, and has the steps made that score responses, bring what is known
of them from rank to rank, and train with it. It plans by lengths; tokens come to it to be compared."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product

import numpy as np

from zbench.correctness.loop.batches import LoopBatches
from zbench.correctness.loop.cases import Loop, LoopSteps, prompts_of
from zbench.correctness.loop.planned import PlannedIteration
from zbench.describe.arrays import Ints
from zbench.rollouts.advantages.safe_rlhf import Multiplier
from zbench.rollouts.columns import ColumnMoves
from zbench.rollouts.experience import GRPO, SAFE_RLHF, Rollout, scored_tokens
from zbench.runtime.checkpoints.folder import check_files, checkpoint_description
from zbench.runtime.job.step_job import Sizes, StepReport
from zbench.runtime.processes.fleet import Fleet
from zbench.runtime.rollouts.experience_ways import ExperienceWays, Runs
from zbench.runtime.rollouts.policy_job import HOME, POLICY, REFERENCE, UNTRAINED, BatchTold, PolicyJob
from zbench.step.byte_law import stated_bytes
from zbench.step.proof.prove import prove_step


@dataclass(frozen=True)
class NumbersMoved:
    """A way of tokens' numbers between ranks. stated, counted: bytes (sent, received) by rank, as its step says, and as
    messages had them. between: bytes from one set of models to another."""

    stated: tuple[Sizes, ...]
    counted: tuple[Sizes, ...]
    between: int


@dataclass(frozen=True)
class LoopIteration:
    """An iteration of a loop. sequences: prompts with their responses. counted: tokens of responses. losses: of every
    update of every model, by the ranks that have it. moved: bytes of weights (sent, received) before generation, by
    rank; shared: of each weight that a rank trains, whether it lay in the memory of what was generated with. weights:
    the largest difference after it to one process; digests: of parameters and optimizer state then, by rank.
    multiplier: of the cost after it, 1 without one. age: updates of the policy since it generated these; given_up:
    tokens of responses that were given up; early: responses that were scored while others were generated. numbers: the
    ways of tokens' numbers between ranks. busy: seconds in which critics trained on ranks that do not train the policy,
    and of these those in which the policy was trained."""

    sequences: list[Ints]
    counted: int
    losses: tuple[tuple[float, ...], ...]
    moved: tuple[Sizes, ...]
    shared: tuple[bool, ...]
    weights: float
    digests: tuple[str, ...]
    multiplier: float = 1.0
    age: int = 0
    given_up: int = 0
    early: int = 0
    numbers: tuple[NumbersMoved, ...] = ()
    busy: tuple[float, float] = (0.0, 0.0)


@dataclass
class LoopDriver:
    """The driver of a loop's ranks. stated: the bytes of weights (sent, received) by rank that their step says.
    multiplier: of the cost, in the iteration that comes; batches: of its rollouts."""

    loop: Loop
    job: PolicyJob
    fleet: Fleet
    seed: int
    multiplier: Multiplier = field(default_factory=Multiplier)
    batches: LoopBatches = field(init=False)
    stated: tuple[Sizes, ...] = field(init=False)
    _steps: dict[str, LoopSteps] = field(init=False)

    def __post_init__(self) -> None:
        self.batches = LoopBatches(self.loop, self.fleet, self.seed)
        costs = {POLICY: self.loop.cost} | {name: one.steps.cost for name, one in self.job.others.items()}
        self._steps = {name: LoopSteps.of(self.loop.system, cost) for name, cost in costs.items()}
        prompts = [Rollout(one, len(one), np.zeros(0)) for one in prompts_of(self.seed, 0)]
        lengths, begun = [len(one.tokens) for one in prompts], {}
        for name, steps in self._steps.items():  # of any tokens: parameters are drawn to where a step wants them
            begun[name] = (steps.of_scores if name in UNTRAINED else steps.of_rollouts)(lengths, 0)
        change = self.job.resharded(begun[POLICY][1]).step
        prove_step(change)
        bare = [(0, 0)] * (self.loop.num_ranks - change.num_gpus)
        self.stated = (*(one.get("parameters", (0, 0)) for one in stated_bytes(change)), *bare)
        self.fleet.call("begin_all", begun, scored_tokens(prompts))

    def iterate(self, iteration: int, compared: bool = True) -> LoopIteration:
        """Generates and rewards once, and trains with that. compared: whether weights are, to one process; 0 if not."""
        learning, batch = self.loop.learning, self.batches.of(iteration)
        rollouts, every = batch.rollouts, [*batch.rollouts, *batch.greedy]
        lengths, prompts = [len(one.tokens) for one in every], [one.prompt for one in every]
        age, count = self.batches.updates - batch.updates, len(rollouts)
        planned = PlannedIteration.of(self._steps, self.job, learning, lengths, count, (self.seed, iteration))
        self.fleet.call("hold", BatchTold(iteration, batch.numbers, range(len(batch.greedy)), lengths, prompts))
        ways, numbers = ExperienceWays(self.loop.num_ranks, count, lengths, prompts, batch.owners), list[NumbersMoved]()
        self._move(ways.of_tokens(planned.reads()), numbers)
        found: list[dict[str, Runs]] = self.fleet.call("score_all", planned.scores)
        held = {name: [one.get(name, set()) for one in found] for name in self.job.others}
        if batch.scorers:
            held[REFERENCE] = ways.of_responses(batch.scorers)
        self._move(ways.of_scores(held), numbers)
        costs = self.fleet.call("learn_from", learning, count, list(held), self.multiplier.value)[HOME]
        kl, losses = learning.kl if learning.algorithm == GRPO else 0.0, list[tuple[float, ...]]()
        self._move(ways.of_targets(planned.trained(), held, kl > 0), numbers)
        updates = [(update.steps, update.which) for update in planned.updates]
        reports: list[list[dict[str, StepReport]]] = self.fleet.call("train", updates, kl)
        for at, (steps, _) in enumerate(updates):
            for name in steps:
                mine = (one[at][name].loss for one in reports if name in one[at])
                losses.append(tuple(loss for loss in mine if loss is not None))
        if learning.algorithm == SAFE_RLHF:
            self.multiplier = self.multiplier.after(costs)
        self.batches.updates += learning.epochs * learning.mini_batches
        return LoopIteration(
            [one.tokens for one in rollouts],
            sum(len(one.response) for one in rollouts),
            tuple(losses),
            batch.moved,
            batch.shared,
            self.fleet.call("difference", iteration)[0] if compared else 0.0,
            tuple(self.fleet.call("digest")),
            self.multiplier.value,
            age,
            batch.given_up,
            batch.early,
            tuple(numbers),
            self._at_once(reports),
        )

    def _at_once(self, reports: Sequence[Sequence[Mapping[str, StepReport]]]) -> tuple[float, float]:
        """Returns the seconds in which critics train apart from the policy, and of these those in which it trains as
        well; of each step from the first of its ranks that begins to the last that ends. reports: by rank and
        update."""
        spans = dict[str, list[tuple[float, float]]]()
        for name in (POLICY, *self.job.critics):
            for every in zip(*reports, strict=True):
                mine = [one[name] for one in every if name in one]
                span = min(one.began for one in mine), max(one.began + one.seconds for one in mine)
                spans.setdefault(name, []).append(span)
        spent, shared = 0.0, 0.0
        for name in self.job.critics:
            if self.job.others[name].first >= self.loop.train.num_gpus:
                spent += sum(end - begin for begin, end in spans[name])
                both = product(spans[name], spans[POLICY])
                shared += sum(max(0.0, min(one[1], other[1]) - max(one[0], other[0])) for one, other in both)
        return spent, shared

    def _move(self, moves: ColumnMoves | None, numbers: list[NumbersMoved]) -> None:
        """Has ranks move numbers of tokens, by a proven step, and notes what that took."""
        if moves is None:
            return
        prove_step(moves.step)
        stated = tuple(one.get("parameters", (0, 0)) for one in stated_bytes(moves.step))
        counted = tuple(self.fleet.call("move", moves))
        numbers.append(NumbersMoved(stated, counted, moves.bytes_between(self.loop.sets.of_ranks)))

    def save(self, path: str, iteration: int) -> None:
        """Has ranks write a checkpoint that goes on with an iteration."""
        self.fleet.call("save", path, iteration, {"multiplier": asdict(self.multiplier)} | self.batches.told())

    def load(self, path: str) -> int:
        """Has ranks take over a checkpoint; returns the iteration that it goes on with.

        Raises:
            ValueError: there is none, it is broken, or it is another loop's.
        """
        found, told = checkpoint_description(path), json.loads(json.dumps(self.job.told()))
        check_files(path)
        for name in sorted(told):
            if found["run"].get(name) != told[name]:
                other = found["run"].get(name)
                raise ValueError(f"resume is {path!r}; its loop has {name} {other!r}, this one {told[name]!r}")
        self.fleet.call("load", path)
        driver = found["driver"]
        self.multiplier = Multiplier(driver["multiplier"]["log"], tuple(driver["multiplier"]["costs"]))
        iteration = int(found["next_step"])
        self.batches.take_over(driver, iteration)
        return iteration
