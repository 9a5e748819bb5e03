"""Loops of generation and training that are compared, and their prompts and rewards. No torch, which the driver is to
be without."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from zbench.api.parts import cluster_named, system_named
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch
from zbench.describe.job import STREAMED, SYNCHRONOUS
from zbench.describe.model import Model
from zbench.interfaces.protocols import System
from zbench.rollouts.advantages.grpo import grpo_experience
from zbench.rollouts.advantages.ppo import ppo_experience, remax_experience
from zbench.rollouts.advantages.safe_rlhf import safe_rlhf_experience
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import DS_CHAT, HYBRIDFLOW, STANDALONE
from zbench.rollouts.experience import (
    COST_CRITIC,
    GRPO,
    PPO,
    REMAX,
    SAFE_RLHF,
    Experience,
    Learning,
    Rollout,
)
from zbench.rollouts.experience import CRITIC as CRITIC_NAME
from zbench.runtime.job.job import AdamW
from zbench.runtime.job.step_job import StepJob
from zbench.runtime.rollouts.policy_job import COST, REFERENCE, TAIL, ModelJob, PolicyJob
from zbench.runtime.steps.tokens import TokenParts, tokens_of
from zbench.step.passes.proven import ProvenSteps
from zbench.step.template import Step
from zbench.workloads.fixed import Fixed

# Small, with two queries a kv head, and all numbers of eight bytes, as they are computed with.
POLICY = Model("policy", 2, 8, 8, 4, 4, 12, 16, element_bytes=8, lse_bytes=8)
CRITIC = replace(POLICY, name="critic", hidden=12, num_heads=4, ffn_hidden=8, head="value")  # a model of its own size
PROMPTS, GROUP = 4, 4  # prompts of an iteration, and responses to each
SHORT_ROUNDS = 2  # of tail batching, before each long one
MORE = PROMPTS // SHORT_ROUNDS  # prompts that a short round begins beside those that it trains on
LIMIT = 24  # tokens of a response
# By algorithm, how models learn, and iterations. kl: DeepSeekMath's, and TRL's PPOConfig.kl_coef.
LEARNINGS = {
    GRPO: (Learning(GRPO, epochs=2, kl=0.04), 3),
    PPO: (Learning(PPO, epochs=2, mini_batches=2, kl=0.05), 2),
    REMAX: (Learning(REMAX, mini_batches=2, kl=0.05), 2),
    SAFE_RLHF: (Learning(SAFE_RLHF, epochs=2, mini_batches=2, kl=0.05), 2),
}
RATE = 1e-2  # of learning, so that updates change what is drawn, and ratios are clipped


@dataclass(frozen=True)
class Loop:
    """A loop. engine: by which weights go to generation. replicas: of generation, where it has GPUs of its own. system:
    that divides the rollouts to train with them. algorithm: of LEARNINGS. schedule: of LOOP_SCHEDULES."""

    engine: str
    train: TrainDegrees
    generate: GenerateDegrees
    replicas: int
    system: str
    algorithm: str = GRPO
    schedule: str = SYNCHRONOUS

    def __str__(self) -> str:
        own = f" x {self.replicas}" if self.engine == STANDALONE else ""
        return f"{self.engine} {self.train} to {self.generate}{own}, {self.algorithm}, {self.schedule}, {self.system}"

    @property
    def learning(self) -> Learning:
        """The way in which its models learn."""
        return LEARNINGS[self.algorithm][0]

    @property
    def iterations(self) -> int:
        """The number of its iterations; with tail batching a long round is the last one."""
        return SHORT_ROUNDS + 1 if self.schedule == TAIL else LEARNINGS[self.algorithm][1]

    @property
    def num_ranks(self) -> int:
        """The processes that it takes."""
        return self.train.num_gpus + (self.replicas * self.generate.num_gpus if self.engine == STANDALONE else 0)

    @property
    def cost(self) -> Cost:
        """The cost model of the GPUs that train: ZeRO-3 over all of them where that is the engine's training."""
        return _sharded(POLICY, self.train.num_gpus) if self.engine == DS_CHAT else _sliced(POLICY, self.train)

    @property
    def critic_cost(self) -> Cost:
        """The cost model of the critic, which is planned by it: on the GPUs that generate where these do not train;
        else beside the policy, with its degrees or, where the engine gathers all weights, with ZeRO-3 over all."""
        if self.engine == STANDALONE:
            return _sharded(CRITIC, self.replicas * self.generate.num_gpus)
        return _sliced(CRITIC, self.train) if self.engine == HYBRIDFLOW else _sharded(CRITIC, self.train.num_gpus)

    def job(self, seed: int) -> PolicyJob:
        """Returns what every rank is told. Its steps have no workload but the rollouts."""

        def steps(cost: Cost, drawn: int = seed) -> StepJob:
            return StepJob(cost, Fixed(seed, 1, 1), drawn, "auto", AdamW(lr=RATE), False, "cpu")

        apart = self.learning.kl and self.schedule != STREAMED  # if streamed, it lies where the policy generates
        others = {REFERENCE: ModelJob(steps(self.cost))} if apart else {}
        first = self.train.num_gpus if self.engine == STANDALONE else 0
        if self.algorithm in (PPO, SAFE_RLHF):
            others[CRITIC_NAME] = ModelJob(steps(self.critic_cost), first)
        if self.algorithm == SAFE_RLHF:
            for name in (COST_CRITIC, COST):
                others[name] = ModelJob(steps(self.critic_cost, cost_seed(seed)), first)
        layout = self.engine, self.train, self.generate, self.replicas
        return PolicyJob(steps(self.cost), *layout, LIMIT, others, self.schedule)


