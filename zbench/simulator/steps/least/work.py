"""Seconds of linear work in a whole step: of a token, and of the starts of kernels wherever there are tokens.

They are read off the computes of a step of one tensor-parallel group with one sequence and one layer, so that they are
what the formulas come to, whatever the model, the recomputation and the kernels.

In a group the compute queue also waits for exchanges: where a compute reads, gathered or reduced over the group, what
the compute just before it has made, nothing is beside that, as the queue keeps the plan's order. Others are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from zbench.cost.bound import least_seconds
from zbench.cost.cost import Cost
from zbench.cost.loss import LEAST_CHUNK, moved_bytes
from zbench.describe.batch import Batch
from zbench.describe.curve import Curve
from zbench.describe.model import WHOLE
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.plan import Plan
from zbench.simulator.steps.computes.seconds import compute_seconds
from zbench.simulator.steps.computes.sizes import Sizes
from zbench.simulator.steps.trains.collectives import legs_of
from zbench.step.formula import Formula
from zbench.step.layers import is_sliced
from zbench.step.operations import COMPUTE
from zbench.step.passes.build import whole_step
from zbench.step.template import Step

ATTENTION = ("attend", "attend_d")
TEMPLATES = ("forward", "backward", "head")
TOKENS = LEAST_CHUNK  # of the step that is read: the loss has one chunk of them


@dataclass(frozen=True, slots=True)
class WorkSeconds:
    """The seconds that a part of a step takes on the first GPU of a group, which has no fewer tokens of its own than
    the others. token: for a token of the group. start: where the group has a token."""

    token: float = 0.0
    start: float = 0.0

    def times(self, count: float) -> "WorkSeconds":
        """Returns so many of them."""
        return WorkSeconds(count * self.token, count * self.start)

    def plus(self, other: "WorkSeconds") -> "WorkSeconds":
        """Returns both."""
        return WorkSeconds(self.token + other.token, self.start + other.start)


@dataclass(frozen=True, slots=True)
class StepWork:
    """The work of a step, attention apart: computing, and what tensor-parallel groups exchange with nothing to compute
    meanwhile. forward, backward: of a layer, the backward with what is made again. outer: of one layer, what may be
    before its parameters are gathered or after its gradients are complete. head: forward and backward, without what
    `chunks` has. routed: seconds of a token in what experts' rows go through, forward and backward, which both have."""

    cost: Cost
    degree: int
    forward: WorkSeconds
    backward: WorkSeconds
    outer: WorkSeconds
    head: WorkSeconds
    routed: tuple[float, float] = (0.0, 0.0)

    def of_rows(self, rows: float) -> "StepWork":
        """Returns the work where experts compute so many rows with a token in them for each that tokens chose.

        A row that is sent or sorted once for several choices of a token is there as long as one of them is kept: of
        such rows no smaller share is left than of choices.
        """
        if rows == 1:
            return self
        parts = zip((self.forward, self.backward), self.routed, strict=True)
        forward, backward = (replace(one, token=one.token + (rows - 1) * routed) for one, routed in parts)
        return replace(self, forward=forward, backward=backward)

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
    """Returns the work of steps on groups of `degree` GPUs. cost: of GPUs. Matmuls have the best rate that they can
    have, as of many tokens and of large shapes."""
    device = cost.cluster.device
    rates = device.matmul_by_tokens.get(cost.model.name)
    curves = {} if rates is None else {cost.model.name: Curve((1.0,), (max(rates.rates),))}
    device = replace(device, matmul_shapes=False, matmul_by_tokens=curves)
    read = _Reading(replace(cost, cluster=replace(cost.cluster, device=device)), degree)
    forward, backward, head = (read.part(name) for name in TEMPLATES)
    first, last = read.formula("forward", "n"), read.formula("backward", "dx")
    chunk = _chunk_seconds(cost, TOKENS) / degree
    outer = first.plus(read.exchange(cost.model.hidden * cost.model.element_bytes)).plus(last)
    routed = read.routed("forward"), read.routed("backward")
    head = WorkSeconds(head.token - chunk / TOKENS, head.start)
    return StepWork(cost, degree, forward, backward, outer, head, routed)


