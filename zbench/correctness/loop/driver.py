"""The driver's side of a loop: it hands prompts out, rewards responses, and has the step made that trains with
them."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from zbench.correctness.loop.batches import LoopBatches
from zbench.correctness.loop.cases import Loop, LoopSteps, learned_from, prompts_of
from zbench.describe.arrays import Floats, Ints
from zbench.rollouts.advantages.safe_rlhf import Multiplier
from zbench.rollouts.experience import GRPO, SAFE_RLHF, Rollout, scored_tokens
from zbench.runtime.checkpoints.folder import check_files, checkpoint_description
from zbench.runtime.job.step_job import Sizes, StepReport
from zbench.runtime.processes.fleet import Fleet
from zbench.runtime.rollouts.policy_job import COST, POLICY, REFERENCE, UNTRAINED, PolicyJob
from zbench.step.byte_law import stated_bytes
from zbench.step.proof.prove import prove_step


@dataclass(frozen=True)
class LoopIteration:
    """An iteration of a loop. sequences: prompts with their responses. counted: tokens of responses. losses: of every
    update of every model, by the ranks that have it. moved: bytes of weights (sent, received) before generation, by
    rank; shared: of each weight that a rank trains, whether it lay in the memory of what was generated with. weights:
    the largest difference after it to one process; digests: of parameters and optimizer state then, by rank.
    multiplier: of the cost after it, 1 without one. age: updates of the policy since it generated these; given_up:
    tokens of responses that were given up; early: responses that were scored while others were generated."""

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
        begun = {}
        for name, steps in self._steps.items():  # of any tokens: parameters are drawn to where a step wants them
            of = steps.of_scores if name in UNTRAINED else steps.of_rollouts
            begun[name] = *of(prompts, 0), scored_tokens(prompts)
        change = self.job.resharded(begun[POLICY][1]).step
        prove_step(change)
        self.stated = tuple(one.get("parameters", (0, 0)) for one in stated_bytes(change))
        self.fleet.call("begin_all", begun)

    def iterate(self, iteration: int, compared: bool = True) -> LoopIteration:
        """Generates and rewards once, and trains with that. compared: whether weights are, to one process; 0 if not."""
        learning, batch = self.loop.learning, self.batches.of(iteration)
        rollouts = batch.rollouts
        known = {name: self._scores(name, rollouts, iteration) for name in self.job.others}
        if batch.scores:
            known[REFERENCE] = batch.scores
        age = self.batches.updates - batch.updates
        given = learned_from(learning, rollouts, batch.greedy, known, self.multiplier.value)
        kl, losses = learning.kl if learning.algorithm == GRPO else 0.0, list[tuple[float, ...]]()
        for which in learning.updates(len(rollouts), self.seed, iteration):
            some = [rollouts[number] for number in which]
            steps = {POLICY: (*self._steps[POLICY].of_rollouts(some, iteration), given.of_policy(which, kl))}
            for name in self.job.critics:
                steps[name] = *self._steps[name].of_rollouts(some, iteration), given.of_critic(name, which)
            reports: list[dict[str, StepReport]] = self.fleet.call("update", steps)
            for name in steps:
                every = (one[name].loss for one in reports)
                losses.append(tuple(loss for loss in every if loss is not None))
        if learning.algorithm == SAFE_RLHF:
            self.multiplier = self.multiplier.after(np.concatenate(known[COST]))
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
        )

    def _scores(self, model: str, rollouts: Sequence[Rollout], iteration: int) -> list[Floats]:
        """Returns what a model makes of each token of each response; of the cost model that of the last one alone."""
        step = self._steps[model].of_scores(rollouts, iteration)
        every = [np.full(len(one.tokens), np.nan) for one in rollouts]
        for report in self.fleet.call("score_by", model, *step, scored_tokens(rollouts)):
            for sequence, position, made in report:
                for number in np.unique(sequence).tolist():
                    mine = sequence == number
                    every[number][position[mine]] = made[mine]
        if model == COST:
            return [found[-1:] for found in every]
        return [found[one.prompt - 1 : -1] for found, one in zip(every, rollouts, strict=True)]

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
        self.batches.take_over(driver)
        return int(found["next_step"])
