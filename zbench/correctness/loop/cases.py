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
from zbench.describe.rollouts.stages import COLOCATE, SPLIT
from zbench.describe.rollouts.stages import STANDALONE as STANDALONE_MODELS
from zbench.interfaces.protocols import System
from zbench.rollouts.advantages.grpo import grpo_experience
from zbench.rollouts.advantages.ppo import ppo_experience, remax_experience
from zbench.rollouts.advantages.safe_rlhf import safe_rlhf_experience
from zbench.rollouts.degrees import GenerateDegrees, TrainDegrees
from zbench.rollouts.engines import DS_CHAT, HYBRIDFLOW_V, STANDALONE
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
from zbench.rollouts.model_sets import ModelSets
from zbench.runtime.job.job import AdamW
from zbench.runtime.job.step_job import StepJob
from zbench.runtime.rollouts.policy_job import COST, REFERENCE, REWARD, TAIL, ModelJob, ModelStep, PolicyJob
from zbench.runtime.steps.tokens import tokens_of
from zbench.step.passes.proven import ProvenSteps
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
    that divides the rollouts to train with them. algorithm: of LEARNINGS. schedule: of LOOP_SCHEDULES. placement: which
    models share GPUs, of zbench.describe.rollouts.stages.PLACEMENTS; beside: GPUs of each set of models behind the
    actor's. has_reward_model: whether a model rewards responses, and no rule."""

    engine: str
    train: TrainDegrees
    generate: GenerateDegrees
    replicas: int
    system: str
    algorithm: str = GRPO
    schedule: str = SYNCHRONOUS
    placement: str = COLOCATE
    beside: tuple[int, ...] = ()
    has_reward_model: bool = False

    def __str__(self) -> str:
        own = f" x {self.replicas}" if self.engine == STANDALONE else ""
        sets = f", {self.placement} beside {' '.join(map(str, self.beside))}" if self.beside else ""
        told = f"{self.algorithm}, {self.schedule}, {self.system}"
        return f"{self.engine} {self.train} to {self.generate}{own}{sets}, {told}"

    @property
    def learning(self) -> Learning:
        """The way in which its models learn."""
        return LEARNINGS[self.algorithm][0]

    @property
    def iterations(self) -> int:
        """The number of its iterations; with tail batching a long round is the last one."""
        return SHORT_ROUNDS + 1 if self.schedule == TAIL else LEARNINGS[self.algorithm][1]

    @property
    def own_ranks(self) -> int:
        """The processes of the actor's set, which train the policy or generate."""
        return self.train.num_gpus + (self.replicas * self.generate.num_gpus if self.engine == STANDALONE else 0)

    @property
    def num_ranks(self) -> int:
        """The processes that it takes."""
        return self.own_ranks + sum(self.beside)

    @property
    def others(self) -> list[str]:
        """The names of the models beside the policy, in the order in which they score."""
        found = [REFERENCE] if self.learning.kl and self.schedule != STREAMED else []  # streamed, it is the policy's
        found += [REWARD] if self.has_reward_model else []
        found += [CRITIC_NAME] if self.algorithm in (PPO, SAFE_RLHF) else []
        return found + ([COST_CRITIC, COST] if self.algorithm == SAFE_RLHF else [])

    @property
    def sets(self) -> ModelSets:
        """The sets of models that share processes.

        Raises:
            ValueError: as ModelSets.of, or the reference has a set of its own and is to score where the policy is.
        """
        if self.schedule == STREAMED and self.placement == STANDALONE_MODELS:
            raise ValueError(
                f"schedule is {STREAMED} and placement {self.placement}; the reference scores meanwhile, beside the "
                f"actor, so it takes {COLOCATE} or {SPLIT}"
            )
        return ModelSets.of(self.placement, self.others, self.own_ranks, self.beside)

    @property
    def cost(self) -> Cost:
        """The cost model of the GPUs that train: ZeRO-3 over all of them where that is the engine's training."""
        return self._cost_beside(POLICY)

    def place_of(self, model: str) -> tuple[int, Cost]:
        """Returns the first process of a model beside the policy, and its cost model. In the actor's set it has the
        policy's degrees, or ZeRO-3 over all where the engine gathers all weights; but critics and what rewards lie on
        the GPUs that generate where these do not train. On processes of its own set it has ZeRO-3 over them.

        Raises:
            ValueError: as ModelSets.of.
        """
        of, (first, gpus) = POLICY if model == REFERENCE else CRITIC, self.sets.place_of(model)
        if first:
            return first, _sharded(of, gpus)
        if model != REFERENCE and self.engine == STANDALONE:
            return self.train.num_gpus, _sharded(of, self.replicas * self.generate.num_gpus)
        return 0, self._cost_beside(of)

    def job(self, seed: int) -> PolicyJob:
        """Returns what every rank is told. Its steps have no workload but the rollouts.

        Raises:
            ValueError: as ModelSets.of, and as PolicyJob.
        """

        def steps(cost: Cost, drawn: int = seed) -> StepJob:
            return StepJob(cost, Fixed(seed, 1, 1), drawn, "auto", AdamW(lr=RATE), False, "cpu")

        seeds = {REWARD: reward_seed(seed), COST: cost_seed(seed), COST_CRITIC: cost_seed(seed)}
        others = {}
        for name in self.others:
            first, cost = self.place_of(name)
            others[name] = ModelJob(steps(cost, seeds.get(name, seed)), first)
        layout = self.engine, self.train, self.generate, self.replicas
        return PolicyJob(steps(self.cost), *layout, LIMIT, others, self.schedule)

    def _cost_beside(self, model: Model) -> Cost:
        """Returns the cost model of a model that lies as the policy does."""
        gathers_all = self.engine == DS_CHAT or (model == CRITIC and self.engine == HYBRIDFLOW_V)
        return _sharded(model, self.train.num_gpus) if gathers_all else _sliced(model, self.train)


