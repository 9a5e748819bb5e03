"""The simulated executor of a job with rollouts: a step of a run is an iteration of generation, scoring and training.

Training is a whole step of the batch's plans, as without rollouts, and each model that scores is the forwards of the
same plans by themselves, on the same clock; generation has a clock of its own (zbench.rollouts.generate), and the
weights' way to it is a step of its own (zbench.rollouts.transition). A schedule puts these together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch, Rollouts
from zbench.describe.job import ONE_STEP_OFF, STREAMED, TRAINING, RolloutJob
from zbench.describe.model import Model
from zbench.interfaces.protocols import Ready
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan
from zbench.rollouts.iteration import (
    GENERATE,
    RESHARD,
    SCORE,
    TRAIN,
    ScheduledIteration,
    StageSeconds,
    scheduled_iteration,
    scored_meanwhile,
)
from zbench.rollouts.job_generation import IterationGeneration, JobGeneration
from zbench.rollouts.transition import Transition, job_engine, job_transition
from zbench.simulated.executor import Simulated
from zbench.simulated.placed_models import PlacedModels, Planner, PlayedModels


@dataclass(frozen=True, slots=True)
class _Generated:
    """The generation of an iteration, and what replicas score meanwhile. ends: when all has ended, and is scored where
    it is meanwhile. scored: seconds in which each replica scores meanwhile, float64 [replicas]."""

    by: IterationGeneration
    ends: float
    scored: Floats

    @property
    def seconds(self) -> Floats:
        """The seconds of each replica, float64 [replicas]."""
        return self.by.seconds


@dataclass(slots=True)
class SimulatedIterations(Simulated):
    """Plays iterations on the cluster of `cost`, which is the part of it that trains the actor; nodes that generate
    alone, and those of other sets of models, are beside it where the job has some. models, planner: as of
    zbench.simulated.placed_models.PlacedModels. transitions: that were played, by job and cost models; executors that
    are made of one another have them in common, as where settings are compared."""

    job: RolloutJob = TRAINING
    models: Mapping[str, Model] = field(default_factory=dict)
    planner: Planner | None = None
    transitions: list[tuple[tuple[RolloutJob, Cost, Cost], Transition]] = field(
        default_factory=list, repr=False, compare=False
    )
    _placed: PlacedModels | None = field(default=None, init=False, repr=False, compare=False)
    _generation: JobGeneration | None = field(default=None, init=False, repr=False, compare=False)
    _beside: float | None = field(default=None, init=False, repr=False, compare=False)

    @staticmethod
    def of(training: Simulated, job: RolloutJob, models: Mapping[str, Model] | None = None) -> "SimulatedIterations":
        """Returns the executor that trains as `training` does, in iterations of a job. models: that are other ones than
        the actor's.

        Raises:
            ValueError: the job does not go with how it trains, or does not fit.
        """
        given = {one.name: getattr(training, one.name) for one in fields(training) if one.init}
        return SimulatedIterations(**given, job=job, models=models or {})

    def __post_init__(self) -> None:
        Simulated.__post_init__(self)
        gpus = self.cost.gpus
        if self.cost.pp > 1:
            raise ValueError(
                f"parallel.pipeline_parallel is {self.cost.pp}; with job=rlhf all layers are on all GPUs, so it takes 1"
            )
        self._generation = JobGeneration.of(self.job, gpus)
        given = {one.name: getattr(self, one.name) for one in fields(Simulated) if one.init}
        self._placed = PlacedModels(self.job, Simulated(**given), self.models, self.planner)
        self._placed.check_room()
        job_engine(self.job, gpus)  # refuses one that does not go with the sharding

    @property
    def plays_steps_alone(self) -> bool:
        """Whether a step's seconds are its own, which an iteration's are not."""
        return False

    @property
    def kv_tokens(self) -> int:
        """The tokens that a micro-batch of a replica has room for, of which no sequence may have more."""
        return self.generation.kv_tokens

    @property
    def generation(self) -> JobGeneration:
        """The job's generation."""
        assert self._generation is not None
        return self._generation

    @property
    def placed(self) -> PlacedModels:
        """The job's models on their nodes."""
        assert self._placed is not None
        return self._placed

    @property
    def _whole(self) -> Cost:
        """The cost model of all GPUs, those that generate alone after those that train."""
        gpus = self.cost.gpus
        nodes = gpus.cluster.num_nodes + self.job.generate_nodes
        return Cost(cluster=replace(gpus.cluster, num_nodes=nodes), model=gpus.model)

    def start(self) -> Ready:
        """Begins a run, whose first iteration is generated with the weights that it trains."""
        self._beside = None
        for one in self.placed.executors:
            one.start()
        return Simulated.start(self)

    def step(self, batch: Batch, plans: tuple[Plan, ...]) -> StepResult:
        """Plays one iteration.

        Raises:
            ValueError: the batch has no prompts and responses, or a sequence has no room in generation.
        """
        if batch.rollouts is None:
            raise ValueError("a batch has no prompts and responses; job=rlhf takes a workload of both, as rl_traces")
        transition = self._transition()
        generated = self._generated(batch, batch.rollouts)
        models = self.placed.play(batch, plans, self.job.schedule == STREAMED)
        seconds = StageSeconds(transition.seconds, generated.ends, models.score, models.train)
        whole = scheduled_iteration(self.job.schedule, seconds, self._beside or 0.0)
        late = self.job.schedule == ONE_STEP_OFF and self._beside is not None
        self._beside = whole.beside
        result = self._together((transition, generated, models), seconds, whole)
        return replace(result, rollouts=self._told(batch, generated, seconds, whole.waited, late))

    def _transition(self) -> Transition:
        """Returns the weights' way to generation, which is played once."""
        change = self.job, self.cost.gpus, self._whole
        for known, transition in self.transitions:
            if known == change:
                return transition
        self.transitions.append((change, job_transition(*change)))
        return self.transitions[-1][1]

    def _generated(self, batch: Batch, rollouts: Rollouts) -> _Generated:
        """Plays generation, and what replicas score meanwhile."""
        of, kept, job = self.generation, len(batch.lengths), self.job
        prompts = np.concatenate([rollouts.prompts, rollouts.given_up[0]])
        responses = np.concatenate([batch.lengths - rollouts.prompts, rollouts.given_up[1]])
        order = _dealt(kept, len(prompts))
        played = of.play(prompts[order], responses[order])
        found = IterationGeneration.of(played, job.stages.generations, of)
        if job.schedule != STREAMED:
            return _Generated(found, float(found.seconds.max()), np.zeros(len(found.seconds)))
        ends = np.zeros(len(order))
        ends[order] = found.before_last + played.ends
        each = [of.decode.prefill_seconds(batch.lengths[at : at + 1]) for at in range(kept)]
        scored = scored_meanwhile(ends[:kept], found.seconds, len(job.stages.scores) * np.array(each))
        return _Generated(found, *scored)

    def _together(
        self,
        stages: tuple[Transition, _Generated, PlayedModels],
        seconds: StageSeconds,
        whole: ScheduledIteration,
    ) -> StepResult:
        """Returns the result of an iteration, of what its stages were by themselves. Ranks are those of the actor's
        set."""
        transition, generated, models = stages
        first = models.trained[0]
        count = len(first.nic_tx_bytes)  # of nodes that train the actor, which come first
        nics = np.zeros((2, count), np.int64)
        for one in models.trained:
            nics += np.array([one.nic_tx_bytes, one.nic_rx_bytes], np.int64)
        sent, spent = dict[str, Any](), dict[str, Any]()
        for one in models.trained:
            for name, sizes in one.nic_tx_for.items():
                sent[name] = sent.get(name, 0) + np.array(sizes)
            for name, values in one.seconds_for.items():
                spent[name] = spent.get(name, 0.0) + np.array(values)
        others = [("parameters", 1, one.nic_tx[:count], one.nic_rx[:count]) for one in transition.played]
        for reads, forward in models.forwards:
            others += [(name, reads, tx, forward.nic_rx[name]) for name, tx in forward.nic_tx.items()]
        for name, times, tx, rx in others:
            nics += times * np.stack([tx, rx])
            if tx.any():
                sent[name] = sent.get(name, 0) + times * tx
        rest = whole.seconds - seconds.train
        for name, more in self._beside_training(generated, models, seconds, whole).items():
            spent[name] = spent.get(name, 0.0) + more
        beside = [self.placed.resting(one) for one in self.job.sets[0] if one in self.job.stages.trains]
        peak = np.max(
            [np.array(one.peak_bytes) + rest for one, rest in zip(models.trained, beside, strict=True)], axis=0
        )
        ceiling = models.train_ceiling
        return replace(
            first,
            seconds=whole.seconds,
            bound_seconds=models.train_bound + rest,
            ceiling_seconds=None if ceiling is None else ceiling + rest,
            attention_seconds=_summed([one.attention_seconds for one in models.trained]),
            linear_seconds=_summed([one.linear_seconds for one in models.trained]),
            communication_seconds=_summed([one.communication_seconds for one in models.trained]),
            exposed_seconds=_summed([one.exposed_seconds for one in models.trained]),
            exposed_nic_seconds=_summed([one.exposed_nic_seconds or [] for one in models.trained]) or None,
            nic_tx_bytes=nics[0].tolist(),
            nic_rx_bytes=nics[1].tolist(),
            host_bytes=self._on_hosts(models.trained, generated.by.host_bytes),
            nvlink_bytes=sum(one.nvlink_bytes for one in models.trained),
            peak_bytes=peak.tolist(),
            out_of_memory=int(peak.max()) > first.capacity_bytes or not models.fits,
            seconds_for={name: values.tolist() for name, values in spent.items() if values.any()},
            nic_tx_for={name: sizes.tolist() for name, sizes in sent.items()},
        )

    def _on_hosts(self, trained: Sequence[StepResult], generated: Ints) -> list[int]:
        """Returns StepResult.host_bytes of the nodes that train the actor: generation and training take turns."""
        every = [np.array(one.host_bytes) for one in trained if one.host_bytes]
        if len(generated) and not self.job.generate_nodes:
            every.append(generated)
        return np.max(every, axis=0).tolist() if every else []

    def _beside_training(
        self, generated: _Generated, models: PlayedModels, seconds: StageSeconds, whole: ScheduledIteration
    ) -> dict[str, Floats]:
        """Returns what an iteration's seconds go to beside training, of every rank."""
        ranks, each = self.cost.gpus.cluster.num_ranks, self.generation.decode.num_gpus
        own, scored = np.zeros((2, ranks))
        if not self.job.generate_nodes:
            own, scored = (np.repeat(one, each) for one in (generated.seconds, generated.scored))
        return {
            "generation": own,
            "waiting_generation": np.maximum(whole.waited - own - scored, 0.0),
            "waiting_parameters": np.full(ranks, seconds.reshard),
            "scoring": scored + models.own_score,
            "waiting_rank": np.full(ranks, models.score - models.own_score + models.train - models.own_train),
        }

    def _told(
        self, batch: Batch, generated: _Generated, seconds: StageSeconds, waited: float, late: bool
    ) -> dict[str, Any]:
        """Returns StepResult.rollouts. late: whether the policy that generated is one update old."""
        assert batch.rollouts is not None
        stages, given_up = self.job.stages, int(batch.rollouts.given_up[1].sum())
        responses = batch.num_tokens - int(batch.rollouts.prompts.sum())
        every = {
            RESHARD: (seconds.reshard, 0),
            GENERATE: (float(generated.seconds.max()), stages.generations * (responses + given_up)),
            SCORE: (seconds.score + float(generated.scored.mean()), len(stages.scores) * batch.num_tokens),
            TRAIN: (seconds.train, len(stages.trains) * batch.num_tokens),
        }
        return {
            "seconds": {name: value for name, (value, _) in every.items()},
            "tokens": {name: tokens for name, (_, tokens) in every.items() if tokens},
            "waited_seconds": waited,
            "generation_imbalance": float(generated.seconds.max() / generated.seconds.mean()),
            "response_tokens": responses,
            "given_up_tokens": given_up,
            "off_policy_tokens": responses if late else 0,
            "policy_age": int(late),
            **({"layouts": dict(generated.by.layouts)} if generated.by.layouts else {}),
        }


def _dealt(kept: int, every: int) -> Ints:
    """Returns the order in which sequences are generated: those that are given up lie evenly among the others."""
    at = np.concatenate([(np.arange(kept) + 0.5) / kept, (np.arange(every - kept) + 0.5) / max(every - kept, 1)])
    return np.argsort(at, kind="stable")


def _summed(seconds: Sequence[list[float]]) -> list[float]:
    """Returns sums over models, of every rank."""
    return [sum(some) for some in zip(*seconds, strict=True)]
