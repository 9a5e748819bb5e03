"""Loops of generation and training that are compared, and their prompts and rewards. No torch, which the driver is to
be without."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from zbench.api.parts import cluster_named, system_named
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch
from zbench.describe.model import Model
from zbench.interfaces.protocols import System
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import DS_CHAT, STANDALONE
from zbench.rollouts.grpo import Rollout, TrainingTokens, group_advantages, training_tokens
from zbench.runtime.job.job import AdamW
from zbench.runtime.job.step_job import StepJob
from zbench.runtime.rollouts.policy_job import PolicyJob
from zbench.runtime.steps.tokens import TokenParts, tokens_of
from zbench.step.passes.proven import ProvenSteps
from zbench.step.template import Step
from zbench.workloads.fixed import Fixed

# Small, with two queries a kv head, and all numbers of eight bytes, as they are computed with.
POLICY = Model("policy", 2, 8, 8, 4, 4, 12, 16, element_bytes=8, lse_bytes=8)
PROMPTS, GROUP = 4, 4  # prompts of an iteration, and responses to each
LIMIT = 24  # tokens of a response
ITERATIONS, UPDATES = 3, 2  # and updates after each batch of rollouts
RATE = 1e-2  # of learning, so that updates change what is drawn, and ratios are clipped


@dataclass(frozen=True)
class Loop:
    """A loop. engine: by which weights go to generation. replicas: of generation, where it has GPUs of its own. system:
    that divides the rollouts to train with them."""

    engine: str
    train: TrainDegrees
    generate: GenerateDegrees
    replicas: int
    system: str

    def __str__(self) -> str:
        own = f" x {self.replicas}" if self.engine == STANDALONE else ""
        return f"{self.engine} {self.train} to {self.generate}{own}, {self.system}"

    @property
    def num_ranks(self) -> int:
        """The processes that it takes."""
        return self.train.num_gpus + (self.replicas * self.generate.num_gpus if self.engine == STANDALONE else 0)

    @property
    def cost(self) -> Cost:
        """The cost model of the GPUs that train: ZeRO-3 over all of them where that is the engine's training."""
        nodes = self.train.pipeline  # stages are on nodes of their own
        gpus = self.train.num_gpus // nodes
        cluster = cluster_named("local_2x2", {"num_nodes": nodes, "gpus_per_node": gpus, "nics_per_node": 1})
        if self.engine == DS_CHAT:
            return make_cost(cluster, replace(POLICY, sharding="zero3"), pipelines=False)
        tp, pp = self.train.tensor, self.train.pipeline
        model = replace(POLICY, sharding="none", tensor_parallel=tp, pipeline_parallel=pp)
        return make_cost(cluster, model, pipelines=False)

    def job(self, seed: int) -> PolicyJob:
        """Returns what every rank is told. Its steps have no workload but the rollouts."""
        steps = StepJob(self.cost, Fixed(seed, 1, 1), seed, "auto", AdamW(lr=RATE), False, "cpu")
        return PolicyJob(steps, self.engine, self.train, self.generate, self.replicas, LIMIT)


@dataclass(frozen=True)
class LoopSteps:
    """The steps by which a loop trains."""

    system: System
    steps: ProvenSteps

    @staticmethod
    def of(loop: Loop) -> "LoopSteps":
        """Returns the steps of a loop.

        Raises:
            ValueError: there is no such system, or there are no such steps.
        """
        cost = loop.cost
        system, _ = system_named(loop.system, cost, {})
        gpus = cost.gpus
        return LoopSteps(system, ProvenSteps("the loop", gpus.model, gpus.cluster.num_ranks, cost.tp, cost.pp))

    def of_rollouts(self, rollouts: Sequence[Rollout], iteration: int) -> tuple[Batch, Step, tuple[TokenParts, ...]]:
        """Returns the batch that rollouts are, and the step that trains with it, proven."""
        batch = Batch(np.array([len(one.tokens) for one in rollouts], np.int64), 0, iteration)
        plans = self.system.plan(batch)
        return batch, self.steps.of(batch, plans), tokens_of(self.steps.parts(batch, plans))


@dataclass(frozen=True)
class AloneReport:
    """The outcome of an iteration in one process, without its weights. losses: of every update, each the mean over
    responses' tokens; scales: those of its terms' sizes, which have both signs; clipped: tokens whose ratio was."""

    sequences: list[Ints]
    losses: list[float]
    scales: list[float]
    clipped: int


def prompts_of(seed: int, iteration: int) -> list[Ints]:
    """Draws the prompts of an iteration, each as often as responses follow it."""
    rng = np.random.default_rng([seed, iteration, len("prompts")])
    some = [rng.integers(1, POLICY.vocab, int(size)) for size in rng.integers(1, 7, PROMPTS)]
    return [one for one in some for _ in range(GROUP)]


def rewards_of(rollouts: Sequence[Rollout]) -> Floats:
    """Returns the reward of each response by a rule: the share of its tokens that are even."""
    return np.array([float((one.response % 2 == 0).mean()) for one in rollouts])


def learned_from(rollouts: Sequence[Rollout]) -> TrainingTokens:
    """Returns what rollouts train with."""
    return training_tokens(rollouts, group_advantages(rewards_of(rollouts), GROUP))
