"""Cases that executed steps are checked on, and what a process came to. No torch, which the driver is to be without."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.exchanges import UNCUT, TokenSlices
from zbench.describe.model import Model
from zbench.plans.plan import Plan
from zbench.runtime.steps.tokens import TokenParts, tokens_of
from zbench.step.byte_law import Chosen
from zbench.step.passes.own_plans import parts_of_layouts
from zbench.step.passes.routing import TOGETHER, ExpertParallel
from zbench.step.template import Step


@dataclass(frozen=True)
class ProcessOptions:
    """Options of processes that run the steps of cases. batched: messages in batches, as NCCL takes them. device: of
    zbench.runtime.job.job.DEVICES."""

    batched: bool = False
    device: str = "auto"


@dataclass(frozen=True)
class StepCase:
    """A step with its data. tokens: of every micro-batch. sequences: token ids of every sequence of the batch, by its
    number. seed: of the parameters. weighed: whether stores tell how many bytes they have, which takes them a while."""

    step: Step
    model: Model
    tokens: tuple[TokenParts, ...]
    sequences: Mapping[int, Ints]
    seed: int = 0
    weighed: bool = False

    @staticmethod
    def of(
        step: Step,
        model: Model,
        plans: Sequence[Plan],
        degree: int,
        seed: int = 0,
        experts: ExpertParallel = TOGETHER,
        slices: TokenSlices = UNCUT,
        shares: Sequence[tuple[float, ...]] = (),
    ) -> "StepCase":
        """Returns a step of plans for groups of `degree` GPUs, with words that are drawn. experts: as the step has
        them; slices: in which exchanges cut tokens; shares: of each plan's sequences, of tokens on hosts."""
        rng = np.random.default_rng(seed)
        lengths = {
            int(one): int(size) for plan in plans for one, size in zip(plan.sequences, plan.lengths, strict=True)
        }
        words = {one: rng.integers(0, model.vocab, lengths[one]) for one in sorted(lengths)}
        parts = parts_of_layouts(plans, model, degree, experts, slices, shares)
        return StepCase(step, model, tokens_of(parts), words, seed)


@dataclass(frozen=True)
class Executed:
    """The outcome of a process: the largest difference of its gradients and of its parameters, over the largest element
    of each, and the loss, None where it is not here. bytes: (sent, received) by queue. held: the most bytes that its
    GPU's store had, 0 where it was not weighed. rows: of seats with a token, as zbench.step.byte_law.Chosen, where they
    are counted."""

    loss: float | None
    wanted_loss: float
    gradients: float
    parameters: float
    bytes: Mapping[str, tuple[int, int]]
    held: int = 0
    rows: Chosen = field(default_factory=dict)
