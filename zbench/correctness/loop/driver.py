"""The driver's side of a loop: it hands prompts out, rewards responses, and has the step made that trains with
them."""

import json
from dataclasses import dataclass, field

import numpy as np

from zbench.correctness.loop.cases import UPDATES, Loop, LoopSteps, learned_from, prompts_of
from zbench.describe.arrays import Ints
from zbench.rollouts.grpo import Rollout, training_tokens
from zbench.runtime.checkpoints.folder import check_files, checkpoint_description
from zbench.runtime.job.step_job import Sizes, StepReport
from zbench.runtime.processes.fleet import Fleet
from zbench.runtime.rollouts.policy_job import GenerationReport, PolicyJob
from zbench.step.byte_law import stated_bytes
from zbench.step.proof.prove import prove_step


@dataclass(frozen=True)
class LoopIteration:
    """An iteration of a loop. sequences: prompts with their responses. counted: tokens of responses. losses: of every
    update, by the ranks that have it. moved: bytes of weights (sent, received) before generation, by rank; shared: of
    each weight that a rank trains, whether it lay in the memory of what was generated with. weights: the largest
    difference after it to one process; digests: of parameters and optimizer state then, by rank."""

    sequences: list[Ints]
    counted: int
    losses: tuple[tuple[float, ...], ...]
    moved: tuple[Sizes, ...]
    shared: tuple[bool, ...]
    weights: float
    digests: tuple[str, ...]


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
        prompts = [Rollout(one, len(one), np.zeros(0)) for one in prompts_of(self.seed, 0)]
        begun = self._steps.of_rollouts(prompts, 0)  # of any tokens: parameters are drawn to where a step wants them
        change = self.job.resharded(begun[1]).step
        prove_step(change)
        self.stated = tuple(one.get("parameters", (0, 0)) for one in stated_bytes(change))
        self.fleet.call("begin", *begun, training_tokens(prompts, np.zeros(len(prompts))))

    def iterate(self, iteration: int, compared: bool = True) -> LoopIteration:
        """Generates and rewards once, and trains with that. compared: whether weights are, to one process; 0 if not."""
        prompts = prompts_of(self.seed, iteration)
        generated: list[GenerationReport] = self.fleet.call("generate", iteration, prompts)
        found = {number: one for report in generated for number, one in report.rollouts.items()}
        rollouts = [found[number] for number in range(len(prompts))]
        given, step = learned_from(rollouts), self._steps.of_rollouts(rollouts, iteration)
        updates: list[list[StepReport]] = [self.fleet.call("learn", *step, given) for _ in range(UPDATES)]
        return LoopIteration(
            [one.tokens for one in rollouts],
            given.counted,
            tuple(tuple(one.loss for one in reports if one.loss is not None) for reports in updates),
            tuple(report.moved for report in generated),
            tuple(flag for report in generated for flag in report.shared),
            self.fleet.call("difference", iteration)[0] if compared else 0.0,
            tuple(self.fleet.call("digest")),
        )

    def save(self, path: str, iteration: int) -> None:
        """Has ranks write a checkpoint that goes on with an iteration."""
        self.fleet.call("save", path, iteration)

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
        return int(found["next_step"])
