"""The chunks that tokens go to experts in, where a run's schedule leaves their number open.

By FSMoE's closed form (zbench.cost.fsmoe), of seconds that a profile of the batch's own step gives; or by playing steps
on the described cluster and taking the fastest. Either way the number is chosen for every batch, of 1, 2, 4 and 8.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.fsmoe import ExpertLayerSeconds, LinearSeconds
from zbench.describe.arrays import Flags, Floats, Ints
from zbench.describe.batch import Batch
from zbench.describe.expert_schedule import (
    AFTER_CHUNKS,
    AUTO,
    DEGREES,
    TOGETHER_AT_ONCE,
    ExpertChunks,
    ExpertSchedule,
)
from zbench.describe.links import NIC
from zbench.plans.plan import Plan
from zbench.simulated.drawn_rows import played_rows
from zbench.simulated.gradient_order import EVERY_SHARE, GradientSeconds
from zbench.simulator.steps.computes.seconds import compute_seconds
from zbench.simulator.steps.computes.sizes import Sizes
from zbench.simulator.steps.least.traffic import LAYER, StepTraffic
from zbench.simulator.steps.play import play_step
from zbench.step.layers import is_gradient_of_experts, of_experts
from zbench.step.operations import COMPUTE, QUEUES
from zbench.step.passes.own_plans import plans_of_layouts
from zbench.step.passes.proven import ProvenSteps
from zbench.step.template import Step, Template

# What GPUs with the same experts, each some of their columns, gather from each other, and what is summed on them.
_GATHERED, _SUMMED = ("i", "dv", "pa", "ct"), ("v", "di", "dpa")
_QUEUE = QUEUES.index("experts")


@dataclass(frozen=True, slots=True)
class ChosenChunks:
    """The chunks of a batch's step. seconds: of what was compared, by its name; steps where they were played, else
    layers of experts by the closed form."""

    chunks: ExpertChunks
    seconds: dict[str, float]

    @property
    def told(self) -> dict[str, Any]:
        """The fields of a record: none of one chunk that nobody chose."""
        if self.chunks == TOGETHER_AT_ONCE and not self.seconds:
            return {}
        one = self.chunks
        found = {"forward": one.forward, "backward": one.backward, "weights": one.weights, "seconds": self.seconds}
        return found | ({} if one.gradients is None else {"gradients": asdict(one.gradients)})


def chosen_chunks(
    schedule: ExpertSchedule, steps: ProvenSteps, batch: Batch, plans: Sequence[Plan], cost: Cost
) -> ChosenChunks:
    """Returns the chunks of a batch's step by a schedule. steps: of the run; cost: of GPUs."""
    if not schedule.is_open:
        return ChosenChunks(schedule.chunks, {})
    if schedule.plays:
        return _played(schedule, steps, batch, plans, cost)
    profile = ExpertProfile.of(steps, batch, plans, cost)
    if not schedule.reduces_between:
        return profile.together() if schedule.same_degree else profile.apart()
    if schedule.same_degree:
        found = profile.together() if schedule.degree == AUTO else ChosenChunks(schedule.chunks, {})
        return replace(found, chunks=profile.with_fixed_pieces(found.chunks))
    return profile.partitioned()