def cost_seed(seed: int) -> int:
    """Returns the seed of the cost model's weights, with which its critic begins."""
    return seed + 1


def reward_seed(seed: int) -> int:
    """Returns the seed of the reward model's weights."""
    return seed + 2


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

    def of_rollouts(self, lengths: Sequence[int], iteration: int) -> ModelStep:
        """Returns the batch of sequences with these lengths, and the step that trains with it, proven."""
        batch = Batch(np.array(lengths, np.int64), 0, iteration)
        plans = self.system.plan(batch)
        return batch, self.steps.of(batch, plans), tokens_of(self.steps.parts(batch, plans))

    def of_scores(self, lengths: Sequence[int], iteration: int) -> ModelStep:
        """Returns the batch of sequences with these lengths, and the forward that scores it, proven."""
        batch = Batch(np.array(lengths, np.int64), 0, iteration)
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
    model, what it makes of each token of each response; the cost model and the reward model of each response, the
    latter of greedy ones behind the others, too. multiplier: of costs."""
    reference, count = known.get(REFERENCE, []), len(rollouts)
    rewards = np.concatenate(known[REWARD]) if REWARD in known else rewards_of([*rollouts, *greedy])
    rewards, base = rewards[:count], rewards[count:]
    if learning.algorithm == GRPO:
        return grpo_experience(rollouts, rewards, GROUP)
    if learning.algorithm == REMAX:
        return remax_experience(rollouts, rewards, np.repeat(base, GROUP), learning.kl, reference)
    if learning.algorithm == PPO:
        return ppo_experience(rollouts, rewards, known[CRITIC_NAME], learning.kl, reference)
    values = known[CRITIC_NAME], known[COST_CRITIC]
    costs = np.concatenate(known[COST])
    return safe_rlhf_experience(rollouts, (rewards, costs), values, multiplier, learning.kl, reference)
