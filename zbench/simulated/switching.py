"""Between steps. The cost of a change of pipelines: parameters and optimizer state move before the step that has other
ones, played on the same links. And what a run begins and ends with where CPUs update across steps, and gradients are
left: a first step that finds none, and updates alone behind the last one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch
from zbench.interfaces.result import SWITCH, StepResult
from zbench.plans.pipelines import Layout
from zbench.plans.plan import Plan
from zbench.simulated.drawn_rows import played_rows
from zbench.simulator.steps.play import PlayedStep, play_step
from zbench.step.byte_law import sent_by_purpose, stated_bytes
from zbench.step.elements import ElementHolders, elements_held
from zbench.step.passes.memory.last_update import last_update
from zbench.step.passes.own_plans import plans_of_layouts
from zbench.step.passes.parameters.switch import switch_step
from zbench.step.passes.proven import ProvenSteps
from zbench.step.proof.prove import prove_step
from zbench.step.template import Step

PlayedBatch = tuple[ProvenSteps, Batch, tuple[Plan, ...]]  # a run's steps, a batch, its plans


@dataclass(frozen=True, slots=True)
class Left:
    """A step's parameters and state where it has left them for the next one. layout: of its pipelines, () of plans
    without any."""

    layout: Layout
    held: ElementHolders

    @staticmethod
    def of(step: Step, plans: tuple[Plan, ...], before: "Left | None") -> "Left":
        """Returns what a step leaves; `before` itself where its pipelines are those of the step before."""
        layout = _layout(plans)
        if before is not None and before.layout == layout:
            return before
        return Left(layout, elements_held(step, step.ends))


def _layout(plans: tuple[Plan, ...]) -> Layout:
    return () if plans[0].pipelines is None else plans[0].pipelines.layout


@dataclass(slots=True)
class BothEnds:
    """The first and the last batch of a run that were played."""

    first: PlayedBatch | None = None
    last: PlayedBatch | None = None

    def take(self, one: PlayedBatch) -> None:
        """Takes a batch whose step was played."""
        self.first, self.last = self.first or one, one

    def ends(self, cost: Cost) -> dict[str, Any]:
        """Plays a run's first step, of its first batch, and what is updated behind its last one; returns the seconds of
        both and the bytes of the updates, by queue, as a record's end has them. cost: of GPUs."""
        if self.first is None or self.last is None:
            return {}
        steps, batch, plans = self.first
        step = steps.first_of(batch, plans)
        if steps.experts.counted:
            step = played_rows(steps, step, batch, plans)
        first = play_step(step, plans_of_layouts(plans), cost)
        steps, batch, plans = self.last
        update = last_update(steps.of(batch, plans))
        prove_step(update)
        sent = sent_by_purpose(stated_bytes(update))
        last = play_step(update, (), cost)
        return {"first_step": {"seconds": first.seconds}, "last_update": {"seconds": last.seconds, "bytes": sent}}


def played_switch(before: Left | None, step: Step, plans: tuple[Plan, ...], cost: Cost) -> PlayedStep | None:
    """Plays what has to move before a step; None where everything is where it wants it, as for a run's first step.

    before: what the step before has left. cost: of GPUs.
    """
    if before is None or before.layout == _layout(plans):
        return None
    switch = switch_step(before.held, elements_held(step, step.begins), cost.cluster.gpus_per_node)
    if switch is None:
        return None
    prove_step(switch)
    played = play_step(switch, (), cost)
    beside = _beside(before.held, switch, cost.cluster.gpus_per_node)
    return replace(played, memory=replace(played.memory, peak=played.memory.peak + beside))


def _beside(held: ElementHolders, switch: Step, gpus_per_node: int) -> Ints:
    """Returns the bytes of what rests on every place of a change while other tensors move, int64 [places]."""
    moving, found = switch.layouts[0].number, np.zeros(2 * held.num_gpus, np.int64)
    for (name, layer), holders in held.holders.items():
        if f"{name}_{layer}" not in moving:
            for place, runs in holders.items():
                found[place] += held.units[name] * int((runs[:, 1] - runs[:, 0]).sum())
    on_hosts = found[held.num_gpus :].reshape(-1, gpus_per_node).sum(axis=1)
    return np.concatenate([found[: held.num_gpus], on_hosts[: switch.num_hosts]])


def after_switch(result: StepResult, moved: PlayedStep, hosts: Sequence[int]) -> StepResult:
    """Returns the result of a step that began when everything had moved: nothing hides it, and all ranks wait for
    parameters meanwhile. hosts: the most bytes in every node's host memory meanwhile, [0] where nothing rests there."""
    ranks = len(result.communication_seconds)
    peak = np.maximum(result.peak_bytes, moved.memory.peak[:ranks])

    def more(seconds: list[float], others: Floats) -> list[float]:
        found: list[float] = (np.array(seconds) + others).tolist()
        return found

    sent, received = (
        sum(by.values()) + np.zeros(len(result.nic_tx_bytes), np.int64) for by in (moved.nic_tx, moved.nic_rx)
    )
    waiting = result.seconds_for.get("waiting_parameters", [0.0] * ranks)
    return replace(
        result,
        seconds=result.seconds + moved.seconds,
        communication_seconds=more(result.communication_seconds, moved.moving),
        exposed_seconds=more(result.exposed_seconds, moved.exposed),
        nic_tx_bytes=(np.array(result.nic_tx_bytes) + sent).tolist(),
        nic_rx_bytes=(np.array(result.nic_rx_bytes) + received).tolist(),
        peak_bytes=peak.tolist(),
        host_bytes=[max(pair) for pair in zip(result.host_bytes, hosts, strict=True)] if hosts else result.host_bytes,
        out_of_memory=result.out_of_memory or bool(peak.max() > result.capacity_bytes),
        phases={**result.phases, "forward": result.phases["forward"] + moved.seconds, SWITCH: moved.seconds},
        seconds_for={**result.seconds_for, "waiting_parameters": [one + moved.seconds for one in waiting]},
        nic_tx_for={**result.nic_tx_for, **({SWITCH: sent.tolist()} if sent.any() else {})},
    )
