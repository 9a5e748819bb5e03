"""Gradients that are reduced several layers together, and parameters that are all gathered before the first forward.

A bucket of k layers is k instances of a template that reduces a layer's gradients, after the backward of the last of
the k. The layer that is done last goes first: reductions follow one another in their queue, so the others stand behind
it, and none of a bucket begins before every GPU has made all of its gradients. One template serves buckets of all
sizes, and the proof of a step costs the same with each. A bucket's reduction is that of its layers one after another.

What is gathered before the first forward has templates of its own as well, the embedding's table last, so that the
first token waits for all of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from zbench.describe.arrays import Ints
from zbench.step.passes.contributions import TABLE
from zbench.step.passes.micro_batch import BatchTemplates
from zbench.step.passes.sections import DENSE_BACKWARD
from zbench.step.template import Instance, StageStart, Template


@dataclass(frozen=True)
class Buckets:
    """The reductions of a step that are templates of their own. layers: whose gradients are reduced together. at_end:
    whether those of a stage are reduced after all of its backward. reductions: by micro-batch, the template that
    reduces a layer's gradients and the one for the head's, -1 where there is none."""

    layers: int
    at_end: bool
    reductions: Sequence[tuple[int, int]]

    def backward(
        self, batch: int, backward: Sequence[Instance], after: Sequence[Instance], is_head_s: bool
    ) -> list[Instance]:
        """Returns the instances of a stage's backward with its reductions. backward: of its layers, the last ones
        first. after: those that follow the layers of the stage; is_head_s: whether it is the last stage."""
        (layer, head), last = self.reductions[batch], backward[-1]
        low, top, place = min(last.layers), backward[0].layer, last.place
        if layer < 0:
            return [*backward, *after]
        if self.at_end:
            found = [*backward, *after, Instance(layer, low, top - low + 1, place=place)]
            return found + ([Instance(head, top + 1, place=place)] if is_head_s else [])
        found = []
        for one in backward:
            for first in range(one.layer, min(one.layers) - 1, -self.layers):
                count = min(self.layers, first - min(one.layers) + 1)
                found.append(replace(one, layer=first, repeats=count))
                found.append(Instance(layer, first - count + 1, count, place=place))
        return [*found, *after]


def reductions(batch: BatchTemplates, begun: Mapping[str, Ints], counted: Mapping[str, Ints]) -> list[Template]:
    """Returns the templates that reduce the gradients of a layer and of the head, [] where no template of their own
    does. begun, counted: contributions of every GPU to each gradient before the micro-batch and after it."""
    found, rows, of = [], batch.parameters, batch.contributions
    for name, sections in (("reduce", ("backward", DENSE_BACKWARD)), ("reduce_head", ("head",))):
        made_in: dict[str, str] = {}  # of a parameter, the section of the layers that have it
        for section in sections:
            made_in = dict.fromkeys(of.reduced_later(section), section) | made_in
        weights = tuple(made_in)
        made = {weight: of.made(section, weight) for weight, section in made_in.items()}
        needs = [line for weight in weights for line in rows.unreduced(weight, begun[weight], made[weight])]
        leaves = [line for weight in weights for line in rows.gradients(weight, counted[weight], of.is_last)]
        if weights:
            found.append(batch.template(name, [rows.reductions(weights, of.is_last)], [needs], [leaves]))
    return found


def gathers_first(batch: BatchTemplates) -> list[Template]:
    """Returns the templates that gather a layer's and the head's parameters before the first forward, [] where they
    are gathered in it."""
    rows, degree, found = batch.parameters, batch.parameters.of.degrees.optimizer, list[Template]()
    head = tuple(one for one in rows.of.of_head if one not in TABLE)  # a tied table is the embedding's to gather
    for name, weights in (("gather", rows.of.of_layers), ("gather_head", head)) if rows.of.gathered_first else ():
        home = [line for weight in weights for line in rows.held(weight, weight, degree)]
        everywhere = [line for weight in weights for line in rows.everywhere(weight, weight)]
        found.append(batch.template(name, [rows.gathers(weights, degree)], [home], [everywhere]))
    return found


def order_of_gathers(first: int, stages: Sequence[StageStart], num_layers: int) -> list[Instance]:
    """Returns the instances of `gathers_first`, the first layer of every stage last. first: the number of the first
    of its templates."""
    ends = [*(one.layer for one in stages[1:]), num_layers]
    found = [Instance(first + 1, num_layers, place=stages[-1].place)]
    for one, end in zip(stages, ends, strict=True):
        found.append(Instance(first, end - 1, end - one.layer, -1, place=one.place))
    return found