@dataclass(frozen=True, slots=True)
class ExpertProfile:
    """The seconds of experts in a layer, of every micro-batch, as the closed form has them.

    forward, backward: of each. reduced: seconds in which a layer's parameters and gradients are on NICs in a backward
    and nothing but experts is there to hide them. gradients: of a layer, in the last micro-batch.
    """

    forward: Sequence[ExpertLayerSeconds]
    backward: Sequence[ExpertLayerSeconds]
    reduced: float
    gradients: GradientSeconds

    @staticmethod
    def of(steps: ProvenSteps, batch: Batch, plans: Sequence[Plan], cost: Cost) -> "ExpertProfile":
        """Returns the profile of a batch's steps with one chunk and with two, which tell what starts and what grows."""
        one, two = (_built(steps.with_chunks(ExpertChunks(count, count)), batch, plans) for count in (1, 2))
        found: dict[str, list[ExpertLayerSeconds]] = {"forward": [], "backward": []}
        dense, last = 0.0, 0.0  # seconds of a layer's backward but its experts, of all micro-batches and of the last
        for a, b in zip(one.templates, two.templates, strict=True):
            name = a.name.split(".")[0]
            if name in found:
                plan = plans[a.layout]
                first, second = (_computing(step, template, plan, cost) for step, template in ((one, a), (two, b)))
                at = int(np.argmax(first[0]))
                start = max(0.0, float(second[0][at] - first[0][at]))
                experts = LinearSeconds(start, max(0.0, float(first[0][at]) - start))
                messages = _messages(one, a, cost, steps.experts.tensor_parallel > 1)
                found[name].append(ExpertLayerSeconds(messages[0], experts, *messages[1:]))
                last = float(first[1].mean()) if name == "backward" else 0.0
                dense += last
        traffic = StepTraffic(cost, steps.parameters)
        ports = traffic.reduce(LAYER).ports + (
            len(plans) * traffic.gather(LAYER).ports if steps.parameters.gathered else 0
        )
        on_nics = float(ports[:, : cost.cluster.num_nics].sum(axis=0).max(initial=0.0))
        gradients = GradientSeconds.of(traffic, last)
        return ExpertProfile(found["forward"], found["backward"], max(0.0, on_nics - dense), gradients)

    def seconds(self, forward: int, backward: int) -> float:
        """Returns the seconds of all micro-batches' experts in a layer, with numbers of chunks."""
        last = len(self.backward) - 1
        back = [one.makespan(backward, self.reduced if at == last else 0.0) for at, one in enumerate(self.backward)]
        return sum(one.makespan(forward) for one in self.forward) + sum(back)

    def together(self) -> ChosenChunks:
        """Returns the best number for forward and backward alike, nothing on the links beside experts: PipeMoE's form,
        which is FSMoE's without gathers inside nodes."""
        alone = replace(self, reduced=0.0)
        seconds = {str(degree): alone.seconds(degree, degree) for degree in DEGREES}
        best = min(DEGREES, key=lambda degree: (seconds[str(degree)], degree))
        return ChosenChunks(ExpertChunks(best, best), seconds)

    def apart(self) -> ChosenChunks:
        """Returns the best numbers of a forward and of a backward; one for a forward whose exchanges are short, as
        FSMoE's planner does."""
        forward = (1,) if all(one.is_short() for one in self.forward) else DEGREES
        pairs = [(one, two) for one in forward for two in DEGREES]
        seconds = {pair: self.seconds(*pair) for pair in pairs}
        best = min(pairs, key=lambda pair: (seconds[pair], pair))
        return ChosenChunks(ExpertChunks(*best), {f"{one} {two}": found for (one, two), found in seconds.items()})

    def with_fixed_pieces(self, chunks: ExpertChunks) -> ExpertChunks:
        """Returns chunks with gradients in pieces of one size, as Lina has them."""
        return replace(chunks, gradients=self.gradients.in_fixed_pieces(self.backward[-1].slack(chunks.backward)))

    def partitioned(self) -> ChosenChunks:
        """Returns the best numbers of a forward and of a backward with as much of gradients beside experts as makes a
        layer and what is over shortest, by both steps of FSMoE's partition. Its forward's are those of `apart`."""
        forward, seconds = self.apart().chunks.forward, dict[str, float]()
        found = dict[str, ExpertChunks]()
        for degree in DEGREES:
            inside, beside = self.gradients.shares(self.backward[-1], degree)
            chunks = ExpertChunks(forward, degree, gradients=self.gradients.pieces(inside, beside))
            over = self.gradients.seconds * (1 - inside - beside)
            last = self.backward[-1].makespan(degree, self.gradients.seconds * inside)
            found[str(chunks)] = chunks
            seconds[str(chunks)] = sum(one.makespan(degree) for one in self.backward[:-1]) + last + over
        return ChosenChunks(found[min(seconds, key=lambda name: seconds[name])], seconds)


def _built(steps: ProvenSteps, batch: Batch, plans: Sequence[Plan]) -> Step:
    """Returns a batch's step before it is proven, as a clock plays it."""
    return played_rows(steps, steps.built(batch, plans), batch, plans)


def _computing(step: Step, template: Template, plan: Plan, cost: Cost) -> tuple[Floats, Floats]:
    """Returns the seconds of experts' computes and of all others on every GPU, of one layer, float64 [GPUs]."""
    layout, ops = step.layouts[template.layout], template.operations
    seconds = compute_seconds(Sizes(layout, (template,)), plan, cost)
    compute = ops.kind == COMPUTE
    mine = compute & np.isin(ops.what, [at for at, one in enumerate(layout.formulas) if of_experts(one)])
    places = step.num_gpus
    found = [np.bincount(ops.src[which], weights=seconds[which], minlength=places) for which in (mine, compute & ~mine)]
    return np.asarray(found[0], np.float64), np.asarray(found[1], np.float64)


