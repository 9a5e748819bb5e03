"""Pipelines: the layers divided among stages, each on as many GPUs; x and dx go from one to the next between them.

A template is played for every stage, from its first place on. Micro-batches go one forward, one backward in each stage
(Narayanan et al. 2021, arXiv 2104.04473, section 2.2.1): the order of instances is all there is to it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from zbench.describe.model import Model
from zbench.plans.alike import plan_digest
from zbench.plans.plan import Plan
from zbench.step.lists import PLACE
from zbench.step.operations import SEND, operation_row
from zbench.step.passes.buckets import Buckets
from zbench.step.passes.micro_batch import BatchTemplates
from zbench.step.template import Instance, StageStart, Template

FORWARD, BACKWARD = range(2)
EMBEDDING, LAYERS, HEAD, LAYERS_BACKWARD, EMBEDDING_BACKWARD, SEND_X, SEND_DX = range(7)  # a micro-batch's templates


@dataclass(frozen=True)
class TwoKinds:
    """Layers of two kinds: recomputed and not, or dense and with experts. firsts: how many layers of each stage are of
    the first kind, its first ones. templates: by micro-batch, the number of the forward of the kind that has templates
    apart from the usual ones; its backward is the next one. first_apart: whether that is the first kind."""

    firsts: tuple[int, ...]
    templates: Sequence[int] = ()
    first_apart: bool = False

    def split(self, one: Instance, stage: int, batch: int, way: int) -> list[Instance]:
        """Returns the instances of a stage's layers in place of one for all of them, in its order."""
        count, low = self.firsts[stage], min(one.layers)
        if not self.templates:
            return [one]
        kinds = [one, replace(one, template=self.templates[batch] + way)]
        first, other = kinds[::-1] if self.first_apart else kinds
        other = replace(other, repeats=one.repeats - count)
        if way == FORWARD:
            parts = [replace(first, repeats=count), replace(other, layer=low + count)]
        else:
            parts = [other, replace(first, layer=low + count - 1, repeats=count)]
        return [part for part in parts if part.repeats]


def _ends(stages: tuple[StageStart, ...], num_layers: int) -> list[int]:
    """Returns the layer after the last one of each stage."""
    return [*(one.layer for one in stages[1:]), num_layers]


def stage_starts(model: Model, stages: int, places: int) -> tuple[StageStart, ...]:
    """Returns the stages of layers, divided as the model says if it has as many stages, else evenly, some of them
    larger by one. places: of a stage.

    Raises:
        ValueError: there are fewer layers than stages.
    """
    num_layers = model.num_layers
    if not 1 <= stages <= num_layers:
        raise ValueError(f"the number of pipeline stages is {stages}; it takes 1 to model.num_layers, {num_layers}")
    first = accumulate(model.with_stages(stages).layers_of_stages[:-1], initial=0)
    return tuple(StageStart(layer, at * places) for at, layer in enumerate(first))


def dense_of_stages(stages: Sequence[StageStart], num_layers: int, dense: int) -> tuple[int, ...]:
    """Returns how many layers of each stage are among the first `dense` ones."""
    ends = _ends(tuple(stages), num_layers)
    return tuple(min(max(dense - one.layer, 0), end - one.layer) for one, end in zip(stages, ends, strict=True))


def one_forward_one_backward(stages: int, micro_batches: int) -> Iterator[tuple[int, int, int]]:
    """Yields (stage, FORWARD or BACKWARD, micro-batch) in an order in which each follows what it waits for."""
    waiting = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, micro_batches)
        turns = [(FORWARD, at) for at in range(ahead)]
        for at in range(micro_batches):
            turns += [(FORWARD, ahead + at)] if ahead + at < micro_batches else []
            turns.append((BACKWARD, at))
        waiting.append(turns[::-1])
    done: set[tuple[int, int, int]] = set()
    while any(waiting):
        for stage, turns in enumerate(waiting):
            if not turns:
                continue
            way, batch = turns[-1]
            before = stage - 1 if way == FORWARD else stage + 1
            if before in (-1, stages) or (before, way, batch) in done:
                done.add((stage, way, batch))
                yield stage, *turns.pop()


def border_templates(batch: BatchTemplates, trains: bool = True) -> list[Template]:
    """Returns the templates that send x of a stage's last layer to the next stage, and, where it trains, dx back."""
    return [_border(batch, name) for name in (("x", "dx") if trains else ("x",))]


def _border(batch: BatchTemplates, name: str) -> Template:
    """Returns the template that sends x on, or dx back; it is played for the last layer of the stage before."""
    number, places = batch.layout.number[name], batch.parts.num_gpus
    own = batch.linear.lists_of("t", False)
    sends, far = [], []
    for gpu in batch.linear.gpus(False).tolist():
        ends = (gpu, places + gpu) if name == "x" else (places + gpu, gpu)
        sends.append(operation_row(SEND, number, ends, [int(own[gpu])], "stages", 1))
        far.append([number, 1, batch.lists.number(PLACE, [places + gpu]), int(own[gpu]), -1, 0, 0, 0])
    near = batch.tokens(name, 1)
    needs, leaves = (near, far) if name == "x" else (far, near)
    return batch.template(f"send_{name}", [sends], [needs], [leaves])


