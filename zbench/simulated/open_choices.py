"""The choices that a run's strategy leaves open for every batch: what is recomputed, what waits in host memory, slices
of exchanges, and chunks of tokens for experts.

Layers that wait in host memory are told by plans alone (zbench.simulated.offloading). What is recomputed is chosen
first (zbench.simulated.recomputation), with one slice and one chunk where their numbers are open as well. Then slices,
by playing a step with each number on the described cluster, and then the chunks (zbench.simulated.expert_degrees), both
with the recomputation that was chosen. A prefetch window is the run's: where a step is out of memory with it, the
widest that has room is looked for (`widest_window`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zbench.cost.cost import Cost
from zbench.cost.job import worker_cost
from zbench.describe.batch import Batch
from zbench.describe.checks import FEWEST
from zbench.describe.exchanges import TRIED
from zbench.describe.expert_schedule import ExpertSchedule
from zbench.describe.pipeline.staged_layers import ALL_LAYERS
from zbench.describe.sync import RoundSync
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan
from zbench.simulated.drawn_rows import expert_rows, played_rows
from zbench.simulated.expert_degrees import chosen_chunks
from zbench.simulated.known_steps import KnownSteps
from zbench.simulated.offloading import chosen_offload, chosen_shares
from zbench.simulated.recomputation import ChosenRecompute, chosen_recompute
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.play import play_step
from zbench.step.passes.own_plans import own_plans, plans_of_layouts
from zbench.step.passes.proven import ProvenSteps
from zbench.step.passes.rounds.worker_steps import Choose, WorkerStep

_BY_MICRO_BATCH = ("offloaded_layers", "offloaded_tokens", "of_tokens")  # of what is told of hosts


@dataclass(frozen=True, slots=True)
class ChosenSteps:
    """The steps of a batch with nothing left open, and what a record has of the choices, as
    zbench.interfaces.result.StepResult has it."""

    steps: ProvenSteps
    exchange_slices: dict[str, Any]
    expert_chunks: dict[str, Any]
    recompute: ChosenRecompute | None

    def told(self, result: StepResult, batch: Batch, plans: Sequence[Plan]) -> StepResult:
        """Returns the result of the batch's step with the choices, and what a capacity of experts came to."""
        return replace(
            result,
            exchange_slices=self.exchange_slices,
            expert_chunks=self.expert_chunks,
            expert_rows=expert_rows(self.steps, batch, [plans]),
            recompute=self.recompute_told(batch, plans),
        )

    def recompute_told(self, batch: Batch, plans: Sequence[Plan]) -> dict[str, Any]:
        """Returns what is recomputed of the step's layers, where that was chosen for the batch; of how many layers,
        where the run says it; and of how many layers of each micro-batch, all stages together, something waits in host
        memory, or of how many tokens, where that was chosen."""
        model, on_hosts = self.steps.model, self.steps.offloaded
        if self.steps.overlap.shares:
            parts = self.steps.parts(batch, plans)
            sent = [int(one.sizes[one.sent].sum()) for one in parts]
            return {"offloaded_tokens": sent, "of_tokens": [int(one.sizes.sum()) for one in parts]}
        if on_hosts is not None:
            layers = [
                sum(min(count, model.most_offloaded(one)) for one in model.with_stages(stages).layers_of_stages)
                for count, stages in zip(on_hosts, self._stages(plans), strict=True)
            ]
            return {"offloaded_layers": layers, "of_layers": model.num_layers}
        if self.recompute is not None:
            return self.recompute.told
        if model.recompute_layers == ALL_LAYERS:
            return {}
        return {"layers": list(model.recomputed_of_stages), "of_layers": model.num_layers}

    @property
    def layers_ahead(self) -> int:
        """The layers ahead of the one under way whose parameters are whole, and would not be with a narrower window."""
        parameters = self.steps.parameters
        return min(parameters.window, parameters.model.num_layers) if parameters.gathered else 0

    def widest_window(self, batch: Batch, plans: Sequence[Plan], cost: Cost, known: KnownSteps) -> int | None:
        """Returns the most layers, fewer than are gathered ahead, with which the step fits its GPUs by its memory
        account; None where it does not without any. cost: of GPUs; known: as of zbench.simulated.executor.Simulated."""
        fits, too_wide = -1, self.layers_ahead
        while too_wide - fits > 1:
            tried = (fits + too_wide) // 2 if fits >= 0 else 0
            steps = replace(self.steps, overlap=replace(self.steps.overlap, window=tried))
            peak = step_memory(known.step(steps, batch, plans, cost)).peak[: cost.cluster.num_ranks]
            if peak.max() > int(cost.cluster.device.memory_bytes):
                if tried == 0:
                    return None
                too_wide = tried
            else:
                fits = tried
        return None if fits < 0 else fits

    def _stages(self, plans: Sequence[Plan]) -> list[int]:
        """Returns the number of stages that each micro-batch passes."""
        if plans[0].pipelines is None:
            return [self.steps.stages] * len(plans)
        return [int(plans[0].pipelines.pp[number]) for number, _ in own_plans(plans)]