def _messages(step: Step, template: Template, cost: Cost, are_cut: bool) -> tuple[LinearSeconds, ...]:
    """Returns the seconds of a template's messages to experts or from them, those of the busiest port: the mean of both
    ways; and where experts are cut over GPUs, of what these gather from each other, and of what is summed on them,
    apart.

    Where a feed-forward goes by chunks of memory, each of them starts its own messages. As many runs of a form whose
    times are some of a start and some of the work take as long as one of so many starts and of all work.
    """
    layout, ops, cluster = step.layouts[template.layout], template.operations, cost.cluster
    back = any(is_gradient_of_experts(layout.formulas[number]) for number in template.formulas)
    sent = np.flatnonzero((ops.kind != COMPUTE) & (ops.queue == _QUEUE))
    size = Sizes(layout, (template,)).moved(step.encodings)[sent]
    src, dst = ops.src[sent].astype(np.int64), ops.dst[sent].astype(np.int64)
    link = cluster.link_of(src, dst)
    seconds, latency = cost.transfer_seconds(size, link), cost.latency_seconds(link)

    def among(*names: str) -> Flags:
        every = [number for name, number in layout.number.items() if name.rstrip("~") in names]
        return np.isin(ops.what[sent], every)

    def busiest(mine: Flags) -> float:
        return max(_busiest(end, link, np.where(mine, seconds, 0.0), cost) for end in (src, dst))

    gather, reduce = (among(*names) if are_cut else among() for names in (_GATHERED, _SUMMED))
    home = among("dp", "di", "dni", "dpa", "dpn") if back else among("v", "nv")  # of what comes home, of relays too
    between = ~(gather | reduce)
    exchange = (busiest(between & ~home) + busiest(between & home)) / 2
    works = exchange, busiest(gather), busiest(reduce)
    _, alike = np.unique(np.stack([ops.what[sent], src, dst]), axis=1, return_counts=True)
    again = int(alike.max(initial=1))  # the chunks of memory
    starts = [again * float(latency[mine].max(initial=0.0)) for mine in (between, gather, reduce)]
    return tuple(LinearSeconds(start, work) for start, work in zip(starts, works, strict=True))


def _busiest(gpu: Ints, link: Ints, seconds: Floats, cost: Cost) -> float:
    """Returns the seconds of the busiest port of those that messages begin or end at."""
    cluster = cost.cluster
    port = np.where(link == NIC, cluster.nic_of[gpu], cluster.num_nics + link * cluster.num_ranks + gpu)
    return float(np.bincount(port, weights=seconds).max(initial=0.0))


def _played(
    schedule: ExpertSchedule, steps: ProvenSteps, batch: Batch, plans: Sequence[Plan], cost: Cost
) -> ChosenChunks:
    """Returns the fastest of steps that were played: the same number for forward and backward; and for the schedule
    that chooses more, from there or from the closed form's choice on another number for each of both, and experts'
    gradients after all chunks."""
    seconds: dict[ExpertChunks, float] = {}
    layouts = plans_of_layouts(plans)

    def played(chunks: ExpertChunks) -> float:
        if chunks not in seconds:
            step = _built(steps.with_chunks(chunks), batch, plans)
            seconds[chunks] = play_step(step, layouts, cost).seconds
        return seconds[chunks]

    best = _least([ExpertChunks(degree, degree) for degree in DEGREES], played)
    if not schedule.same_degree:
        best = _least([best, ExpertProfile.of(steps, batch, plans, cost).apart().chunks], played)
        best = _least([best, *(replace(best, backward=degree) for degree in DEGREES)], played)
        best = _least([best, *(replace(best, forward=degree) for degree in DEGREES)], played)
        best = _least([best, replace(best, weights=AFTER_CHUNKS)], played)
    if schedule.reduces_between:
        profile = ExpertProfile.of(steps, batch, plans, cost)
        own = profile.partitioned().chunks
        best = _least([best, own, profile.with_fixed_pieces(best), replace(best, gradients=own.gradients)], played)
        best = _least([best, *(replace(best, gradients=one) for one in EVERY_SHARE)], played)
    return ChosenChunks(best, {str(chunks): found for chunks, found in seconds.items()})


def _least(candidates: Sequence[ExpertChunks], seconds: Callable[[ExpertChunks], float]) -> ExpertChunks:
    """Returns the fastest candidate, the first of those that are as fast."""
    return min(candidates, key=seconds)
