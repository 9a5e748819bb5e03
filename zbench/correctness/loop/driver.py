"""The driver's side of a loop: it hands prompts out, rewards responses, and has the step made that trains with
them."""

from dataclasses import dataclass, field

import numpy as np

from zbench.correctness.loop.cases import Loop, LoopSteps, learned_from, prompts_of
from zbench.describe.arrays import Ints
from zbench.rollouts.grpo import Rollout, TrainingTokens
from zbench.runtime.job.step_job import Sizes, StepReport
from zbench.runtime.processes.fleet import Fleet
from zbench.runtime.rollouts.policy_job import GenerationReport, PolicyJob
from zbench.step.byte_law import stated_bytes
from zbench.step.proof.prove import prove_step


@dataclass(frozen=True)
class LoopIteration:
    """An iteration of a loop. sequences: prompts with their responses. counted: tokens of responses. losses: of every
    rank that has the loss. moved: bytes of weights (sent, received) before generation, by rank; shared: of each weight
    that a rank trains, whether it lay in the memory of what was generated with. weights: the largest difference after
    it to one process."""

    sequences: list[Ints]
    counted: int
    losses: tuple[float, ...]
    moved: tuple[Sizes, ...]
    shared: tuple[bool, ...]
    weights: float


@dataclass
class LoopDriver:
    """The driver of a loop's ranks. stated: the bytes of weights (sent, received) by rank that their step says."""

    loop: Loop
    job: PolicyJob
    fleet: Fleet
    seed: int
    stated: tuple[Sizes, ...] = field(init=False)
    _steps: LoopSteps = field(init=False)

    def __post_init__(self) -> None:
        self._steps = LoopSteps.of(self.loop)
        prompts = [Rollout(one, 1) for one in prompts_of(self.seed, 0)]  # any tokens: parameters are drawn to a step
        begun = self._steps.of_rollouts(prompts, 0)
        change = self.job.resharded(begun[1]).step
        prove_step(change)
        self.stated = tuple(one.get("parameters", (0, 0)) for one in stated_bytes(change))
        tokens = {number: one.tokens for number, one in enumerate(prompts)}
        nothing = {number: np.zeros(len(one)) for number, one in tokens.items()}
        self.fleet.call("begin", *begun, TrainingTokens(tokens, nothing, 1))

    def iterate(self, iteration: int) -> LoopIteration:
        """Generates, rewards and trains once."""
        prompts = prompts_of(self.seed, iteration)
        generated: list[GenerationReport] = self.fleet.call("generate", iteration, prompts)
        found = {number: one for report in generated for number, one in report.sequences.items()}
        rollouts = [Rollout(found[number], len(prompt)) for number, prompt in enumerate(prompts)]
        given = learned_from(rollouts)
        reports: list[StepReport] = self.fleet.call("learn", *self._steps.of_rollouts(rollouts, iteration), given)
        return LoopIteration(
            [one.tokens for one in rollouts],
            given.counted,
            tuple(one.loss for one in reports if one.loss is not None),
            tuple(report.moved for report in generated),
            tuple(flag for report in generated for flag in report.shared),
            self.fleet.call("difference", iteration)[0],
        )
