"""The models of a job with rollouts on their sets of nodes: what scoring a batch and training on it takes all of them.

A model that is as the actor, on as many nodes, has the actor's plans and its steps. For any other one the run's system
plans the same batch, by the cost model of that model and its nodes. Models of a set take turns, in each stage, and sets
work beside each other.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace

from zbench.cost.cost import Cost
from zbench.cost.job import cost_like
from zbench.cost.memory.state import state_bytes
from zbench.describe.batch import Batch
from zbench.describe.job import STREAMED, RolloutJob
from zbench.describe.model import Model
from zbench.describe.rollouts.stages import ACTOR
from zbench.describe.strategy import MODEL_FIELDS
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan
from zbench.proof.verify import verify_step
from zbench.simulated.executor import Simulated
from zbench.simulator.steps.play import PlayedStep

Planner = Callable[[Batch, Cost], tuple[Plan, ...]]  # the plans of a batch for a cost model


@dataclass(frozen=True, slots=True)
class PlayedModels:
    """The models of a job, played. score, train: the seconds of a stage, of the set that takes longest. own_score,
    own_train: of the actor's set. forwards: the models that score on the actor's set, how often each, played; trained:
    those that are trained there, the actor first. train_bound, train_ceiling: as of a step, of the stage. fits: whether
    all others have room."""

    score: float
    train: float
    own_score: float
    own_train: float
    forwards: tuple[tuple[int, PlayedStep], ...]
    trained: tuple[StepResult, ...]
    train_bound: float
    train_ceiling: float | None
    fits: bool


@dataclass(slots=True)
class PlacedModels:
    """The models of a job. actor: which trains the actor on the nodes of its set. models: those that are other models
    than the actor, by what they are in the job. planner: None where no model needs plans of its own."""

    job: RolloutJob
    actor: Simulated
    models: Mapping[str, Model]
    planner: Planner | None
    _others: dict[tuple[Model, int], Simulated] = field(default_factory=dict, init=False, repr=False)

    def executor(self, role: str) -> Simulated:
        """Returns the executor of a model, on the nodes of its set."""
        gpus = self.actor.cost.gpus
        strategy = {name: getattr(gpus.model, name) for name in MODEL_FIELDS}
        model = replace(self.models[role], **strategy) if role in self.models else gpus.model
        nodes = self._nodes(role)
        if (model, nodes) == (gpus.model, gpus.cluster.num_nodes):
            return self.actor
        if (model, nodes) not in self._others:
            given = {one.name: getattr(self.actor, one.name) for one in fields(Simulated) if one.init}
            cost = cost_like(self.actor.cost, replace(gpus.cluster, num_nodes=nodes), model, False)
            self._others[model, nodes] = Simulated(**{**given, "cost": cost})
        return self._others[model, nodes]

    @property
    def executors(self) -> list[Simulated]:
        """The executors of all models, each once."""
        return list({id(one): one for one in map(self.executor, self.job.stages.models)}.values())

    def kept_bytes(self, role: str) -> int:
        """Returns the bytes on a GPU of a model that does not run: its state if it is trained, else its weights."""
        cost = self.executor(role).cost
        if role in self.job.stages.trains:
            return state_bytes(cost) // cost.tp
        return self.weight_bytes(role) // (cost.gpus.cluster.num_ranks if cost.model.sharding == "zero3" else cost.tp)

    def weight_bytes(self, role: str) -> int:
        """Returns the bytes of all weights of a model."""
        model = self.executor(role).cost.gpus.model
        return model.element_bytes * model.total_params

    def resting(self, role: str) -> int:
        """Returns the bytes on a GPU of the models that share it with this one."""
        return sum(self.kept_bytes(one) for one in self._set(role) if one != role)

    def check_room(self) -> None:
        """Refuses what has no room on a GPU that trains while it generates, or on one of another set.

        Raises:
            ValueError: it says what needs how much.
        """
        job, device = self.job, self.actor.cost.gpus.cluster.device
        for some in self._sets[1:]:
            if (kept := sum(map(self.kept_bytes, some))) > device.memory_bytes:
                raise ValueError(
                    f"job.placement is {job.placement}; {kept / 2**30:.1f} GiB of {' and '.join(some)} stay on a GPU "
                    f"of {device.memory_bytes / 2**30:.1f} GiB: use sharding=zero3, or more nodes for their set"
                )
        if job.generate_nodes:
            return
        kept, share = self.kept_bytes(ACTOR) + self.resting(ACTOR), job.memory_share
        weights = self.weight_bytes(ACTOR)
        if job.schedule == STREAMED:  # in slices of a replica, beside their shards
            kept += (len(job.stages.models) - 1) * weights // job.generate_tensor
        if kept + share * device.memory_bytes > device.memory_bytes:
            most, own = 1 - kept / device.memory_bytes, weights / (job.generate_tensor * job.generate_pipeline)
            remedy = f"so it takes at most {most:.2f}"
            if most * device.memory_bytes <= own:
                remedy = (
                    f"beside which {own / 2**30:.1f} GiB of weights that generate have no room: use sharding=zero3, a "
                    "larger job.generate_tensor, or more GPUs"
                )
            raise ValueError(
                f"job.memory_share is {share}; model {self.actor.cost.model.name} does not fit: {kept / 2**30:.1f} GiB "
                f"of {job.algorithm}'s models stay on a GPU of {device.memory_bytes / 2**30:.1f} GiB while it "
                f"generates, {remedy}"
            )

    def play(self, batch: Batch, plans: tuple[Plan, ...], scored_apart: bool) -> PlayedModels:
        """Plays forwards and training steps of all models on a batch. plans: the actor's. scored_apart: scores are not
        made by these forwards.

        Raises:
            zbench.proof.verify.PlanError: a plan for another model is wrong.
        """
        stages, forwards, trained = self.job.stages, dict[str, PlayedStep](), dict[str, StepResult]()
        made: dict[int, tuple[Plan, ...]] = {id(self.actor): plans}
        for role in stages.models:
            one = self.executor(role)
            mine = made.setdefault(id(one), ()) or self._plans(one, batch)
            made[id(one)] = mine
            if stages.reads(role) and not scored_apart:
                same = next((other for other in forwards if self.executor(other) is one), None)
                forwards[role] = forwards[same] if same else one.forwards(mine)
            if role in stages.trains:
                same = next((other for other in trained if self.executor(other) is one), None)
                trained[role] = trained[same] if same else one.step(batch, mine)
        score = [
            sum(stages.reads(one) * forwards[one].seconds for one in some if one in forwards) for some in self._sets
        ]
        train = [sum(trained[one].seconds for one in some if one in trained) for some in self._sets]
        bounds = [sum(trained[one].bound_seconds for one in some if one in trained) for some in self._sets]
        ceilings = [[trained[one].ceiling_seconds for one in some if one in trained] for some in self._sets]
        told = [sum(one for one in some if one is not None) for some in ceilings]
        own = self._sets[0]
        return PlayedModels(
            max(score),
            max(train),
            score[0],
            train[0],
            tuple((stages.reads(one), forwards[one]) for one in own if one in forwards),
            tuple(trained[one] for one in own if one in trained),
            max(bounds),
            None if any(None in some for some in ceilings) else max(told),
            all(self._fits(one, result) for one, result in trained.items() if self.executor(one) is not self.actor),
        )

    def _fits(self, role: str, result: StepResult) -> bool:
        return max(result.peak_bytes) + self.resting(role) <= result.capacity_bytes

    def _plans(self, of: Simulated, batch: Batch) -> tuple[Plan, ...]:
        assert self.planner is not None, "whoever runs a job of several models or sets gives it a planner"
        plans = self.planner(batch, of.cost)
        verify_step(batch, plans, of.cost, memory=False)
        return plans

    @property
    def _sets(self) -> tuple[tuple[str, ...], ...]:
        return self.job.sets

    def _set(self, role: str) -> tuple[str, ...]:
        return next(some for some in self._sets if role in some)

    def _nodes(self, role: str) -> int:
        """Returns the nodes of a model's set; the actor's are those of its executor."""
        cluster = self.actor.cost.gpus.cluster
        own, some = self._set(ACTOR), self._set(role)
        if some == own:
            return cluster.num_nodes
        return cluster.num_nodes if self.job.set_nodes is None else self.job.set_nodes[self._sets.index(some)]
