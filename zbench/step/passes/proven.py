"""The whole steps of a run: its batches' plans and the strategy that it trains by become steps, and are proven.

Whoever plays steps and whoever executes them build them here, so that both have the same.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import lcm

from zbench.describe.batch import Batch
from zbench.describe.checks import CHOSEN, FEWEST
from zbench.describe.cluster import Cluster
from zbench.describe.degrees import ShardDegrees
from zbench.describe.exchanges import WHOLE
from zbench.describe.expert_schedule import DRAWN, DROPLESS, ExpertChunks
from zbench.describe.layers.on_hosts import NOWHERE
from zbench.describe.model import Model
from zbench.describe.overlap import FLAT, USUAL, StepOverlap
from zbench.describe.pipeline.staged_layers import ALL_LAYERS, bracketed
from zbench.describe.units import with_noun
from zbench.plans.plan import Plan
from zbench.step.passes.build import forward_step, whole_step
from zbench.step.passes.memory.host_memory import check_host, check_host_room, with_host_memory
from zbench.step.passes.own_plans import parts_of_layouts
from zbench.step.passes.parameters.levels import check_levels
from zbench.step.passes.parameters.room import check_room
from zbench.step.passes.parameters.zero import ShardedParameters, ZeroCut
from zbench.step.passes.parts import PlanParts
from zbench.step.passes.pipeline import stage_starts
from zbench.step.passes.recompute import SomeLayers
from zbench.step.passes.routing import TOGETHER, ExpertParallel
from zbench.step.passes.two_levels import in_two_levels
from zbench.step.proof.prove import prove_step
from zbench.step.template import Step

# By sharding.strategy: the stage of whole_step.
ZERO: Mapping[str, str] = {"none": "none", "zero1": "1", "zero2": "2", "zero3": "3"}


def zero_of(model: Model) -> str | ShardDegrees:
    """Returns the stage of whole_step for a model's sharding, or its degrees."""
    return model.sharding if isinstance(model.sharding, ShardDegrees) else ZERO[model.sharding]


