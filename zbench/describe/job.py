"""The job of a run: training alone, or iterations of rollouts, as an algorithm of reinforcement learning has them.

Pure data: conf/job sets it; zbench.simulated.iterations plays what it says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType

from zbench.describe.checks import check_whole_number, is_whole
from zbench.describe.cluster import Cluster
from zbench.describe.units import with_noun

NO_ROLLOUTS, SYNCHRONOUS, STREAMED, ONE_STEP_OFF = "none", "synchronous", "streamed", "one_step_off"
SCHEDULES = (SYNCHRONOUS, STREAMED, ONE_STEP_OFF)
AUTO_ENGINE = "auto"
JOB_ENGINES = (AUTO_ENGINE, "ds_chat", "hybridflow_v", "hybridflow")  # zbench.rollouts.engines has them
ACTOR = "actor"  # the model that generates
GREEDY = "_of_greedy"  # behind the name of a model, of its score of greedy responses
PLACEMENTS = COLOCATE, SPLIT, STANDALONE = ("colocate", "split", "standalone")
OTHER_MODELS = ("reference", "reward", "cost", "critic")  # whose model may be another one than the actor's
_WITH_ACTOR = (ACTOR, "reference")  # of a split placement
MOST_TENSOR, MOST_STAGES = 64, 256  # judgements, so that a wrong number is told as one


@dataclass(frozen=True, slots=True)
class IterationStages:
    """The stages of an iteration. generations: how often the actor generates from every prompt. scores: models that
    read all sequences once, forward alone. trains: models that are trained on them."""

    generations: int
    scores: tuple[str, ...]
    trains: tuple[str, ...]

    @property
    def models(self) -> tuple[str, ...]:
        """The models of an iteration, each once, the actor first."""
        return tuple(dict.fromkeys([ACTOR, *map(_read_by, self.scores), *self.trains]))

    def reads(self, model: str) -> int:
        """Returns how often a model reads all sequences to score them."""
        return [_read_by(one) for one in self.scores].count(model)


def _read_by(score: str) -> str:
    """Returns the model that a score is of."""
    return score.removesuffix(GREEDY)


def placed_sets(placement: str, models: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Returns the sets of models that share GPUs, the actor's first: in one, COLOCATE (as DeepSpeed-Chat has them); the
    actor and the reference apart from all others, SPLIT (NeMo-Aligner); each by itself, STANDALONE (OpenRLHF)."""
    if placement == STANDALONE:
        return tuple((one,) for one in models)
    with_actor = tuple(one for one in models if placement == COLOCATE or one in _WITH_ACTOR)
    others = tuple(one for one in models if one not in with_actor)
    return (with_actor, others) if others else (with_actor,)