def cost_seed(seed: int) -> int:
    """Returns the seed of the cost model's weights, with which its critic begins."""
    return seed + 1


def _sharded(model: Model, gpus: int) -> Cost:
    """Returns the cost model of a model with ZeRO-3 over so many GPUs."""
    cluster = cluster_named("local_2x2", {"num_nodes": 1, "gpus_per_node": gpus, "nics_per_node": 1})
    return make_cost(cluster, replace(model, sharding="zero3"), pipelines=False)


def _sliced(model: Model, train: TrainDegrees) -> Cost:
    """Returns the cost model of a model with these degrees; stages are on nodes of their own."""
    nodes = train.pipeline
    size = {"num_nodes": nodes, "gpus_per_node": train.num_gpus // nodes, "nics_per_node": 1}
    sliced = replace(model, sharding="none", tensor_parallel=train.tensor, pipeline_parallel=nodes)
    return make_cost(cluster_named("local_2x2", size), sliced, pipelines=False)


@dataclass(frozen=True)
class LoopSteps:
    """The steps by which a model of a loop trains, and scores."""

    system: System
    steps: ProvenSteps

    @staticmethod
    def of(system_name: str, cost: Cost) -> "LoopSteps":
        """Returns the steps of a model with a cost model.

        Raises:
            ValueError: there is no such system, or there are no such steps.
        """
        system, _ = system_named(system_name, cost, {})
        gpus = cost.gpus
        return LoopSteps(system, ProvenSteps("the loop", gpus.model, gpus.cluster.num_ranks, cost.tp, cost.pp))

    def of_rollouts(self, rollouts: Sequence[Rollout], iteration: int) -> tuple[Batch, Step, tuple[TokenParts, ...]]:
        """Returns the batch that rollouts are, and the step that trains with it, proven."""
        batch = Batch(np.array([len(one.tokens) for one in rollouts], np.int64), 0, iteration)
        plans = self.system.plan(batch)
        return batch, self.steps.of(batch, plans), tokens_of(self.steps.parts(batch, plans))

    def of_scores(self, rollouts: Sequence[Rollout], iteration: int) -> tuple[Batch, Step, tuple[TokenParts, ...]]:
        """Returns the batch that rollouts are, and the forward that scores it, proven."""
        batch = Batch(np.array([len(one.tokens) for one in rollouts], np.int64), 0, iteration)
        plans = self.system.plan(batch)
        return batch, self.steps.forwards(plans), tokens_of(self.steps.parts(batch, plans))


@dataclass(frozen=True)
class AloneReport:
    """The outcome of an iteration in one process, without its weights. losses: of every update of every model, each the
    mean over responses' tokens; scales: those of its terms' sizes, which have both signs; clipped: tokens whose ratio
    was, or whose value; multiplier: of the cost after it, 1 without one; age: updates of the policy since it generated
    these; given_up: tokens of responses that were given up."""

    sequences: list[Ints]
    losses: list[float]
    scales: list[float]
    clipped: int
    multiplier: float
    age: int = 0
    given_up: int = 0


def prompts_of(seed: int, iteration: int, count: int = PROMPTS) -> list[Ints]:
    """Draws the prompts of an iteration, each as often as responses follow it."""
    rng = np.random.default_rng([seed, iteration, len("prompts")])
    some = [rng.integers(1, POLICY.vocab, int(size)) for size in rng.integers(1, 7, count)]
    return [one for one in some for _ in range(GROUP)]


def rewards_of(rollouts: Sequence[Rollout]) -> Floats:
    """Returns the reward of each response by a rule: the share of its tokens that are even."""
    return np.array([float((one.response % 2 == 0).mean()) for one in rollouts])


def learned_from(
    learning: Learning,
    rollouts: Sequence[Rollout],
    greedy: Sequence[Rollout],
    known: Mapping[str, Sequence[Floats]],
    multiplier: float,
) -> Experience:
    """Returns what models learn from rollouts. greedy: the greedy response to each prompt, for ReMax alone. known: by
    model, what it makes of each token of each response, and the cost model of each response. multiplier: of costs."""
    rewards, reference = rewards_of(rollouts), known.get(REFERENCE, [])
    if learning.algorithm == GRPO:
        return grpo_experience(rollouts, rewards, GROUP, reference)
    if learning.algorithm == REMAX:
        return remax_experience(rollouts, rewards, np.repeat(rewards_of(greedy), GROUP), learning.kl, reference)
    if learning.algorithm == PPO:
        return ppo_experience(rollouts, rewards, known[CRITIC_NAME], learning.kl, reference)
    values = known[CRITIC_NAME], known[COST_CRITIC]
    costs = np.concatenate(known[COST])
    return safe_rlhf_experience(rollouts, (rewards, costs), values, multiplier, learning.kl, reference)