@dataclass(frozen=True, slots=True)
class FullStep:
    """A step that is out of memory with parameters gathered ahead. plans: a batch and its plans. peak: bytes of the
    fullest GPU."""

    chosen: ChosenSteps
    plans: tuple[Batch, tuple[Plan, ...]]
    peak: int

    @staticmethod
    def fuller(
        one: "FullStep | None", chosen: ChosenSteps, plans: tuple[Batch, tuple[Plan, ...]], peak: int
    ) -> "FullStep | None":
        """Returns the fuller of two such steps; the first where the other gathers nothing ahead."""
        if plans[1][0].pipelines is not None or chosen.layers_ahead == 0 or (one is not None and one.peak >= peak):
            return one
        return FullStep(chosen, plans, peak)

    def told(self, cost: Cost, known: KnownSteps) -> dict[str, Any]:
        """Returns what a record's end has of the widest window with which the step is not out of memory; {} where there
        is none."""
        batch, plans = self.plans
        widest = self.chosen.widest_window(batch, plans, cost, known)
        return {} if widest is None else {"window": {"step": batch.step, "fits": widest}}


def chosen_steps(
    schedule: ExpertSchedule, adaptive: bool, steps: ProvenSteps, batch: Batch, plans: Sequence[Plan], cost: Cost
) -> ChosenSteps:
    """Returns the steps of a batch. schedule: of experts. adaptive: whether what is recomputed is open. steps: of the
    run; cost: of GPUs."""
    again, drawn = None, cost.routed_by(cost.experts, (batch.seed, batch.step))
    if steps.model.offload_layers == FEWEST:
        steps = steps.with_offloaded(chosen_offload(plans, drawn, steps.tensor_parallel, steps.stages))
    if steps.model.offload_tokens == FEWEST and plans[0].pipelines is None:
        steps = steps.with_shares(chosen_shares(plans, drawn, steps.tensor_parallel, steps.stages))
    if adaptive:
        first = steps.with_slices(TRIED[0]) if steps.overlap.exchanges.is_open else steps
        again = chosen_recompute(first, batch, plans, cost, schedule.reduces_between)
        steps = steps.with_recompute(again.part)
    exchange_slices: dict[str, Any] = {}
    if steps.overlap.exchanges.is_open:
        layouts = plans_of_layouts(plans)
        tried = {count: steps.with_slices(count) for count in TRIED}
        played = {count: played_rows(one, one.built(batch, plans), batch, plans) for count, one in tried.items()}
        seconds = {count: play_step(step, layouts, cost).seconds for count, step in played.items()}
        best = min(TRIED, key=seconds.__getitem__)  # the first of those that are as fast
        steps = steps.with_slices(best)
        exchange_slices = {"slices": best, "seconds": {str(count): found for count, found in seconds.items()}}
    chosen = chosen_chunks(schedule, steps, batch, plans, cost)
    return ChosenSteps(steps.with_chunks(chosen.chunks), exchange_slices, chosen.told, again)


def chosen_by_workers(schedule: ExpertSchedule, cost: Cost, sync: RoundSync) -> Choose:
    """Returns what chooses for the part of a batch that a worker has, on its GPUs. schedule: of experts; cost: of the
    run."""
    own = worker_cost(cost, sync).gpus

    def choose(steps: ProvenSteps, batch: Batch, plans: tuple[Plan, ...]) -> ChosenSteps:
        return chosen_steps(schedule, False, steps, batch, plans, own)

    return choose


def told_of_workers(result: StepResult, batch: Batch, workers: Iterable[WorkerStep | None]) -> StepResult:
    """Returns the result of a batch with what was chosen for each worker's part of it: of slices of exchanges and of
    chunks for experts all, by worker, and what they have in common; of hosts the micro-batches of all, one worker's
    after another's."""
    slices, chunks, recomputed = list[dict[str, Any]](), list[dict[str, Any]](), list[dict[str, Any]]()
    for one in workers:
        if one is not None and isinstance(one.chosen, ChosenSteps):
            slices.append(one.chosen.exchange_slices)
            chunks.append(one.chosen.expert_chunks)
            recomputed.append(one.chosen.recompute_told(batch, one.plans))
    if any(slices):
        result = replace(result, exchange_slices=_of_workers(slices))
    if any(chunks):
        result = replace(result, expert_chunks=_of_workers(chunks))
    if any(recomputed):
        first = recomputed[0]
        joined = {
            name: [each for one in recomputed for each in one[name]] if name in _BY_MICRO_BATCH else value
            for name, value in first.items()
        }
        result = replace(result, recompute=joined)
    return result


def _of_workers(every: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns what workers have chosen, by worker, and what they have in common."""
    alike = {name: value for name, value in every[0].items() if all(one.get(name) == value for one in every)}
    return {**alike, "workers": every}