def pipeline_order(
    stages: tuple[StageStart, ...],
    num_layers: int,
    batches: Sequence[int],
    fetches: Sequence[tuple[int, int]],
    buckets: Buckets,
    kinds: TwoKinds | None = None,
) -> list[Instance]:
    """Returns the instances of all micro-batches. batches: the number of each one's first template, in the order of
    EMBEDDING to SEND_DX; fetches: for each the templates that gather a stage's first layers ahead, forward and
    backward, -1 where none does; buckets: of reductions that are templates of their own; kinds: of layers, where
    they are not all alike."""
    kinds = kinds or TwoKinds((0,) * len(stages))
    ends = _ends(stages, num_layers)
    order = []
    for at, way, batch in one_forward_one_backward(len(stages), len(batches)):
        begin, end, place, first = stages[at].layer, ends[at], stages[at].place, batches[batch]
        if way == FORWARD:
            if at == 0:
                order.append(Instance(first + EMBEDDING, 0, place=place))
            elif fetches[batch][0] >= 0:
                order.append(Instance(fetches[batch][0], begin, place=place))
            order += kinds.split(Instance(first + LAYERS, begin, end - begin, place=place), at, batch, FORWARD)
            last = at + 1 == len(stages)
            order.append(
                Instance(first + HEAD, end, place=place) if last else Instance(first + SEND_X, end - 1, place=place)
            )
            continue
        if at + 1 < len(stages):
            order.append(Instance(first + SEND_DX, end - 1, place=place))
            if fetches[batch][1] >= 0:
                order.append(Instance(fetches[batch][1], end - 1, place=place))
        backward = Instance(first + LAYERS_BACKWARD, end - 1, end - begin, -1, place=place)
        after = [Instance(first + EMBEDDING_BACKWARD, 0, place=place)] if at == 0 else []
        parts = kinds.split(backward, at, batch, BACKWARD)
        order += buckets.backward(batch, parts, after, at + 1 == len(stages))
    return order


def forward_order(
    stages: tuple[StageStart, ...], num_layers: int, batches: Sequence[int], fetches: Sequence[int]
) -> list[Instance]:
    """Returns the instances of micro-batches that have forwards alone, which follow each other in every stage.

    batches: the number of each one's first template, in the order of embedding, layers, head and, with stages, what
    sends x on. fetches: of each, as of pipeline_order."""
    ends, order = _ends(stages, num_layers), list[Instance]()
    for first, fetch in zip(batches, fetches, strict=True):
        for at, (one, end) in enumerate(zip(stages, ends, strict=True)):
            if at == 0:
                order.append(Instance(first + EMBEDDING, 0))
            elif fetch >= 0:
                order.append(Instance(fetch, one.layer, place=one.place))
            order.append(Instance(first + LAYERS, one.layer, end - one.layer, place=one.place))
            if at + 1 == len(stages):
                order.append(Instance(first + HEAD, end, place=one.place))
            else:
                order.append(Instance(first + HEAD + 1, end - 1, place=one.place))
    return order


def first_alike(plans: Sequence[Plan], apart: int = 0, shares: Sequence[tuple[float, ...]] = ()) -> list[int]:
    """Returns the number of the first micro-batch whose plan is as that of each. apart: so many, the first ones, are as
    no other: of forwards alone the first finds parameters as they are between steps. shares: of each plan, which are
    alike then, too."""
    if len(plans) == 1:
        return [0]
    first: dict[tuple[bytes, bytes, int, tuple[float, ...]], int] = {}
    each, lengths = shares or ((),) * len(plans), [plan.lengths.tobytes() for plan in plans]
    often = Counter(lengths)  # plans of other lengths than all others need no digest to be told apart
    digests = (plan_digest(plan) if often[own] > 1 else b"" for plan, own in zip(plans, lengths, strict=True))
    keys = ((lengths[number], one, min(number, apart), each[number]) for number, one in enumerate(digests))
    return [first.setdefault(key, number) for number, key in enumerate(keys)]


def template_alike(of: Template, number: int, loss: int, more: int) -> Template:
    """Returns a template of a micro-batch for another one that is alike, with the same operations. loss: the number of
    that tensor; more: contributions to it that are there besides."""
    needs, leaves = (
        replace(one, count=np.where(one.tensor == loss, one.count + more, one.count)) if loss in one.tensor else one
        for one in (of.needs, of.leaves)
    )
    return replace(of, name=f"{of.name.split('.')[0]}.{number}", layout=number, needs=needs, leaves=leaves)
