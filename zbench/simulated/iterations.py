"""The simulated executor of a job with rollouts: a step of a run is an iteration of generation, scoring and training.

Training is a whole step of the batch's plans, as without rollouts, and each model that scores is the forwards of the
same plans by themselves, on the same clock; generation has a clock of its own (zbench.rollouts.generate), and the
weights' way to it is a step of its own (zbench.rollouts.transition). A schedule puts these together.
"""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.memory import static_bytes
from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch, Rollouts
from zbench.describe.job import ONE_STEP_OFF, STREAMED, TRAINING, RolloutJob
from zbench.interfaces.protocols import Ready
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan
from zbench.rollouts.generate import GenerationCost, generate
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
from zbench.rollouts.transition import Transition, job_engine, job_transition
from zbench.simulated.executor import Simulated
from zbench.simulator.steps.play import PlayedStep, play_step
from zbench.step.passes.own_plans import plans_of_layouts


@dataclass(frozen=True, slots=True)
class _Generated:
    """What was generated. seconds: of each replica, float64 [replicas]. ends: when all has ended, and is scored where
    it is meanwhile. scored: seconds in which each replica scores meanwhile, float64 [replicas]."""

    seconds: Floats
    ends: float
    scored: Floats


@dataclass(slots=True)
class SimulatedIterations(Simulated):
    """Plays iterations on the cluster of `cost`, which is the part of it that trains, and nodes that generate alone
    where the job has some."""

    job: RolloutJob = TRAINING
    _generation: GenerationCost | None = field(default=None, init=False, repr=False, compare=False)
    _transition: Transition | None = field(default=None, init=False, repr=False, compare=False)
    _beside: float | None = field(default=None, init=False, repr=False, compare=False)

    @staticmethod
    def of(training: Simulated, job: RolloutJob) -> "SimulatedIterations":
        """Returns the executor that trains as `training` does, in iterations of a job.

        Raises:
            ValueError: the job does not go with how it trains, or does not fit.
        """
        given = {one.name: getattr(training, one.name) for one in fields(training) if one.init}
        return SimulatedIterations(**given, job=job)

    def __post_init__(self) -> None:
        Simulated.__post_init__(self)
        gpus = self.cost.gpus
        if self.cost.pp > 1:
            raise ValueError(
                f"parallel.pipeline_parallel is {self.cost.pp}; with job=rlhf all layers are on all GPUs, so it takes 1"
            )
        self._generation = GenerationCost(
            Cost(cluster=self._generating.cluster, model=gpus.model),
            self.job.generate_tensor,
            self.job.memory_share,
            "job.generate_tensor",
        )
        self._check_room()
        job_engine(self.job, gpus)  # refuses one that does not go with the sharding

    @property
    def kv_tokens(self) -> int:
        """The tokens that a replica has room for, of which no sequence may have more."""
        assert self._generation is not None
        return self._generation.kv_tokens

    @property
    def _whole(self) -> Cost:
        """The cost model of all GPUs, those that generate alone after those that train."""
        gpus = self.cost.gpus
        nodes = gpus.cluster.num_nodes + self.job.generate_nodes
        return Cost(cluster=replace(gpus.cluster, num_nodes=nodes), model=gpus.model)

    @property
    def _generating(self) -> Cost:
        """The cost model of the GPUs that generate."""
        gpus, nodes = self.cost.gpus, self.job.generate_nodes
        cluster = replace(gpus.cluster, num_nodes=nodes) if nodes else gpus.cluster
        return Cost(cluster=cluster, model=gpus.model)

    @property
    def _resting(self) -> int:
        """The bytes on a GPU of the models beside the actor that trains: another one's state, and weights, which are
        cut as the actor's are."""
        cost, stages = self.cost, self.job.stages
        model = cost.gpus.model
        cut = cost.gpus.cluster.num_ranks if model.sharding == "zero3" else cost.tp
        scoring = len(set(stages.scores) - set(stages.trains))
        trained = (len(stages.trains) - 1) * (static_bytes(cost) // cost.tp)
        return trained + scoring * model.element_bytes * model.total_params // cut

    def _check_room(self) -> None:
        """Refuses what has no room on a GPU that trains while it generates.

        Raises:
            ValueError: it says what needs how much.
        """
        job, device = self.job, self.cost.gpus.cluster.device
        if job.generate_nodes:
            return
        kept, share = static_bytes(self.cost) // self.cost.tp + self._resting, job.memory_share
        weights = self.cost.gpus.model.element_bytes * self.cost.gpus.model.total_params
        if job.schedule == STREAMED:  # in slices of a replica, beside their shards
            kept += len(job.stages.scores) * weights // job.generate_tensor
        if kept + share * device.memory_bytes > device.memory_bytes:
            most, own = 1 - kept / device.memory_bytes, weights / job.generate_tensor
            remedy = f"so it takes at most {most:.2f}"
            if most * device.memory_bytes <= own:
                remedy = (
                    f"beside which {own / 2**30:.1f} GiB of weights that generate have no room: use sharding=zero3, a "
                    "larger job.generate_tensor, or more GPUs"
                )
            raise ValueError(
                f"job.memory_share is {share}; model {self.cost.model.name} does not fit: {kept / 2**30:.1f} GiB of "
                f"{job.algorithm}'s models stay on a GPU of {device.memory_bytes / 2**30:.1f} GiB while it generates, "
                f"{remedy}"
            )

    def start(self) -> Ready:
        """Begins a run, whose first iteration is generated with the weights that it trains."""
        self._beside = None
        return Simulated.start(self)

    def step(self, batch: Batch, plans: tuple[Plan, ...]) -> StepResult:
        """Plays one iteration.

        Raises:
            ValueError: the batch has no prompts and responses, or a sequence has no room in generation.
        """
        if batch.rollouts is None:
            raise ValueError("a batch has no prompts and responses; job=rlhf takes a workload of both, as rl_traces")
        trained = Simulated.step(self, batch, plans)
        transition = self._transition = self._transition or job_transition(self.job, self.cost.gpus, self._whole)
        generated = self._generated(batch, batch.rollouts)
        streamed, stages = self.job.schedule == STREAMED, self.job.stages
        forward = None if streamed else play_step(self.steps.forwards(plans), plans_of_layouts(plans), self.cost.gpus)
        score = 0.0 if forward is None else len(stages.scores) * forward.seconds
        seconds = StageSeconds(transition.seconds, generated.ends, score, len(stages.trains) * trained.seconds)
        whole = scheduled_iteration(self.job.schedule, seconds, self._beside or 0.0)
        late = self.job.schedule == ONE_STEP_OFF and self._beside is not None
        self._beside = whole.beside
        result = self._together(trained, (transition, generated, forward), seconds, whole)
        return replace(result, rollouts=self._told(batch, generated, seconds, whole.waited, late))

    def _generated(self, batch: Batch, rollouts: Rollouts) -> _Generated:
        """Plays generation, and what replicas score meanwhile."""
        of, kept, job = self._generation, len(batch.lengths), self.job
        assert of is not None
        prompts = np.concatenate([rollouts.prompts, rollouts.given_up[0]])
        responses = np.concatenate([batch.lengths - rollouts.prompts, rollouts.given_up[1]])
        order = _dealt(kept, len(prompts))
        played = generate(prompts[order], responses[order], of, of.cost.cluster.num_ranks // of.tensor)
        seconds = job.stages.generations * played.seconds
        if job.schedule != STREAMED:
            return _Generated(seconds, float(seconds.max()), np.zeros(len(seconds)))
        ends = np.zeros(len(order))
        ends[order] = (job.stages.generations - 1) * float(played.seconds.max()) + played.ends
        each = [of.prefill_seconds(batch.lengths[at : at + 1]) for at in range(kept)]
        scored = scored_meanwhile(ends[:kept], seconds, len(job.stages.scores) * np.array(each))
        return _Generated(seconds, *scored)

    def _together(
        self,
        trained: StepResult,
        stages: tuple[Transition, _Generated, PlayedStep | None],
        seconds: StageSeconds,
        whole: ScheduledIteration,
    ) -> StepResult:
        """Returns the result of an iteration, of what its stages were by themselves. Ranks are those that train."""
        transition, generated, forward = stages
        models, scoring = len(self.job.stages.trains), len(self.job.stages.scores)
        count = len(trained.nic_tx_bytes)  # of nodes that train, which come first
        others = [("parameters", 1, one.nic_tx[:count], one.nic_rx[:count]) for one in transition.played]
        if forward is not None:
            others += [(name, scoring, tx, forward.nic_rx[name]) for name, tx in forward.nic_tx.items()]
        nics = models * np.array([trained.nic_tx_bytes, trained.nic_rx_bytes], np.int64)
        sent = {name: models * np.array(sizes) for name, sizes in trained.nic_tx_for.items()}
        for name, times, tx, rx in others:
            nics += times * np.stack([tx, rx])
            if tx.any():
                sent[name] = sent.get(name, 0) + times * tx
        rest = whole.seconds - seconds.train
        spent = {name: models * np.array(values) for name, values in trained.seconds_for.items()}
        for name, more in self._beside_training(generated, seconds, whole).items():
            spent[name] = spent.get(name, 0.0) + more
        peak = [size + self._resting for size in trained.peak_bytes]
        return replace(
            trained,
            seconds=whole.seconds,
            bound_seconds=models * trained.bound_seconds + rest,
            ceiling_seconds=None if trained.ceiling_seconds is None else models * trained.ceiling_seconds + rest,
            attention_seconds=_times(models, trained.attention_seconds),
            linear_seconds=_times(models, trained.linear_seconds),
            communication_seconds=_times(models, trained.communication_seconds),
            exposed_seconds=_times(models, trained.exposed_seconds),
            exposed_nic_seconds=_times(models, trained.exposed_nic_seconds or []) or None,
            nic_tx_bytes=nics[0].tolist(),
            nic_rx_bytes=nics[1].tolist(),
            nvlink_bytes=models * trained.nvlink_bytes,
            peak_bytes=peak,
            out_of_memory=max(peak) > trained.capacity_bytes,
            seconds_for={name: values.tolist() for name, values in spent.items() if values.any()},
            nic_tx_for={name: sizes.tolist() for name, sizes in sent.items()},
        )

    def _beside_training(
        self, generated: _Generated, seconds: StageSeconds, whole: ScheduledIteration
    ) -> dict[str, Floats]:
        """Returns what an iteration's seconds go to beside training, of every rank."""
        ranks, each = self.cost.cluster.num_ranks, self.job.generate_tensor
        own, scored = np.zeros((2, ranks))
        if not self.job.generate_nodes:
            own, scored = (
                np.repeat(one, each).reshape(ranks, -1).mean(axis=1) for one in (generated.seconds, generated.scored)
            )
        return {
            "generation": own,
            "waiting_generation": np.maximum(whole.waited - own - scored, 0.0),
            "waiting_parameters": np.full(ranks, seconds.reshard),
            "scoring": scored + seconds.score,
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
            "responses": responses,
            "given_up": given_up,
            "off_policy": responses if late else 0,
            "policy_age": int(late),
        }


def _dealt(kept: int, every: int) -> Ints:
    """Returns the order in which sequences are generated: those that are given up lie evenly among the others."""
    at = np.concatenate([(np.arange(kept) + 0.5) / kept, (np.arange(every - kept) + 0.5) / max(every - kept, 1)])
    return np.argsort(at, kind="stable")


def _times(models: int, seconds: list[float]) -> list[float]:
    return [models * one for one in seconds]
