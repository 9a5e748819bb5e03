"""The job of ranks that generate with a policy and train it, and what they answer with. Imports no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch
from zbench.describe.job import ONE_STEP_OFF, STREAMED, SYNCHRONOUS
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import DS_CHAT, STANDALONE, resharding_of
from zbench.rollouts.experience import CRITICS, Rollout
from zbench.rollouts.gathers import ReshardedWeights
from zbench.rollouts.sharded import ShardedWeights
from zbench.rollouts.weights import step_weights
from zbench.runtime.job.step_job import StepJob
from zbench.runtime.steps.tokens import TokenParts
from zbench.step.elements import elements_held
from zbench.step.template import Step

POLICY, REFERENCE, REWARD, COST = "policy", "reference", "reward", "cost"  # models of a loop, beside critics
UNTRAINED = (REFERENCE, REWARD, COST)  # models that score alone
OF_RESPONSES = (REWARD, COST)  # whose value of a response's last token counts, and no other
# Columns of the numbers of tokens (zbench.rollouts.columns), beside those that models make, which have their names.
TOKENS, BEFORE, ADVANTAGES = "tokens", "before", "advantages"
HOME = 0  # the rank that has all numbers of a batch, and computes advantages of them
TAIL = "tail"  # tail batching, synchronous but for which sequences a batch has
LOOP_SCHEDULES = (SYNCHRONOUS, STREAMED, TAIL, ONE_STEP_OFF)


ModelStep = tuple[Batch, Step, tuple[TokenParts, ...]]  # of a model: a batch, its step, and where its tokens are


@dataclass(frozen=True)
class ModelJob:
    """The job of a model beside the policy. steps: of the ranks where it lies, from rank `first` on.

    Raises:
        ValueError: its parameters are not where its forwards leave them, so that it could not be trained after it has
            scored.
    """

    steps: StepJob
    first: int = 0

    def __post_init__(self) -> None:
        model = self.steps.cost.gpus.model
        if model.sharding not in ("none", "zero3"):
            raise ValueError(
                f"model {model.name} has sharding={model.sharding}; one that scores and is trained takes none or zero3"
            )


def returns_of(critic: str) -> str:
    """Returns the name of the column of what a critic is trained to."""
    return f"{critic}.returns"


@dataclass(frozen=True)
class PolicyJob:
    """The job of a loop's ranks. steps: of those that train the policy; the others generate alone, or have other
    models. A model's ranks follow one another, and models that have the same ones are a set. engine, train, generate,
    replicas: as of zbench.rollouts.engines.resharding_of. limit: of tokens of a response. others: the models beside the
    policy, by name.

    Raises:
        ValueError: generation has stages, or slices that are no whole number of training's.
    """

    steps: StepJob
    engine: str
    train: TrainDegrees
    generate: GenerateDegrees
    replicas: int
    limit: int
    others: Mapping[str, ModelJob] = field(default_factory=dict)
    schedule: str = SYNCHRONOUS

    def __post_init__(self) -> None:
        told, slices = f"generate is {self.generate}", self.generate.tensor
        if self.generate.pipeline > 1:
            raise ValueError(f"{told}; processes generate without stages, so it takes 1-{slices}")
        if self.train.tensor % slices:
            raise ValueError(f"{told}; its tensor degree has to divide that of train={self.train}, {self.train.tensor}")
        if self.schedule == ONE_STEP_OFF and self.engine != STANDALONE:
            raise ValueError(
                f"schedule is {self.schedule} and engine {self.engine}; the next batch is generated while this one is "
                f"trained on, so generation takes GPUs of its own: engine {STANDALONE}"
            )

    @property
    def own_ranks(self) -> int:
        """The ranks that train the policy or generate, which are the first ones."""
        beside = self.replicas * self.generate.num_gpus if self.engine == STANDALONE else 0
        return self.train.num_gpus + beside

    @property
    def num_ranks(self) -> int:
        """The ranks of all models."""
        ends = [one.first + one.steps.cost.gpus.cluster.num_ranks for one in self.others.values()]
        return max(self.own_ranks, *ends) if ends else self.own_ranks

    def check_ranks(self, ranks: int) -> None:
        """Raises ValueError unless all models together have just so many ranks, one set behind the other."""
        if self.num_ranks != ranks:
            raise ValueError(f"the sets of models have {self.num_ranks} ranks together, and there are {ranks}")
        sets = {range(self.own_ranks)}
        sets |= {range(one.first, one.first + one.steps.cost.gpus.cluster.num_ranks) for one in self.others.values()}
        for rank in sorted(set(range(ranks)).difference(*sets)):
            raise ValueError(f"rank {rank} has no model; the sets of models follow one another and have all {ranks}")

    @property
    def critics(self) -> list[str]:
        """The names of the critics."""
        return [name for name in CRITICS if name in self.others]

    def told(self) -> dict[str, Any]:
        """Returns the facts that a loop which goes on from a checkpoint has to have in common with the one that wrote
        it."""
        layout = {"engine": self.engine, "train": str(self.train), "generate": str(self.generate)}
        others = {f"{name} at rank {one.first}": one.steps.told() for name, one in self.others.items()}
        numbers = {"replicas": self.replicas, "limit": self.limit, "schedule": self.schedule}
        return self.steps.told() | layout | numbers | others

    def resharded(self, step: Step) -> ReshardedWeights:
        """Returns the change of the policy's weights from training to generation. step: of those that train."""
        model = self.steps.cost.gpus.model
        weights = step_weights(model), model.num_layers, model.element_bytes
        change = resharding_of(self.engine, self.train, self.generate, self.replicas)
        if self.engine == DS_CHAT:
            return ShardedWeights(*weights, change, elements_held(step, step.begins))
        return ReshardedWeights(*weights, change)


@dataclass(frozen=True)
class GenerationRound:
    """The sequences that are generated together. prompts: of each one. greedy: the likeliest tokens, none is drawn.
    responses: to a prompt, which follow each other; kept: of how many prompts, the first ones whose responses have all
    ended, 0: of all. scored: whether what has ended is scored meanwhile."""

    iteration: int
    prompts: Sequence[Ints]
    greedy: bool = False
    responses: int = 1
    kept: int = 0
    scored: bool = False

    @property
    def every(self) -> list[int]:
        """The numbers of all prompts, responses to one counted once."""
        return list(range(len(self.prompts) // self.responses))


@dataclass(frozen=True)
class BatchTold:
    """A batch of rollouts as every rank is told of it. numbers, greedy: those that generation knew its rollouts, and
    the greedy responses behind these, by. lengths, prompts: tokens of all these sequences, and of their prompts."""

    iteration: int
    numbers: Sequence[int]
    greedy: Sequence[int]
    lengths: Sequence[int]
    prompts: Sequence[int]


@dataclass(frozen=True)
class GenerationReport:
    """The responses that a rank generated, which it keeps. rollouts: by number, of the first GPU of a group, nothing of
    others. moved:
    bytes of weights (sent, received) before. shared: of each weight that it trains, whether training had it in the
    memory of what was generated with. updates: of the policy until then. kept: the prompts that are trained on, by
    number, the same of all GPUs that generate. scores: of what the group scored meanwhile, by number, as rollouts;
    early: how many of these before all had been generated."""

    rollouts: dict[int, Rollout]
    moved: tuple[int, int]
    shared: tuple[bool, ...]
    updates: int = 0
    kept: Sequence[int] = ()
    scores: Mapping[int, Floats] = field(default_factory=dict)
    early: int = 0
