"""A step with fewer layers: those in the middle of each stage are left out."""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.operations import GATHER
from zbench.step.template import StageStart, Step

TURNS = 4  # of several layers that are played at least, two before and two after those that are left out


def longest_stage(step: Step) -> int:
    """Returns the most layers that are on the same stages of all pipelines and play the same templates."""
    return max(end - begin for begin, end in pairwise([*step.cuts, step.num_layers]))


def layers_ahead(step: Step) -> int:
    """Returns the most layers by which parameters are gathered ahead of the layer under way."""
    tables = [one.operations for one in step.templates]
    return max((int(np.abs(one.layer[one.kind == GATHER]).max(initial=0)) for one in tables), default=0)


def with_fewer_layers(step: Step, kept: int) -> tuple[Step, list[tuple[int, int]], Ints]:
    """Returns a step with at most `kept` layers in each stage, the instances of it, (entry, layer), and for each how
    many layers before it in its run were left out: those in the middle of a stage are, or of what stages of several
    pipelines have in common.

    Where gradients are reduced several layers together these are left out together, and a few more may be kept.
    """
    number, firsts, which = 0, {}, {}
    for first, end in pairwise([*step.cuts, step.num_layers]):
        firsts[first] = number
        begin, less = _left_out(end - first, kept, step.turn_layers)
        for layer in (*range(first, first + begin), *range(first + begin + less, end)):
            which[layer] = number
            number += 1
    which[step.num_layers] = number
    stages = [StageStart(firsts[one.layer], one.place) for one in step.stages]
    order, skipped = [], []
    before, since = dict.fromkeys(step.runs, -1), dict.fromkeys(step.runs, -1)  # by run: the last one kept, and of all
    for entry, (of, run) in enumerate(zip(step.order, step.runs, strict=True)):
        for layer in of.layers:
            since[run] += 1
            if layer in which:
                order.append((entry, which[layer]))
                skipped.append(since[run] - before[run] - 1)
                before[run] = since[run]
    leading = firsts[step.leading] if step.leading else 0
    return replace(step, num_layers=number, stages=tuple(stages), leading=leading), order, np.array(skipped, np.int64)


def _left_out(count: int, kept: int, turn: int) -> tuple[int, int]:
    """Returns how many of a stage's layers stand before those that are left out, and how many these are. turn: the
    layers that are left out together, counted from the last."""
    kept = max(kept, TURNS * turn + count % turn) if turn > 1 else kept
    begin, less = min(kept, count) // 2, max(count - kept, 0)
    begin += (count - begin) % turn
    return begin, less // turn * turn