# By algorithm. The data flow of the first three: HybridFlow (arXiv 2409.19256), figure 1, from memory; GRPO:
# DeepSeekMath (arXiv 2402.03300), section 4.1, which has no critic. ReMax (arXiv 2310.10505) takes the reward of a
# greedy response to the same prompt for its baseline.
ALGORITHMS: Mapping[str, IterationStages] = MappingProxyType({
    NO_ROLLOUTS: IterationStages(0, (), ("actor",)),
    "ppo": IterationStages(1, ("reference", "reward", "critic"), ("actor", "critic")),
    "remax": IterationStages(2, ("reference", "reward", "reward_of_greedy"), ("actor",)),
    "safe_rlhf": IterationStages(1, ("reference", "reward", "cost", "critic"), ("actor", "critic")),
    "grpo": IterationStages(1, ("reference", "reward"), ("actor",)),
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class RolloutJob:
    """The job of a run, of which a step is a training step, or an iteration of generation, scoring and training.

    algorithm: none, a training step alone; ppo, remax, safe_rlhf, grpo, with the stages of ALGORITHMS.
    schedule: synchronous, one stage after another; streamed, GPUs that have generated theirs score these meanwhile;
        one_step_off, the next batch is generated while this one is trained on, by the policy before.
    generate_tensor: GPUs of a tensor-parallel group that generates; generate_pipeline: stages of such groups that a
        replica has. generate_nodes: nodes of the cluster that generate alone, 0: all generate, and train.
    memory_share: of a GPU's memory, for weights and keys and values of generation. engine: what brings weights from
        training to generation on the same GPUs; auto: what goes with the sharding.
    placement: which models share GPUs (placed_sets). set_nodes: the nodes of each set; None: each has as many.
    reference, reward, cost, critic: names of models (conf/model); None: the actor's.

    Raises:
        ValueError: one of them cannot be; the message names its key.
    """

    algorithm: str = NO_ROLLOUTS
    schedule: str = SYNCHRONOUS
    generate_tensor: int = 1
    generate_nodes: int = 0
    memory_share: float = 0.5
    engine: str = AUTO_ENGINE
    placement: str = COLOCATE
    set_nodes: Sequence[int] | None = None
    reference: str | None = None
    reward: str | None = None
    cost: str | None = None
    critic: str | None = None
    generate_pipeline: int = 1

    def __post_init__(self) -> None:
        for name, choices in (
            ("algorithm", tuple(ALGORITHMS)),
            ("schedule", SCHEDULES),
            ("engine", JOB_ENGINES),
            ("placement", PLACEMENTS),
        ):
            value = getattr(self, name)
            if value not in choices:
                raise ValueError(f"job.{name} is {value!r}; it takes {', '.join(choices[:-1])} or {choices[-1]}")
        check_whole_number("job.generate_tensor", self.generate_tensor, 1, MOST_TENSOR)
        check_whole_number("job.generate_pipeline", self.generate_pipeline, 1, MOST_STAGES)
        check_whole_number("job.generate_nodes", self.generate_nodes, 0)
        share = self.memory_share
        if not (isinstance(share, float) or is_whole(share)) or not 0 < share <= 1:
            raise ValueError(f"job.memory_share is {share!r}; it takes a number above 0 and at most 1")
        for one in () if self.has_rollouts else fields(self)[1:]:
            if getattr(self, one.name) != one.default:
                raise ValueError(
                    f"job.{one.name} is {getattr(self, one.name)}; without rollouts it takes {one.default}, and "
                    "job=rlhf others"
                )
        if self.schedule == ONE_STEP_OFF and not self.generate_nodes:
            raise ValueError(
                "job.schedule is one_step_off and job.generate_nodes 0; generation beside training takes nodes of its "
                "own, so job.generate_nodes has to be at least 1"
            )
        if self.schedule == STREAMED and self.generate_nodes:
            raise ValueError(
                f"job.schedule is streamed and job.generate_nodes {self.generate_nodes}; GPUs score what they have "
                "generated, so it takes job.generate_nodes=0"
            )
        if self.schedule == STREAMED and self.generate_pipeline > 1:
            raise ValueError(
                f"job.schedule is streamed and job.generate_pipeline {self.generate_pipeline}; a replica scores one "
                "sequence at a time, for which stages would wait for each other, so it takes 1"
            )
        if self.engine != AUTO_ENGINE and self.generate_nodes:
            raise ValueError(
                f"job.engine is {self.engine} and job.generate_nodes {self.generate_nodes}; engines bring weights to "
                f"generation on training's GPUs, so job.engine takes {AUTO_ENGINE}"
            )

        self._check_models()

    def _check_models(self) -> None:
        """Refuses sets and models that an iteration of this job does not have.

        Raises:
            ValueError: the message names the key.
        """
        for role in OTHER_MODELS:
            name = getattr(self, role)
            if name is not None and role not in self.stages.models:
                raise ValueError(f"job.{role} is {name}; {self.algorithm} has no {role}, so it takes null")
            if name is not None and self.schedule == STREAMED:
                raise ValueError(
                    f"job.{role} is {name} and job.schedule streamed; models that score meanwhile are cut as the actor "
                    "that generates is, so it takes null"
                )
        for name, value, usual in (
            ("generate_nodes", self.generate_nodes, 0),
            ("schedule", self.schedule, SYNCHRONOUS),
        ):
            if self.placement != COLOCATE and value != usual:
                raise ValueError(
                    f"job.{name} is {value} and job.placement {self.placement}; the actor's set generates, one stage "
                    f"after another, so it takes {usual}"
                )
        if self.set_nodes is not None and self.placement == COLOCATE:
            raise ValueError(f"job.set_nodes is {self.set_nodes}; with job.placement={COLOCATE} it takes null")
        if self.set_nodes is not None:
            nodes, sets = self.set_nodes, self.sets
            if not isinstance(nodes, list | tuple) or len(nodes) != len(sets):
                told = "; ".join(map(", ".join, sets))
                raise ValueError(
                    f"job.set_nodes is {nodes}; with job.placement={self.placement} it takes a list of "
                    f"{with_noun(len(sets), 'number')} ({told}), or null"
                )
            for one in nodes:
                check_whole_number("job.set_nodes", one, 1)

    @property
    def sets(self) -> tuple[tuple[str, ...], ...]:
        """The sets of models that share GPUs, the actor's first."""
        return placed_sets(self.placement, self.stages.models)

    @property
    def has_rollouts(self) -> bool:
        """Whether steps are iterations with generation."""
        return self.algorithm != NO_ROLLOUTS

    @property
    def stages(self) -> IterationStages:
        """The stages of an iteration."""
        return ALGORITHMS[self.algorithm]

    def training_part(self, cluster: Cluster) -> Cluster:
        """Returns the nodes of a cluster on which the actor trains.

        Raises:
            ValueError: none are left.
        """
        if self.placement != COLOCATE:
            return replace(cluster, num_nodes=self.nodes_of_sets(cluster)[0])
        if not self.generate_nodes:
            return cluster
        if self.generate_nodes >= cluster.num_nodes:
            raise ValueError(
                f"job.generate_nodes is {self.generate_nodes}; cluster {cluster.name} has num_nodes="
                f"{cluster.num_nodes}, of which at least 1 trains, so it takes at most {cluster.num_nodes - 1}"
            )
        return replace(cluster, num_nodes=cluster.num_nodes - self.generate_nodes)

    def nodes_beside(self, own: int) -> int:
        """Returns the nodes of all sets but the actor's, which has `own`."""
        if self.set_nodes is not None:
            return sum(self.set_nodes[1:])
        return own * (len(self.sets) - 1)

    def nodes_of_sets(self, cluster: Cluster) -> tuple[int, ...]:
        """Returns the nodes of a whole cluster that each set has.

        Raises:
            ValueError: they are other than the cluster's, or it does not divide evenly.
        """
        nodes, sets = cluster.num_nodes, self.sets
        if self.set_nodes is not None:
            if sum(self.set_nodes) != nodes:
                raise ValueError(
                    f"job.set_nodes is {list(self.set_nodes)}; cluster {cluster.name} has num_nodes={nodes}, which "
                    "the sets have together"
                )
            return tuple(self.set_nodes)
        if nodes % len(sets):
            raise ValueError(
                f"job.placement is {self.placement}, which has {len(sets)} sets of models; cluster {cluster.name} has "
                f"num_nodes={nodes}, which does not divide evenly: use job.set_nodes, as in "
                f"job.set_nodes=[{','.join(['1'] * len(sets))}]"
            )
        return (nodes // len(sets),) * len(sets)


TRAINING = RolloutJob()  # a training step alone