@dataclass(frozen=True)
class _Reading:
    """Reads the seconds of formulas off a step of one layer on one group of `degree` GPUs, with one sequence."""

    cost: Cost
    degree: int

    @cached_property
    def plan(self) -> Plan:
        """The plan of the sequence."""
        builder = Builder(np.array([TOKENS]), 1, self.cost.model.num_heads // self.degree, self.cost.model.mask)
        local(builder, np.zeros(1, np.int64), np.zeros(1, np.int64))
        return reverse(builder.build(), "keep")

    @cached_property
    def step(self) -> Step:
        """The step."""
        model = replace(
            self.cost.model,
            num_layers=1,
            dense_layers=0,
            dense_ffn_hidden=0,
            mlp_chunk_tokens=WHOLE,
            loss_chunk_tokens=WHOLE,
        )
        return whole_step(model, [self.plan], self.degree, "none", recompute=model.recompute)

    def exchange(self, token_bytes: int) -> WorkSeconds:
        """Returns a gather or a reduction over the group of so many bytes a token."""
        if self.degree == 1:
            return WorkSeconds()
        legs = legs_of(np.arange(self.degree), self.cost)
        moved = np.floor(legs.share * token_bytes)  # of one token: of several together no less a token
        return WorkSeconds(float(self.cost.transfer_seconds(moved, legs.link).max()), legs.latency)

    def formula(self, name: str, tensor: str) -> WorkSeconds:
        """Returns the computing of the formula of a template that makes a tensor."""
        return next(part for one, part in self.parts[name] if one.results[0].tensor == tensor)

    @cached_property
    def parts(self) -> dict[str, list[tuple[Formula, WorkSeconds]]]:
        """The formulas of each template with their computing, attention's with none."""
        return {name: list(self._parts(name)) for name in TEMPLATES}

    def _parts(self, name: str) -> Iterator[tuple[Formula, WorkSeconds]]:
        device, template = self.cost.cluster.device, next(one for one in self.step.templates if one.name == name)
        slower = replace(device, kernel_seconds=2 * device.kernel_seconds)
        twice = replace(self.cost, cluster=replace(self.cost.cluster, device=slower))
        sizes = Sizes(self.step.layouts[0], (template,))
        once, more = (compute_seconds(sizes, self.plan, cost) for cost in (self.cost, twice))
        for number in template.formulas:
            formula = sizes.layout.formulas[number]
            mine = (template.operations.kind == COMPUTE) & (template.operations.what == number)
            starts = float((more[mine] - once[mine]).sum())
            token = (float(once[mine].sum()) - starts) / TOKENS / self.degree
            attends = formula.terms[0].function in ATTENTION
            yield formula, WorkSeconds() if attends else WorkSeconds(token, starts / int(mine.sum()))

    def routed(self, name: str) -> float:
        """Returns the computing of a token in a template's formulas that read or make something of experts' tokens."""
        layout = self.step.layouts[0]

        def is_routed(formula: Formula) -> bool:
            axes = (layout.tensors[layout.number[one.tensor]].axes for one in (*formula.results, *formula.operands))
            return any(len(one) == 2 and one[0] == "t" and one[1] in ("e", "k") for one in axes)

        return sum(part.token for formula, part in self.parts[name] if is_routed(formula))

    def part(self, name: str) -> WorkSeconds:
        """Returns what a template takes: its computing, and the exchanges of what the compute before has made."""
        layout, found, moved = self.step.layouts[0], WorkSeconds(), set[tuple[str, str]]()
        made = {("dx", True)} if name == "backward" else set[tuple[str, bool]]()  # since anything took time
        sums = {ref.tensor for one in layout.formulas if one.action == "+=" and is_sliced(one) for ref in one.results}
        for formula, part in self.parts[name]:
            for one in formula.operands:
                tensor = layout.tensors[layout.number[one.tensor]]
                kinds = ["reduce"] * (one.tensor in sums) + ["gather"] * is_sliced(formula)
                for kind in kinds if tensor.axes == ("t",) and self.degree > 1 else ():
                    if (kind, str(one)) not in moved and (one.tensor, bool(one.after)) in made:
                        found = found.plus(self.exchange(tensor.unit))
                    moved.add((kind, str(one)))
            takes = part.token > 0 or formula.terms[0].function in ATTENTION
            made = (set() if takes else made) | {(ref.tensor, bool(ref.after)) for ref in formula.results}
            found = found.plus(part)
        return found


def _chunk_seconds(cost: Cost, tokens: float) -> float:
    """Returns the seconds, of one GPU, of what zbench.cost.loss moves beside what it moves for a token of very many."""
    many = float(LEAST_CHUNK * cost.model.head_outputs)  # of so many tokens chunks are no more than of twice as many
    less, more, here = moved_bytes(cost.model, np.array([many, 2 * many, tokens])).tolist()
    return float(max(here - tokens * (more - less) / many, 0.0) / cost.cluster.device.copy_bandwidth)
