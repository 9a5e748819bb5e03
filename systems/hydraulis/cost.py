"""Hydraulis' objective: the seconds of sequences on pipelines of every (tp, pp) scheme.

A sequence takes a stage a s^2 + b s seconds, a micro-batch c besides. Hydraulis profiles the three for every scheme;
here they are the described cluster's (zbench.cost.stage), with whole tiles in place of s^2, and no less than a layer's
copies to and from hosts (zbench.cost.memory.host_copies), as if a sequence were alone. A pipeline with
micro-batches of m_1 ... m_v seconds a stage takes sum m + (pp - 1) max m: what the last stage waits for the first one's
longest.
"""

from dataclasses import dataclass, replace

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.memory.host_copies import MANY, stage_copies, stage_waiting
from zbench.cost.memory.lines import MemoryLines
from zbench.cost.memory.needs import memory_of, pipeline_moments
from zbench.cost.stage import Stage, refusal
from zbench.describe.arrays import Flags, Floats
from zbench.plans.area import Work
from zbench.plans.plan import Ints
from zbench.systems.flexsp.cost import group_degrees

MOST_STAGES = 8  # of a scheme that is offered by itself


@dataclass(frozen=True, slots=True)
class Schemes:
    """The schemes (tp, pp) that pipelines may have, and their constants, arrays [num_schemes]; tps divide one another,
    so that pipelines laid by falling tp leave no gaps in nodes.

    size: ranks. token: seconds of a stage a token, without attention; nic: of them, in which each of its NICs is busy
    with its gathers. fixed: a micro-batch. capacity: tokens of a micro-batch with pp of them under way; alone: of the
    only one. window: tokens of all that are under way together, if `working` times the longest one's are added to them.
    """

    cost: Cost
    stages: tuple[Stage, ...]
    tp: Ints
    pp: Ints
    size: Ints
    token: Floats
    nic: Floats
    fixed: Floats
    capacity: Ints
    alone: Ints
    window: Floats
    working: Floats

    def __len__(self) -> int:
        return len(self.stages)

    def take(self, index: Ints) -> "Schemes":
        """Returns the schemes at `index` alone."""
        stages = tuple(self.stages[i] for i in index.tolist())
        names = ("tp", "pp", "size", "token", "nic", "fixed", "capacity", "alone", "window", "working")
        return replace(self, stages=stages, **{name: getattr(self, name)[index] for name in names})

    def seconds(self, lengths: Ints) -> Floats:
        """Returns float64 [num_schemes, n]: the seconds of every sequence on a stage of every scheme, forward and
        backward."""
        again = 1 if self.cost.model.recompute == "full" else 0
        of = {(stage.heads, stage.kv_heads): np.zeros(0) for stage in self.stages}
        whole, one = Work.whole(lengths, self.cost.model.mask), np.ones_like(lengths)
        ways = dict[tuple[int, int], list[Floats]]()
        for heads, kv_heads in of:
            forward, backward = (self.cost.stream_seconds(whole, heads * one, kv_heads * one, b) for b in (False, True))
            of[heads, kv_heads], ways[heads, kv_heads] = (1 + again) * forward + backward, [forward, backward]
        rows = [stage.layers * of[stage.heads, stage.kv_heads] for stage in self.stages]
        if stage_copies(self.stages[0]) is not None:
            waits = [stage_waiting(stage, lengths, *ways[stage.heads, stage.kv_heads]) for stage in self.stages]
            rows = [row + stage.layers * wait for row, stage, wait in zip(rows, self.stages, waits, strict=True)]
        return np.stack(rows) + self.token[:, None] * lengths

    def is_long(self, lengths: Ints) -> Flags:
        """Returns which sequences are above the capacity of every scheme: they need a pipeline with little else under
        way."""
        return np.asarray(lengths > self.capacity.max())

    def fits(self, lengths: Ints) -> Flags:
        """Returns whether a scheme can have a sequence, [num_schemes, n]: by its capacity, a long one by what is alone.
        The schemes with most room have what fits none: it is out of memory, and the verdict says so."""
        found, is_long = lengths <= self.capacity[:, None], self.is_long(lengths)
        found[:, is_long] = lengths[is_long] <= self.alone[:, None]
        found[:, ~found.any(axis=0)] = (self.alone == self.alone.max())[:, None]
        return found


def offered_schemes(cost: Cost) -> list[tuple[int, int]]:
    """Lists every scheme that the cluster and the model can have: tp as zbench.cost.stage.refusal says, pp up to
    MOST_STAGES."""
    if not cost.pipelines:
        return [(1, 1)]
    pps = [pp for pp in range(1, MOST_STAGES + 1) if cost.model.num_layers % pp == 0]
    return [(tp, pp) for tp in group_degrees(cost) for pp in pps if not refusal(tp, pp, cost)]


def schemes(cost: Cost, shapes: list[tuple[int, int]]) -> Schemes:
    """Returns the constants of every scheme of `shapes` that has memory for a token; of the one with most, if none
    has."""
    stages = tuple(Stage.of(cost, tp, pp) for tp, pp in shapes)
    tp, pp = (np.array(column, np.int64) for column in zip(*shapes, strict=True))
    few, many = 1024, MANY if cost.is_by_shape else 1024  # of few tokens more a last wave of tiles would be a part
    small, less, more = (np.array([_seconds(stage, n * stage.tp) for stage in stages]) for n in (few, many, 2 * many))
    token = (more - less) / (many * tp)
    fixed = small - token * few * tp
    nic = np.array([stage.nic_seconds() for stage in stages])
    capacity, alone, window, working = (np.array(column) for column in zip(*map(_room, stages), strict=True))
    alone, capacity = (np.maximum(most, 0).astype(np.int64) // tp * tp for most in (alone, capacity))
    rooms = (np.maximum(capacity, 1), np.maximum(alone, 1), window, working)
    found = Schemes(cost, stages, tp, pp, tp * pp, token, nic, fixed, *rooms)
    able = np.flatnonzero(capacity > 0)
    return found.take(able if len(able) else np.array([int(capacity.argmax())]))


def _seconds(stage: Stage, tokens: int) -> float:
    """Returns the seconds of a micro-batch on the last stage, without the work of attention: its kernels' starts are in
    it."""
    count, start = np.array([tokens]), np.array([stage.cost.cluster.device.kernel_seconds])
    forward, backward = stage.pass_seconds(count, start, 8 * start)  # zbench.cost.kernel.kernel_seconds
    return float((stage.micro_batch_seconds(count, forward + backward) + stage.head_seconds(count))[0])


def _room(stage: Stage) -> tuple[float, float, float, float]:
    """Returns the tokens of Schemes' capacity, alone, window, and working, that a rank of a stage has room for."""
    cost = stage.cost
    memory = cost.cluster.device.memory_bytes - 1
    if not cost.pipelines:
        most = memory_of(cost).tokens(memory)
        return most, most, max(most, 0), 0.0
    of = pipeline_moments(cost, stage.tp, stage.pp)
    first, last = (MemoryLines(of.lines(under_way, under_way == 1)) for under_way in (stage.pp, 1))
    alone = last.tokens(memory)
    constant = max(line.constant + line.chunk * line.chunk_tokens for line in of.at_work)
    free, working = max(memory - of.state - stage.pp * of.fixed - constant, 0), max(line.token for line in of.at_work)
    kept = max(of.kept, 1.0)  # a byte of a token where all that layers keep waits on hosts
    return min(alone, first.tokens(memory)), alone, free / kept, working / kept
