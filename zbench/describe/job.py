"""The job of a run: training alone, or iterations of rollouts, as an algorithm of reinforcement learning has them.

Pure data: conf/job sets it; zbench.simulated.iterations plays what it says.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from zbench.describe.checks import check_choice, check_whole_number, is_whole
from zbench.describe.cluster import Cluster
from zbench.describe.rollouts.stages import ALGORITHMS, COLOCATE, NO_ROLLOUTS, PLACEMENTS, IterationStages, placed_sets
from zbench.describe.units import parse, with_noun

SYNCHRONOUS, STREAMED, ONE_STEP_OFF = "synchronous", "streamed", "one_step_off"
SCHEDULES = (SYNCHRONOUS, STREAMED, ONE_STEP_OFF)
AUTO_ENGINE = "auto"
JOB_ENGINES = (AUTO_ENGINE, "ds_chat", "hybridflow_v", "hybridflow")  # zbench.rollouts.engines has them
CONTINUOUS, CHUNKED, SEESAW = GENERATION_ENGINES = ("continuous", "chunked", "seesaw")
OTHER_MODELS = ("reference", "reward", "cost", "critic")  # whose model may be another one than the actor's
MOST_TENSOR, MOST_STAGES = 64, 256  # judgements, so that a wrong number is told as one


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
    generation_engine: how prompts are read (zbench.rollouts.generation_engines). pass_tokens: that a pass which reads
        prompts has at most; None: as the engine usually has them.
    prefill_tensor: with seesaw, GPUs of a tensor-parallel group that reads prompts, of which a replica has as many as
        there is room for; None: 1. host_kv: bytes of host memory for keys and values, a GPU, with seesaw alone; None:
        80 GiB.

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
    generation_engine: str = CONTINUOUS
    pass_tokens: int | None = None
    prefill_tensor: int | None = None
    host_kv: float | None = None

    def __post_init__(self) -> None:
        for name, choices in (
            ("algorithm", tuple(ALGORITHMS)),
            ("schedule", SCHEDULES),
            ("engine", JOB_ENGINES),
            ("placement", PLACEMENTS),
            ("generation_engine", GENERATION_ENGINES),
        ):
            check_choice(f"job.{name}", getattr(self, name), choices)
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

        self._check_generation()
        self._check_models()

    def _check_generation(self) -> None:
        """Refuses passes and layouts that the engine of generation does not have.

        Raises:
            ValueError: the message names the key.
        """
        check_whole_number("job.pass_tokens", self.pass_tokens, 1, or_null=True)
        check_whole_number("job.prefill_tensor", self.prefill_tensor, 1, MOST_TENSOR, or_null=True)
        if self.host_kv is not None:
            size = parse("job.host_kv", self.host_kv, "bytes")
            if not 0 < size < float("inf"):
                raise ValueError(f"job.host_kv is {self.host_kv!r}; it takes bytes of a GPU's share of host memory")
            object.__setattr__(self, "host_kv", size)
        if self.generation_engine != SEESAW:
            for name in ("prefill_tensor", "host_kv"):
                if (value := getattr(self, name)) is not None:
                    raise ValueError(
                        f"job.{name} is {value} and job.generation_engine {self.generation_engine}; only seesaw has "
                        "it, so it takes null"
                    )
            return
        replica, reads = self.generate_tensor * self.generate_pipeline, self.prefill_tensor or 1
        if replica % reads:
            raise ValueError(
                f"job.prefill_tensor is {reads}; it has to divide the {with_noun(replica, 'GPU')} of a replica, "
                "job.generate_tensor times job.generate_pipeline"
            )
        if reads == self.generate_tensor:
            raise ValueError(
                f"job.generation_engine is seesaw and job.generate_tensor {self.generate_tensor}; prompts are read by "
                f"another layout than that which decodes, so with job.prefill_tensor={reads} it takes another number"
            )
        if self.engine != AUTO_ENGINE:
            raise ValueError(
                f"job.engine is {self.engine} and job.generation_engine seesaw; weights come to its layouts from host "
                f"memory, so it takes {AUTO_ENGINE}"
            )

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