@dataclass(frozen=True, slots=True)
class ProvenSteps:
    """The steps of a run. executor: its name, for sentences. model: as GPUs have it, with its sharding and
    recomputation. num_gpus: of all stages; tensor_parallel, stages: degrees; overlap: what is beside the layers' work
    (how far ahead parameters are gathered, gradients' buckets, exchanges of groups); experts: how those of a model that
    has some are laid out and chosen. cluster: of GPUs; None: nothing has to fit. workers: that train apart in rounds,
    of which these steps are one's (zbench.step.passes.rounds); num_gpus are its own. pieces: a number that those of
    gradients divide in all steps of all workers, so that all cut parameters alike. recompute: what is recomputed of
    layers, None: as the model says. offloaded: of each plan, of how many first layers something is in host memory,
    likewise; of which tokens overlap says, or the model. begun: whether steps begin with gradients in host memory where
    CPUs update across steps; a run's first one does not.

    Raises:
        ValueError: there are no such steps.
    """

    executor: str
    model: Model
    num_gpus: int
    tensor_parallel: int = 1
    stages: int = 1
    overlap: StepOverlap = USUAL
    experts: ExpertParallel = TOGETHER
    cluster: Cluster | None = None
    workers: int = 1
    pieces: int = 1
    recompute: str | SomeLayers | None = None
    offloaded: tuple[int, ...] | None = None
    begun: bool = True

    def __post_init__(self) -> None:
        model, experts = self.model, self.experts
        if experts.skew and model.num_experts == 1:
            raise ValueError(f"experts.skew is {experts.skew}; {model.name} has no experts, so it takes 0")
        if experts.capacity is not None and model.num_experts == 1:
            raise ValueError(
                f"experts.capacity is {experts.capacity}; {model.name} has no experts, so it takes {DROPLESS}"
            )
        if model.dense_layers and model.recompute_layers != ALL_LAYERS:
            raise ValueError(
                f"recompute.layers is {bracketed(model.recompute_layers)}; the first layers of {model.name} are dense "
                f"and others have experts, of which all are recomputed or none: it takes {ALL_LAYERS}"
            )
        updated = model.layers_updated_on_hosts
        for key, most, whose, others in (
            ("optimizer_layers", model.num_layers, "", (ALL_LAYERS, CHOSEN)),
            ("parameter_layers", model.num_layers, "", (NOWHERE, ALL_LAYERS, CHOSEN)),
            ("carried_layers", updated, " whose optimizer state is on hosts", (ALL_LAYERS, CHOSEN)),
        ):
            if isinstance(count := getattr(model, key), int) and count > most:
                words = f"{', '.join(others[:-1])} or {others[-1]}"
                raise ValueError(
                    f"memory.{key} is {count}; {model.name} has {with_noun(most, 'layer')}{whose}, so it takes 1 to "
                    f"{most}, {words}"
                )
        places = self.num_gpus // self.stages
        stage_starts(model, self.stages, places)  # refuses a number of stages
        self._check_collectives(places)
        laid = model.with_stages(self.stages)
        laid.check_stages()
        self._check_offload_layers(max(laid.layers_of_stages))
        if model.offload_tokens != ALL_LAYERS and model.num_experts > 1 and experts.routing != DRAWN:
            raise ValueError(
                f"memory.offload_tokens is {model.offload_tokens}; {model.name} has experts, and with experts.routing "
                f"{experts.routing} all that a GPU sends them is one item: it takes {ALL_LAYERS}"
            )
        experts.check(model, places)
        parameters = self.parameters
        if self.cluster is not None:
            check_room(parameters, max(laid.layers_of_stages), self.cluster.device.memory_bytes)
        if self.cluster is not None and model.uses_hosts:
            check_host(model, self.cluster, self.workers)

    def _check_collectives(self, places: int) -> None:
        """Refuses collectives in two levels where there is one level. places: of a stage."""
        if self.overlap.collectives == FLAT:
            return
        given = f"sharding.collectives is {self.overlap.collectives}"
        if self.cluster is None:
            return
        if places <= self.cluster.gpus_per_node or self.cluster.gpus_per_node == 1:
            of = "a stage of the pipeline" if self.stages > 1 else f"cluster {self.cluster.name}"
            each = min(places, self.cluster.gpus_per_node)
            nodes = with_noun(places // each, "node")
            part = f"{nodes} of {with_noun(each, 'GPU')}"
            if each < self.cluster.gpus_per_node:
                part = f"{with_noun(each, 'GPU')} of a node"
            raise ValueError(
                f"{given}; {of} has {part}, and two levels take several nodes of several GPUs, so it takes {FLAT}"
            )
        if isinstance(self.model.sharding, ShardDegrees):
            check_levels(self.parameters, self.cluster.gpus_per_node)

    def _in_levels(self, step: Step) -> Step:
        """Returns a step whose gathers and reductions of parameters and gradients go as `collectives` says."""
        if self.overlap.collectives == FLAT:
            return step
        assert self.cluster is not None, "whoever runs steps says on what"
        return in_two_levels(step, self.cluster.gpus_per_node)

    def _check_offload_layers(self, longest: int) -> None:
        """Refuses layers on hosts that no stage has. longest: layers of the longest stage."""
        model, stages = self.model, self.stages
        has = f"{model.name} has" if stages == 1 else f"a stage of {model.name} has at most"
        if isinstance(model.offload_layers, int) and model.offload_layers > longest:
            raise ValueError(
                f"memory.offload_layers is {model.offload_layers}; {has} {with_noun(longest, 'layer')}, so it takes 1 "
                f"to {longest}, {ALL_LAYERS} or {FEWEST}"
            )
        if model.layers_on_hosts and model.most_offloaded(longest) == 0:
            raise ValueError(
                f"memory.offload is {model.offload}; {has} 1 layer, and its last layer's activations stay: it takes "
                "fewer stages, or memory.offload=none"
            )

    def check_pipelines(self) -> None:
        """Refuses plans with pipelines of their own where the run has something that these cannot have.

        Raises:
            ValueError: it has.
        """
        if self.tensor_parallel > 1 or self.stages > 1:
            raise ValueError(
                f"plans have pipelines, and the job has tensor parallelism {self.tensor_parallel} and {self.stages} "
                f"stages of its own; executor={self.executor} takes plans with pipelines where both are 1"
            )
        model, overlap = self.model, self.overlap
        for usual, given, has, key in (
            (WHOLE.method, overlap.exchanges.method, "each with a tensor-parallel degree of its own", "overlap.method"),
            (FLAT, overlap.collectives, "whose parameters stay for the step", "sharding.collectives"),
            (
                NOWHERE,
                model.parameter_layers,
                "whose parameters are gathered once and stay for the step",
                "memory.parameter_layers",
            ),
            (ALL_LAYERS, model.recompute_layers, "each with stages of its own", "recompute.layers"),
            (ALL_LAYERS, model.offload_tokens, "each with micro-batches of its own", "memory.offload_tokens"),
        ):
            if given != usual:
                raise ValueError(
                    f"plans have pipelines, {has}; {key} is {bracketed(given)}, which takes {usual} with them"
                )
        if overlap != USUAL:
            raise ValueError(
                f"plans have pipelines, whose parameters are gathered before all else and whose gradients are reduced "
                f"after all else; sharding.window is {overlap.window} and sharding.gradient_bucket "
                f"{overlap.gradient_bucket}, which take {USUAL.window} and {USUAL.gradient_bucket} with them"
            )

    @property
    def _of_model(self) -> str | SomeLayers:
        """The recomputation that the model has."""
        model = self.model.with_stages(self.stages)
        if model.recomputed_layers in (0, model.num_layers):
            return model.recompute
        return SomeLayers(model.recompute, model.recomputed_of_stages)

    @property
    def parameters(self) -> ShardedParameters:
        """The parameters on the GPUs of a stage."""
        groups, zero = self.num_gpus // self.stages // self.tensor_parallel, zero_of(self.model)
        degrees = self.tensor_parallel, zero, self.overlap, self.experts.degree
        return ShardedParameters(self.model.with_stages(self.stages), groups, *degrees, self._cut.cells)

    @property
    def _cut(self) -> ZeroCut:
        """The stage of ZeRO or degrees, and the cells that workers have in common."""
        return ZeroCut(zero_of(self.model), lcm(self.workers, self.pieces))

    def with_chunks(self, chunks: ExpertChunks) -> "ProvenSteps":
        """Returns the steps in which tokens go to experts in these chunks."""
        if chunks == self.overlap.experts:
            return self
        return replace(self, overlap=replace(self.overlap, experts=chunks))

    def with_recompute(self, recompute: str | SomeLayers | None) -> "ProvenSteps":
        """Returns the steps in which so much is recomputed."""
        return replace(self, recompute=recompute)

    def with_offloaded(self, layers: Sequence[int]) -> "ProvenSteps":
        """Returns the steps in which what waits of so many first layers is in host memory, of each plan."""
        return replace(self, offloaded=tuple(layers))

    def with_shares(self, shares: Sequence[tuple[float, ...]]) -> "ProvenSteps":
        """Returns the steps in which what waits of such shares of tokens is in host memory, of each plan's
        sequences."""
        return replace(self, overlap=replace(self.overlap, shares=tuple(shares)))

    def with_slices(self, count: int) -> "ProvenSteps":
        """Returns the steps in which exchanges cut a GPU's own tokens in so many slices."""
        return replace(self, overlap=replace(self.overlap, exchanges=replace(self.overlap.exchanges, slices=count)))

    def first_of(self, batch: Batch, plans: Sequence[Plan]) -> Step:
        """Returns a run's first step, which begins with no gradients in host memory, proven.

        Raises:
            as `of`.
        """
        return replace(self, begun=False).of(batch, plans)

    def of(self, batch: Batch, plans: Sequence[Plan]) -> Step:
        """Returns the step of a batch's plans, proven.

        Raises:
            ValueError: as `built`.
            zbench.step.proof.prove.StepError: the step is wrong, which is a bug.
        """
        step = self.built(batch, plans)
        prove_step(step)
        return step

    def built(self, batch: Batch, plans: Sequence[Plan]) -> Step:
        """Returns the step of a batch's plans before it is proven, for whoever chooses among several.

        Raises:
            ValueError: plans have pipelines that this run cannot have, or for which the model cannot be cut.
        """
        if plans[0].pipelines is not None:
            self.check_pipelines()
        model, shares = self.model, self._shares(plans)
        zero, degree, experts = self._cut, self.tensor_parallel, self.experts.of(batch)
        again = self._of_model if self.recompute is None else self.recompute
        overlap = replace(self.overlap, shares=shares)
        step = self._in_levels(whole_step(model, plans, degree, zero, overlap, again, experts, self.stages))
        if model.uses_hosts:
            assert self.cluster is not None, "whoever runs steps says on what"
            sent = [one.sent for one in self.parts(batch, plans)] if shares else []
            most = [model.offloaded_layers(model.num_layers)] * (len(sent) or len(step.layouts))
            layers = most if self.offloaded is None else self.offloaded
            step = with_host_memory(step, model, self.cluster.gpus_per_node, layers, sent, self.begun)
            check_host_room(step, model, self.cluster, self.workers)
        return step

    def forwards(self, plans: Sequence[Plan]) -> Step:
        """Returns the forwards of a batch's plans by themselves, as a model that scores the batch has them, proven.

        Raises:
            ValueError: the model has experts or inputs of layers on hosts, or plans have pipelines.
            zbench.step.proof.prove.StepError: the step is wrong, which is a bug.
        """
        step = forward_step(self.model, plans, self.tensor_parallel, self._cut, self.overlap, self.stages)
        step = self._in_levels(step)
        prove_step(step)
        return step

    def parts(self, batch: Batch, plans: Sequence[Plan]) -> list[PlanParts]:
        """Returns the parts that a step of this run has of a batch's plans."""
        experts, slices = self.experts.of(batch).in_chunks(self.overlap.experts), self.overlap.token_slices
        return parts_of_layouts(plans, self.model, self.tensor_parallel, experts, slices, self._shares(plans))

    def _shares(self, plans: Sequence[Plan]) -> tuple[tuple[float, ...], ...]:
        """Returns of each plan and each of its sequences the share of tokens of which something is in host memory, ():
        of all that there are."""
        share = self.model.offload_tokens
        if isinstance(share, str):
            return self.overlap.shares
        return tuple((share,) * len(plan.lengths) for plan in plans)
