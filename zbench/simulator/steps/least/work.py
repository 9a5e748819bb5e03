"""Seconds of computing in a whole step: of a token, and of the starts of kernels wherever there are tokens.

They are read off the computes of a step of one tensor-parallel group with one sequence and one layer, so that they are
what the formulas come to, whatever the model, the recomputation and the kernels.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from zbench.cost.bound import least_seconds
from zbench.cost.cost import Cost
from zbench.cost.loss import LEAST_CHUNK, moved_bytes
from zbench.describe.batch import Batch
from zbench.describe.cluster import Device
from zbench.describe.curve import Curve
from zbench.describe.model import Model
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.plan import Plan
from zbench.simulator.steps.seconds import compute_seconds
from zbench.simulator.steps.sizes import Sizes
from zbench.step.formula import Formula
from zbench.step.operations import COMPUTE
from zbench.step.passes.build import whole_step
from zbench.step.passes.tensor_parallel import is_sliced
from zbench.step.template import Step

ATTENTION = ("attend", "attend_d")
TOKENS = LEAST_CHUNK  # of the step that is read: the loss has one chunk of them


@dataclass(frozen=True, slots=True)
class Part:
    """The seconds that a part of a step takes, the mean over the GPUs of a group. token: for a token of the group.
    start: of kernels, where the group has a token."""

    token: float
    start: float

    def times(self, count: float) -> "Part":
        """Returns so many of them."""
        return Part(count * self.token, count * self.start)

    def plus(self, other: "Part") -> "Part":
        """Returns both."""
        return Part(self.token + other.token, self.start + other.start)


@dataclass(frozen=True, slots=True)
class StepWork:
    """The computing of a step, attention apart. forward, backward: of a layer, the backward with what is made again.
    outer: the first of a layer's formulas and the last of its backward, of one layer. head: forward and backward,
    without what `chunks` has."""

    cost: Cost
    degree: int
    forward: Part
    backward: Part
    outer: Part
    head: Part

    def chunks(self, tokens: float) -> float:
        """Returns the seconds of what the loss moves for each chunk of tokens, in addition to what it moves for a
        token."""
        return _chunk_seconds(self.cost, tokens) / self.degree

    def attention(self, batch: Batch) -> tuple[float, float]:
        """Returns the least seconds of a layer's attention, forward and backward, on all GPUs together."""
        there, back = (float(least_seconds(batch.lengths, self.cost, way).sum()) for way in (False, True))
        return there, back + (there if self.cost.model.recompute == "full" else 0.0)


@lru_cache(maxsize=32)
def step_work(cost: Cost, degree: int) -> StepWork:
    """Returns the computing of steps on groups of `degree` GPUs. cost: of GPUs. Matmuls have the best rate that they
    can have, as of many tokens and of large shapes."""
    device = cost.cluster.device
    rates = device.matmul_by_tokens.get(cost.model.name)
    curves = {} if rates is None else {cost.model.name: Curve((1.0,), (max(rates.rates),))}
    flat = replace(cost, cluster=replace(cost.cluster, device=replace(device, matmul_shapes=False)))
    best = replace(flat, cluster=replace(flat.cluster, device=_at_rate(flat.cluster.device, curves)))
    step, plan = _small_step(cost.model, degree)
    layer_forward = _part(best, step, plan, degree, "forward")
    layer_backward = _part(best, step, plan, degree, "backward")
    first = _part(best, step, plan, degree, "forward", lambda one: one.results[0].tensor == "n")
    last = _part(best, step, plan, degree, "backward", lambda one: one.results[0].tensor == "dx")
    head = _part(best, step, plan, degree, "head")
    chunk = _chunk_seconds(cost, TOKENS) / degree
    return StepWork(
        cost,
        degree,
        layer_forward,
        layer_backward,
        first.plus(last),
        Part(head.token - chunk / TOKENS, head.start),
    )


def _at_rate(device: Device, curves: dict[str, Curve]) -> Device:
    """Returns a device whose matmuls have these curves, in place of its own."""
    return replace(device, matmul_by_tokens=curves)


@lru_cache(maxsize=32)
def _small_step(model: Model, degree: int) -> tuple[Step, Plan]:
    """Returns a step of one layer on one group, and its plan of one sequence."""
    builder = Builder(np.array([TOKENS]), 1, model.num_heads // degree, model.mask)
    local(builder, np.zeros(1, np.int64), np.zeros(1, np.int64))
    plan = reverse(builder.build(), "keep")
    one = replace(model, num_layers=1)
    return whole_step(one, [plan], degree, "none", recompute=model.recompute), plan


def _every(_: Formula) -> bool:
    return True


def _part(
    cost: Cost, step: Step, plan: Plan, degree: int, name: str, counts: Callable[[Formula], bool] = _every
) -> Part:
    """Returns what a template's formulas take, attention's apart, of those that count.

    Kernels for a GPU's own tokens start on one GPU of a group at least, the others on all."""
    device = cost.cluster.device
    slower = replace(device, kernel_seconds=2 * device.kernel_seconds)
    twice = replace(cost, cluster=replace(cost.cluster, device=slower))
    template = next(one for one in step.templates if one.name == name)
    sizes = Sizes(step.layouts[0], template)
    once, more = (compute_seconds(sizes, plan, one) for one in (cost, twice))
    token = start = 0.0
    for number in template.formulas:
        formula = sizes.layout.formulas[number]
        if formula.terms[0].function in ATTENTION or not counts(formula):
            continue
        mine = (template.operations.kind == COMPUTE) & (template.operations.what == number)
        starts = float((more[mine] - once[mine]).sum())
        token += (float(once[mine].sum()) - starts) / TOKENS / degree
        start += starts / degree / (1 if is_sliced(formula) else degree)
    return Part(token, start)


def _chunk_seconds(cost: Cost, tokens: float) -> float:
    """Returns the seconds, of one GPU, of what zbench.cost.loss moves beside what it moves for a token of very many."""
    many = float(LEAST_CHUNK * cost.model.vocab)  # of so many tokens chunks are no more than of twice as many
    less, more, here = moved_bytes(cost.model, np.array([many, 2 * many, tokens])).tolist()
    return max(here - tokens * (more - less) / many, 0.0) / cost.cluster.device.copy_bandwidth
