"""Checks that a system plans a batch correctly, always the same, and that its step is sound. Pure: no torch."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.stage import in_whole_steps, refusal
from zbench.describe.batch import Batch
from zbench.describe.strategies.step_strategy import USUAL_STRATEGY, StepStrategy
from zbench.describe.units import with_noun
from zbench.interfaces.protocols import System
from zbench.interfaces.result import StepResult
from zbench.plans.plan import COLUMNS, WAITS, Plan
from zbench.proof.verify import OutOfMemory, verify_step
from zbench.simulated.executor import Simulated
from zbench.simulator.estimate.step import StepEstimate

_NO_ROOM = re.compile(
    r"(?:rank|stack|tensor-parallel group) \d+ needs [\d.]+ GiB(?: on (?:each|one) of its GPUs)?, an? .+ has [\d.]+ GiB"
)
ROUNDING = 1e-9  # relative: sums of the same numbers in another order
_PER_RANK = ("attention_seconds", "linear_seconds", "communication_seconds", "exposed_seconds", "exposed_nic_seconds")


@dataclass(frozen=True, slots=True)
class StepCheck:
    """The findings about a batch that was checked. memory: the sentence that says it does not fit, "" where it does.
    faults: what is wrong."""

    memory: str
    faults: tuple[str, ...]


def check_step(
    system: System, make: Callable[[], System], cost: Cost, batch: Batch, strategy: StepStrategy = USUAL_STRATEGY
) -> StepCheck:
    """Plans, verifies and simulates the batch, as a whole step, and plans it again with another system that `make`
    makes.

    system: which may have planned other batches. strategy: of the whole step.

    Raises:
        zbench.proof.verify.PlanError: the plan is wrong.
        zbench.step.proof.prove.StepError: the whole step of it is.
    """
    plans, again = system.plan(batch), make().plan(batch)
    faults = []
    if len(plans) != len(again) or not all(same_plan(one, other) for one, other in zip(plans, again, strict=True)):
        faults.append("another plan of the same batch is not the same")
    planned = sum(int(plan.own_lengths.sum()) for plan in plans)
    if any(int(plan.tokens_per_rank.sum()) != int(plan.lengths.sum()) for plan in plans):
        faults.append("tokens of a plan have no home, or two")
    if planned != batch.num_tokens:
        faults.append(f"the plans have {planned} tokens of {batch.num_tokens}")
    memory = ""
    try:
        verify_step(batch, plans, cost)
    except OutOfMemory as error:
        memory = str(error)
        if not _NO_ROOM.fullmatch(memory):
            faults.append(f"out of memory is told so: {memory}")
    if StepEstimate(cost).fits(batch, plans) != (not memory):  # by which planners choose among plans
        faults.append(f"verified, it {'does not fit' if memory else 'fits'} its memory; estimated it is otherwise")
    if has_whole_step(plans, cost):
        result = Simulated(cost, **strategy.arguments).step(batch, plans)
        faults += step_faults(result, cost)
        if result.out_of_memory and not memory:
            faults.append("verified, it fits its memory; simulated it does not")
    return StepCheck(memory, tuple(faults))


def has_whole_step(plans: tuple[Plan, ...], cost: Cost) -> bool:
    """Returns whether there are whole steps of such plans: not of pipelines whose stages none can have."""
    some = [plan.pipelines for plan in plans if plan.pipelines is not None]
    shapes = {shape for one in some for shape in zip(one.tp.tolist(), one.pp.tolist(), strict=True)}
    even = replace(cost, even_slices=True)
    return not shapes or (in_whole_steps(cost) and not any(refusal(tp, pp, even) for tp, pp in shapes))


def step_faults(result: StepResult, cost: Cost) -> Iterator[str]:
    """Yields a sentence for everything in a simulated step that cannot be so."""
    seconds, ranks = result.seconds, cost.gpus.cluster.num_ranks
    if not 0 < result.bound_seconds <= seconds * (1 + ROUNDING) < math.inf:
        yield f"the step takes {seconds} s and no plan less than {result.bound_seconds} s"
    ceiling = result.bound_seconds if result.ceiling_seconds is None else result.ceiling_seconds
    if not result.bound_seconds <= ceiling * (1 + ROUNDING) <= seconds * (1 + ROUNDING) ** 2:
        yield f"the step takes {seconds} s, and no plan with its gathers and reductions less than {ceiling} s"
    for name in (*_PER_RANK, "peak_bytes"):
        values = getattr(result, name)
        if len(values) != ranks or not 0 <= min(values) <= max(values) < math.inf:
            yield f"{name} is not a number of at least 0 for each of {with_noun(ranks, 'rank')}"
    for rank, busy in enumerate(np.add(result.attention_seconds, result.linear_seconds).tolist()):
        if busy > seconds * (1 + ROUNDING):
            yield f"rank {rank} computes {busy} s of {seconds} s"
    for rank, (moving, shown) in enumerate(zip(result.communication_seconds, result.exposed_seconds, strict=True)):
        if shown > moving * (1 + ROUNDING) + 1e-12:
            yield f"rank {rank} shows {shown} s of its {moving} s of communication"
    sent, received, nics = result.nic_tx_bytes, result.nic_rx_bytes, cost.gpus.cluster.num_nics
    if not len(sent) == len(received) == nics or min(*sent, *received, result.nvlink_bytes) < 0:
        yield f"bytes are not numbers of at least 0 for each of {with_noun(nics, 'NIC')}"
    if sum(sent) != sum(received):
        yield f"NICs send {sum(sent)} bytes and receive {sum(received)}"
    if cost.gpus.cluster.num_nodes == 1 and any(sent):
        yield f"NICs of a single node send {sum(sent)} bytes"
    if result.out_of_memory != (max(result.peak_bytes) > result.capacity_bytes):
        yield f"out_of_memory is {result.out_of_memory}; peak_bytes says otherwise"
    for field in fields(result):
        if not _is_plain(getattr(result, field.name)):
            yield f"{field.name} has what a record cannot hold"


def _is_plain(value: object) -> bool:
    """Says whether JSON has it: no numpy scalars, no infinities."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return all(_is_plain(item) for item in value)
    if isinstance(value, int | float):
        return type(value) in (int, float, bool) and math.isfinite(value)
    return value is None or type(value) is str


def same_plan(one: Plan, other: Plan) -> bool:
    """Says whether two plans are equal in every array."""
    for name in ("num_ranks", "num_heads", "mask", "backward_mode", *WAITS, "attention"):
        if getattr(one, name) != getattr(other, name):
            return False
    if (one.pipelines and one.pipelines.layout) != (other.pipelines and other.pipelines.layout):
        return False
    pairs = [(one.lengths, other.lengths), (one.sequences, other.sequences), (one.own_lengths, other.own_lengths)]
    for name in ("seq", "start", "stop", "block", "home"):
        pairs.append((getattr(one.blocks, name), getattr(other.blocks, name)))
    for name in ("lists", "lanes"):
        pairs.append((getattr(one, name).offsets, getattr(other, name).offsets))
        pairs.append((getattr(one, name).items, getattr(other, name).items))
    for name in ("forward", "backward"):
        pairs += [(getattr(getattr(one, name), c), getattr(getattr(other, name), c)) for c in COLUMNS]
    return all(np.array_equal(a, b) for a, b in pairs)
