"""Moments of a stage whose layers are of two kinds: first ones that are dense, before others with experts.

What micro-batches keep is the sum of both kinds'. The backward comes to dense layers when those with experts are done,
so these have gone then; and the first layer with experts has dense ones gathered ahead, and brought from hosts.
"""

from dataclasses import replace
from typing import NamedTuple

from zbench.cost.cost import Cost
from zbench.cost.memory.lines import MomentLine
from zbench.cost.memory.moments import StageMoments, stage_moments
from zbench.cost.memory.state import WholeBytes
from zbench.describe.expert_schedule import USUAL_EXPERTS

_NOTHING = MomentLine(0.0, 0.0)


class StageLayers(NamedTuple):
    """Numbers of a stage's layers: of all, of those that are dense where others have experts, and of those of which
    something is recomputed. Both are the first ones."""

    all: int
    dense: int
    recomputed: int


def moments_of_kinds(
    cost: Cost, shape: tuple[int, int], layers: StageLayers, state: float, are_cut: bool = True
) -> StageMoments:
    """Returns `stage_moments` of a stage whose first layers may be dense. are_cut: whether parameters and gradients may
    be cut over ranks, as they are not in pipelines that planners choose."""
    others = layers.all - layers.dense
    if not layers.dense:
        whole = WholeBytes.of(cost, layers.all) if are_cut else WholeBytes()
        return stage_moments(cost, shape, layers.all, layers.recomputed, state, whole)
    dense = replace(cost, model=cost.model.dense_layer, expert_gpus=1, expert_cut=1, experts=USUAL_EXPERTS)
    if not others:
        return moments_of_kinds(dense, shape, layers._replace(dense=0), state, are_cut)
    window, ahead = cost.layers_ahead, [WholeBytes.of_kind(one, (0, 0, 0)).ahead for one in (cost, dense)]

    def gathered(which: int, backward: tuple[int, int]) -> WholeBytes:
        """Returns what is whole beside a kind of layers, 0 or 1, with so many gathered ahead, of its kind and of the
        other."""
        if not are_cut:
            return WholeBytes()
        size, counts = (others, layers.dense)[which], (backward[0], min(window, others), 0)
        rest = (backward[1], min(max(window - others, 0), layers.dense), 0)
        if which:  # the first ones, of a forward
            counts, rest = (
                (backward[0], 0, min(window, size)),
                (backward[1], 0, min(max(window - size, 0), others)),
            )
        a, b, c = (count * ahead[1 - which] for count in rest)
        return WholeBytes.of_kind((cost, dense)[which], counts, (a, b, c))

    def part(which: int, count: int, again: int, sent: int, backward: tuple[int, int]) -> StageMoments:
        return stage_moments((cost, dense)[which], shape, count, again, state, gathered(which, backward), sent)

    sent, again = cost.model.offloaded_layers(layers.all), layers.recomputed
    dense_sent, dense_again = min(sent, layers.dense), min(again, layers.dense)
    sent, again = sent - dense_sent, again - dense_again
    near = min(window, others - 1)
    late = part(0, others, again, sent, (near, min(window - near, layers.dense)))
    # The last layer that has as many dense ones ahead as there can be, with which most is gathered.
    before = min(max(window - layers.dense, 0), others - 1)
    count = before + 1
    first = part(0, count, min(again, count), min(sent, count), (before, min(window - before, layers.dense)))
    early = part(1, layers.dense, dense_again, dense_sent, (min(window, layers.dense - 1), 0))
    brought = _brought(part(1, 1, min(dense_again, 1), 0, (0, 0)), dense_sent > 0)
    at_work = [_beside(line, late, first, brought) for line in first.at_work]
    if others > count:
        at_work += late.at_work
    at_work += [_beside(line, late, None) for line in early.at_work]
    return replace(
        late,
        kept=late.kept + early.kept,
        received=late.received + early.received,
        spread=late.spread + early.spread,
        fixed=late.fixed + early.fixed,
        at_work=tuple(at_work),
        at_table=tuple(_beside(line, late, None) for line in early.at_table),
    )


def _brought(of: StageMoments, is_there: bool) -> MomentLine:
    """Returns what a layer keeps, as a moment, where it is brought from hosts."""
    if not is_there:
        return _NOTHING
    return MomentLine(of.fixed, of.kept, received=of.received, spread=of.spread)


def _beside(line: MomentLine, gone: StageMoments, left: StageMoments | None, more: MomentLine = _NOTHING) -> MomentLine:
    """Returns a moment of a micro-batch of whose layers some have gone, but for those that are left, and with more."""
    kept, received, spread, fixed = gone.kept, gone.received, gone.spread, gone.fixed
    if left is not None:
        kept, received = kept - left.kept, received - left.received
        spread, fixed = spread - left.spread, fixed - left.fixed
    return line._replace(
        constant=line.constant - fixed + more.constant,
        token=line.token - kept + more.token,
        received=line.received - received + more.received,
        spread=line.spread - spread + more.spread,
    )
