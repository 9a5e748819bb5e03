"""The simulated executor of whole steps: matmuls, gathers, reductions and exchanges are operations of one plan, as
attention's are, proven together and played on the same links.

Planners compare plans by less of a step, zbench.simulator.estimate.step: attention is played, the rest added up.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.job import worker_gpus
from zbench.cost.least_copies import least_copy_seconds
from zbench.describe.arrays import Floats
from zbench.describe.batch import Batch
from zbench.describe.exchanges import WHOLE, ExchangeOverlap
from zbench.describe.expert_schedule import DROPLESS, USUAL_EXPERTS, Experts
from zbench.describe.overlap import FLAT, LAYER, StepOverlap
from zbench.describe.pipeline.staged_layers import ALL_LAYERS
from zbench.describe.sync import EVERY, RoundSync
from zbench.interfaces.protocols import Ready
from zbench.interfaces.result import NOT_ON_NVLINK, StepResult, kept_rows
from zbench.plans.plan import ATTEND, Plan
from zbench.simulated.drawn_rows import played_rows
from zbench.simulated.gradient_order import common_pieces
from zbench.simulated.known_steps import KnownSteps
from zbench.simulated.open_choices import ChosenSteps, FullStep, chosen_by_workers, chosen_steps
from zbench.simulated.recomputation import ChosenRecompute, forwards_again, recomputing
from zbench.simulated.rounds import PlayedRounds
from zbench.simulated.switching import BothEnds, Left, after_switch, played_switch
from zbench.simulated.traced import counted_events, write_whole_step
from zbench.simulator.clock import Timeline
from zbench.simulator.steps.account import StepMemory, step_memory
from zbench.simulator.steps.hop_by_hop import HopByHop
from zbench.simulator.steps.least.bound import step_bound_seconds
from zbench.simulator.steps.least.ceiling import step_ceiling_seconds
from zbench.simulator.steps.play import LAYERS, PlayedStep, play_layers, play_parts, play_step
from zbench.simulator.steps.program import KeptStep
from zbench.step.operations import QUEUES
from zbench.step.passes.memory.host_memory import checked_host_bytes
from zbench.step.passes.own_plans import plans_of_layouts
from zbench.step.passes.proven import ProvenSteps
from zbench.step.passes.rounds.worker_steps import WorkerSteps
from zbench.step.passes.routing import ExpertParallel
from zbench.step.template import Step
from zbench.trace.file import Event
from zbench.trace.named import TokenLists

# Bytes that building, proving and playing take for an operation of attention in one layer, at least: from 128 to 256
# GPUs rings take 287 for each one more, gathers of keys and values more (python tests/bench/sizes.py).
OPERATION_OF_LAYER = 280


@dataclass(slots=True)
class Simulated:
    """Builds, proves and plays whole steps on the cluster of `cost`: a step's result is a function of (batch, plans,
    cost), and of whether its pipelines are those of the step before: what has to be elsewhere is moved ahead of it.

    What the run gives it of a strategy (zbench.describe.strategy): window, gradient_bucket, collectives: how far ahead
    parameters are gathered, which gradients are reduced together, and whether both go in two levels
    (zbench.describe.overlap.StepOverlap). expert_parallel, expert_tensor_parallel: as zbench.describe.strategy.Parallel
    has them, for models with experts; experts: how tokens choose them, and go there. exchanges: how those of
    tensor-parallel groups go beside matmuls. sync: when workers come together, in every step or in rounds.
    adaptive_recompute: whether what is recomputed is chosen for every batch; the cost's model recomputes in full then.
    known: steps that were proven before, of runs that are compared.
    """

    cost: Cost
    window: int | str = 1
    gradient_bucket: int | float | str = LAYER
    expert_parallel: int = 1
    experts: Experts = USUAL_EXPERTS
    exchanges: ExchangeOverlap = WHOLE
    sync: RoundSync = EVERY
    adaptive_recompute: bool = False
    expert_tensor_parallel: int = 1
    collectives: str = FLAT
    known: KnownSteps = field(default_factory=KnownSteps, repr=False, compare=False)
    _steps: ProvenSteps = field(init=False, repr=False, compare=False)
    _kept: KeptStep = field(default_factory=KeptStep, init=False, repr=False, compare=False)
    _left: Left | None = field(default=None, init=False, repr=False, compare=False)
    _rounds: PlayedRounds | None = field(default=None, init=False, repr=False, compare=False)
    _ends: BothEnds = field(default_factory=BothEnds, init=False, repr=False, compare=False)
    _full: FullStep | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._steps = self._run_steps()  # refuses what there are no steps of
        self._rounds = self._new_rounds() if self.sync.in_rounds else None

    @property
    def overlap(self) -> StepOverlap:
        """The exchanges that are beside the layers' work."""
        chunks = self.experts.exchanges.chunks
        return StepOverlap(self.window, self.gradient_bucket, self.exchanges, chunks, self.collectives)

    @property
    def steps(self) -> ProvenSteps:
        """The steps that plans become."""
        return self._steps

    def _run_steps(self) -> ProvenSteps:
        """Returns the steps of a run, which are the same for every batch."""
        cost = self.cost
        cluster = cost.gpus.cluster
        degrees = self.expert_parallel, self.expert_tensor_parallel
        experts = ExpertParallel.chosen(*degrees, self.experts, cluster.gpus_per_node)
        return ProvenSteps(
            "simulated", cost.gpus.model, cluster.num_ranks, cost.tp, cost.pp, self.overlap, experts, cluster
        )

    @property
    def plays_steps_alone(self) -> bool:
        """Whether a step's seconds are its own, whatever was played before it or is beside it."""
        return not self.sync.in_rounds

    @property
    def operation_bytes(self) -> int:
        """The bytes of this machine that an operation of a plan takes at least, in all layers that are played, on each
        of a rank's GPUs."""
        stages = self.cost.pp
        layers = stages * min(LAYERS[0], self.cost.gpus.model.num_layers // stages)
        return OPERATION_OF_LAYER * layers * self.cost.tp

    def start(self) -> Ready:
        """Begins a run, whose first step finds everything where it wants it and begins the first round."""
        self._kept, self._left, self._ends, self._full = KeptStep(), None, BothEnds(), None
        self._rounds = self._new_rounds() if self.sync.in_rounds else None
        return Ready()

    def _new_rounds(self) -> PlayedRounds:
        """Returns the rounds of a run of which nothing is played."""
        cluster, model = self.cost.gpus.cluster, self.cost.gpus.model
        gpus = cluster.num_ranks, worker_gpus(self.cost, self.sync)
        choose = chosen_by_workers(self.experts.exchanges, self.cost, self.sync)
        own = self.sync, self.overlap, cluster, self.steps.experts, choose, (self.cost.tp, self.cost.pp)
        pieces = common_pieces(self.experts.exchanges, self.steps.parameters)
        steps = WorkerSteps("simulated", model, gpus, *own, pieces)

        def told(batch: Batch, plans: tuple[Plan, ...], played: PlayedStep, cost: Cost) -> StepResult:
            own = replace(self, cost=cost, sync=EVERY)
            return own.result(batch, plans, played, None)

        return PlayedRounds(steps, self.cost, told)

    def finish(self) -> dict[str, Any]:
        """Plays, where CPUs update across steps, what a run begins and ends with: steps that are played are of the
        midst of training, whichever batch comes first. Where steps were out of memory, it looks for the widest prefetch
        window with which the fullest of them is not."""
        found = self._ends.ends(self.cost.gpus)
        return found if self._full is None else found | self._full.told(self.cost.gpus, self.known)

    def stop(self) -> None:
        """Has nothing to end."""

    def built(self, batch: Batch, plans: tuple[Plan, ...]) -> Step:
        """Returns the step of a batch's plans, proven, as it is played.

        Raises:
            ValueError: the model cannot be cut for the plans' pipelines, or workers train apart.
        """
        if self.sync.in_rounds:
            raise ValueError(
                f"sync is {self.sync.method}, with which each worker has a step of its own; a report of operations, "
                "a critical path, and what else looks into one step of the whole cluster, takes sync=every_step"
            )
        steps = self.chosen(batch, plans).steps
        return played_rows(steps, steps.of(batch, plans), batch, plans)

    def chosen(self, batch: Batch, plans: tuple[Plan, ...]) -> ChosenSteps:
        """Returns a batch's steps with what the strategy leaves open chosen."""
        return chosen_steps(self.experts.exchanges, self.adaptive_recompute, self.steps, batch, plans, self.cost.gpus)

    def step(self, batch: Batch, plans: tuple[Plan, ...]) -> StepResult:
        """Plays one training step; seconds are the described cluster's, not this machine's."""
        if self._rounds is not None:
            return self._rounds.step(batch, plans)
        ceiling = self.ceiling_seconds(batch, plans[0].pipelines is not None)
        least = self.bound_seconds(batch) if ceiling is None else ceiling
        chosen = self.chosen(batch, plans)
        parts = self._kept.prepared(self.known.step(chosen.steps, batch, plans, self.cost.gpus))
        step = parts.step
        if chosen.steps.model.layers_carried:
            self._ends.take((chosen.steps, batch, plans))
        before, self._left = self._left, Left.of(step, plans, self._left)
        moved = played_switch(before, step, plans, self.cost.gpus)
        if self.experts.counted:  # there is room for all rows that routers could choose
            drawn = played_rows(chosen.steps, step, batch, plans)
            played = play_step(drawn, plans_of_layouts(plans), self.cost.gpus, least)
            played = replace(played, memory=step_memory(parts))
        else:
            played = play_parts(parts, least)
        result = chosen.told(self.result(batch, plans, played, ceiling, chosen.recompute), batch, plans)
        if self._fewest_rows != 1:
            rows = kept_rows(result.expert_rows)
            ceiling = self.ceiling_seconds(batch, plans[0].pipelines is not None, rows)
            result = replace(result, bound_seconds=self.bound_seconds(batch, rows), ceiling_seconds=ceiling)
        if result.out_of_memory:
            self._full = FullStep.fuller(self._full, chosen, (batch, plans), max(result.peak_bytes))
        return result if moved is None else after_switch(result, moved, self.host_bytes(moved.memory))

    def forwards(self, plans: tuple[Plan, ...]) -> PlayedStep:
        """Plays the forwards of a batch's plans by themselves, as a model that scores the batch has them."""
        return play_parts(self.known.forwards(self.steps, plans, self.cost.gpus))

    def traced_step(self, batch: Batch, plans: tuple[Plan, ...], trace: str | None) -> StepResult:
        """Plays one step, and writes its trace, all layers played out, with its critical path; where workers train
        apart, that of every worker's step and of what their round ends with.

        Raises:
            ValueError: the trace would have more than zbench.trace.file.MOST_EVENTS events, or cannot be written.
        """
        if trace is not None and self._rounds is not None:
            self._rounds.write_trace(trace, batch, plans)
        elif trace is not None:
            write_whole_step(trace, *self.all_layers(batch, plans), self.cost.gpus.cluster)
        return self.step(batch, plans)

    def all_layers(self, batch: Batch, plans: tuple[Plan, ...]) -> tuple[HopByHop, Timeline]:
        """Plays a step with all its layers as one program.

        Raises:
            ValueError: as `built`.
        """
        return play_layers(self.built(batch, plans), plans_of_layouts(plans), self.cost.gpus)

    def events(self, batch: Batch, plans: tuple[Plan, ...]) -> Iterator[tuple[Event, TokenLists]]:
        """Returns the events of a step, all layers played out, on the tracks of zbench.trace.whole_step, and the tokens
        that each is about.

        Raises:
            ValueError: they are more than zbench.trace.file.MOST_EVENTS, or as `built`.
        """
        return counted_events(*self.all_layers(batch, plans), self.cost.gpus.cluster)

    def result(
        self,
        batch: Batch,
        plans: tuple[Plan, ...],
        played: PlayedStep,
        ceiling: float | None,
        again: ChosenRecompute | None = None,
    ) -> StepResult:
        """Returns what a record has of a step that was played, and its ceiling. again: what was chosen for it."""
        cost = self.cost
        forwards = forwards_again(cost.gpus.model) if again is None else again.forwards_again
        repacked = self._repacked(plans, forwards)
        sent, received = (
            sum(by.values(), np.zeros(cost.gpus.cluster.num_nics, np.int64)) for by in (played.nic_tx, played.nic_rx)
        )
        peak = played.memory.peak[: cost.gpus.cluster.num_ranks]
        capacity = int(cost.gpus.cluster.device.memory_bytes)
        return StepResult(
            seconds=played.seconds,
            bound_seconds=self.bound_seconds(batch),
            ceiling_seconds=ceiling,
            attention_seconds=(played.busy["attend"] - repacked).tolist(),
            linear_seconds=played.busy["compute"].tolist(),
            communication_seconds=np.minimum(played.moving + repacked, played.seconds).tolist(),
            exposed_seconds=(played.exposed + repacked).tolist(),
            exposed_nic_seconds=played.exposed_nic.tolist(),
            nic_tx_bytes=sent.tolist(),
            nic_rx_bytes=received.tolist(),
            nvlink_bytes=sum(size for name, size in played.inside.items() if name not in NOT_ON_NVLINK),
            peak_bytes=peak.tolist(),
            capacity_bytes=capacity,
            host_bytes=self.host_bytes(played.memory),
            out_of_memory=bool(peak.max() > capacity),
            phases={
                "forward": next(end for name, end in played.ends if name.startswith("forward")),
                "optimizer": float(played.busy["optimizer"].max()),
            },
            seconds_for=self._seconds_for(plans, played),
            nic_tx_for={name: played.nic_tx[name].tolist() for name in QUEUES[1:] if played.nic_tx[name].any()},
        )

    def host_bytes(self, memory: StepMemory) -> list[int]:
        """Returns the most bytes in every node's host memory.

        Raises:
            ValueError: they are more than it has.
        """
        cluster, model = self.cost.gpus.cluster, self.cost.gpus.model
        return checked_host_bytes(memory.of_nodes(cluster), model, cluster)

    def bound_seconds(self, batch: Batch, rows: float | None = None) -> float:
        """Returns the seconds of a step that no plan of a batch can beat. rows: of experts that have a token, over
        tokens' choices; None: as few as a plan could come to."""
        least = step_bound_seconds(batch, self._least_cost, self._fewest_rows if rows is None else rows)
        return max(least, least_copy_seconds(batch.num_tokens, self.cost, True, True))

    def ceiling_seconds(self, batch: Batch, pipelined: bool, rows: float | None = None) -> float | None:
        """Returns the seconds that no plan can beat with this strategy; None where exchanges of groups may be beside
        any matmul, or nothing is proven. pipelined: whether plans have pipelines of their own, of which nothing is.
        rows: as `bound_seconds` has them."""
        if pipelined or self.exchanges != WHOLE:
            return None
        some = self.cost if self._recomputes_some and not self.adaptive_recompute else None
        rows = self._fewest_rows if rows is None else rows
        found = step_ceiling_seconds(batch, self._least_cost, self.steps.parameters, some, rows)
        return None if found is None else max(found, least_copy_seconds(batch.num_tokens, self.cost, False, True))

    @property
    def _fewest_rows(self) -> float:
        """Rows of experts over tokens' choices that any plan has: what a capacity drops is known of a plan alone."""
        return 1.0 if self.experts.capacity == DROPLESS else 0.0

    @property
    def _least_cost(self) -> Cost:
        """The cost model of steps with as little recomputation as one may have: of some layers none is charged."""
        none = self.adaptive_recompute or self._recomputes_some
        return recomputing(self.cost, "none") if none else self.cost

    @property
    def _recomputes_some(self) -> bool:
        return self.cost.gpus.model.recompute_layers != ALL_LAYERS

    def _seconds_for(self, plans: tuple[Plan, ...], played: PlayedStep) -> dict[str, list[float]]:
        """Returns StepResult.seconds_for: what an all-to-all repacks apart from attention, but for what is made
        again."""
        repacked = self._repacked(plans, 0)
        found = {**played.spent, "attention": played.spent["attention"] - repacked, "repacking": repacked}
        return {name: seconds.tolist() for name, seconds in found.items() if seconds.any()}

    def _repacked(self, plans: tuple[Plan, ...], again: float) -> Floats:
        """Returns the seconds of every GPU's attention that are an all-to-all's repacking: communication, which the
        compute queue does, so that none of it is hidden; GPUs of a tensor-parallel group repack at the same time, each
        its heads. again: how often a forward is made again."""
        cost = self.cost
        found = np.zeros(cost.cluster.num_ranks)
        for plan in plans:
            for ops, times in ((plan.forward, 1 + again), (plan.backward, 1)):
                attends = np.flatnonzero(ops.kind == ATTEND)
                seconds = cost.layers * times * cost.repacking_seconds(plan, ops, attends)
                found += np.bincount(ops.src[attends], weights=seconds, minlength=plan.num_ranks)
        return np.repeat(np.tile(found, cost.pp), cost.tp)
