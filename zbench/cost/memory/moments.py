"""Moments of a rank of a stage: what it has at each, beside its state and what micro-batches keep for their backward.

A layer's backward has four that are fullest in turn, as what there is of a token gets less and gradients of parameters
get more: the feed-forward's halves, its norm, attention, and the projections before that. Then there is the loss, on
the last stage. Docs/memory/planners.md has them in a table.

A stage's ranks have a share of everything but of what tensor parallelism gathers and has not reduced yet: a hidden
state of all tokens is then whole on every rank, which on 16 ranks is as much as half a layer that is kept.
"""

from dataclasses import dataclass
from typing import NamedTuple

from zbench.cost.cost import Cost
from zbench.cost.loss import LEAST_CHUNK, logits_of_share, logits_of_token
from zbench.cost.memory.layer_bytes import LayerBytes
from zbench.cost.memory.lines import MomentLine
from zbench.cost.memory.spread import RowSpread
from zbench.cost.memory.state import WholeBytes
from zbench.describe.exchanges import ASYNC_TP, NONE, RING, SLICED
from zbench.describe.model import AUTO, WHOLE


@dataclass(frozen=True, slots=True)
class StageMoments:
    """The bytes that a rank of a stage has. state: bytes of parameters, gradients and optimizer state.

    kept: bytes a token that every micro-batch under way keeps; spread: and times the square root of its tokens; fixed:
    and whatever these are.
    received: layers whose received q and kv each of them keeps, too. at_work, at_loss, at_table: what there is besides
    at the moments of a layer's backward, of the loss, and of the table, on the first of several stages.
    """

    state: float
    kept: float
    received: float
    spread: float
    fixed: float
    at_work: tuple[MomentLine, ...]
    at_loss: tuple[MomentLine, ...]
    at_table: tuple[MomentLine, ...] = ()

    def moments(self, is_last: bool, is_first: bool = False) -> tuple[MomentLine, ...]:
        """Returns the moments of a stage that is the last one, or is not, and the first one, or is not."""
        return self.at_work + is_last * self.at_loss + is_first * self.at_table

    def lines(self, under_way: int, is_last: bool, is_first: bool = False) -> tuple[MomentLine, ...]:
        """Returns the lines of a rank with so many micro-batches under way, all alike."""
        return tuple(
            one._replace(
                constant=self.state + under_way * self.fixed + one.constant,
                token=under_way * self.kept + one.token,
                received=under_way * self.received + one.received,
                spread=max(under_way * self.spread + one.spread, 0.0),
            )
            for one in self.moments(is_last, is_first)
        )


def stage_moments(
    cost: Cost,
    shape: tuple[int, int],
    layers: int,
    recomputed: int,
    state: float,
    whole: WholeBytes,
    sent: int | None = None,
) -> StageMoments:
    """Returns the moments of a stage of so many layers, of which so many are recomputed by the model's level.

    shape: (tp, pp), ranks and stages of a pipeline; bytes are of a token of all the stage's ranks. state, whole: bytes
    of parameters and gradients. sent: layers of which something waits on hosts; None: those of a whole stage. Kv heads
    that are replicated are counted.
    """
    model, (tp, pp) = cost.model, shape
    of, rest, is_full = LayerBytes.of(cost, tp), layers - recomputed, model.recompute == "full"
    spread = RowSpread.of(cost)
    kept_again = of.kept_recomputed(model.recompute)
    on_hosts = model.offloaded_layers(layers) if sent is None else sent
    here = layers - on_hosts  # the last layers, of which nothing waits on hosts
    stay, stay_again = min(rest, here), max(here - rest, 0)
    early = of.own if pp > 1 else 0.0  # an input of the next micro-batch is there already
    at_work, at_loss = list[MomentLine](), _loss(cost, of, tp, whole.loss)
    kept_spread_again = 0.0 if is_full else spread.kept
    every = _Kept(of.layer, spread.layer, of.fixed, 1)
    again = _Kept(kept_again, kept_spread_again, *((0.0, 0) if is_full else (of.fixed, 1)))
    if model.layers_on_hosts and not model.activations_on_hosts:
        again = again._replace(token=of.own)  # numbers of rows are no input, and stay
    if rest:
        lines = _spread(_backward(cost, of, tp, whole, (0.0, 0, 0), early), spread, 0.0)
        # A layer that comes back beside the last one; and this, where others of the stage stay.
        brought = int(layers > 1 > here - 1) if sent is None else max(min(2, layers) - here, 0)
        beside_it = again if rest == 1 and sent is None else every
        at_work += [_beside_layers(line, beside_it, brought) for line in lines]
    if recomputed:  # the layers behind, which are not, have had their backward
        gathered = 2 if is_full else 1  # outputs of norms that are made again, and gathered
        beside = (of.layer - kept_again - stay * of.layer, is_full - stay, gathered)
        made = spread.layer if is_full else 3 * spread.columns
        lines = _spread(_backward(cost, of, tp, whole, beside, early), spread, made - stay * spread.layer)
        brought = max(min(2, recomputed) - stay_again, 0)
        at_work += [_beside_layers(line, again, brought) for line in lines]
        if not model.activations_on_hosts:  # the head brings an input back
            at_loss = tuple(_beside_layers(line, again, brought) for line in at_loss)
    kept = stay * of.layer + stay_again * kept_again
    if is_full and not model.activations_on_hosts:
        kept += (recomputed - stay_again) * of.counts[1]
    kept_spread = stay * spread.layer + stay_again * kept_spread_again
    received = stay if is_full and recomputed else here
    fixed = of.fixed * (stay if is_full else here) + of.counts[0] * layers
    # The micro-batch that begins, or is done, has a hidden state alone, which is whole where words are looked up; of
    # planners' lines all are alike.
    alone = MomentLine(-fixed, of.whole - kept, received=-received, spread=-kept_spread)
    at_table = [alone._replace(constant=alone.constant + more) for more in (whole.embedding, whole.table) if more]
    return StageMoments(state, kept, received, kept_spread, fixed, tuple(at_work), at_loss, tuple(at_table))


class _Kept(NamedTuple):
    """What a layer keeps: bytes of a token, of rows that are spread, and however many tokens; received: whether q and
    kv that it received are kept."""

    token: float
    spread: float
    fixed: float
    received: int


def _beside_layers(line: MomentLine, of: _Kept, count: int) -> MomentLine:
    """Returns a moment with what so many layers more keep."""
    return line._replace(
        constant=line.constant + count * of.fixed,
        token=line.token + count * of.token,
        received=line.received + count * of.received,
        spread=line.spread + count * of.spread,
    )


def _spread(lines: list[MomentLine], spread: RowSpread, more: float) -> list[MomentLine]:
    """Returns the moments of a layer's backward with what rows for experts may be more than their mean. more: of what
    is there beside what is kept, before the backward begins."""
    gone = more - spread.layer
    at = [more + spread.gradients + spread.columns, more + spread.gradients - spread.columns, gone, gone]
    at = [more + 2 * spread.gradients] * (len(lines) - len(at)) + at
    return [line._replace(spread=size) for line, size in zip(lines, at, strict=True)]


def _backward(
    cost: Cost, of: LayerBytes, tp: int, whole: WholeBytes, beside: tuple[float, int, int], early: float
) -> list[MomentLine]:
    """Returns the moments of a layer's backward. beside: bytes of a token that are there beside what is kept, before
    the backward begins, layers' received q and kv likewise, and hidden states that are whole since they were made
    again."""
    model, (more, received, gathered) = cost.model, beside
    of_attention, attention = (gathered == 2) * of.other, more + early - 2 * of.own - 3 * of.ffn
    other = of_attention + (gathered > 0) * of.gathers * of.other
    more += early
    ffn, chunk, tokens, halving, norming = of.ffn, 0.0, 0, whole.feed_forward, whole.norm
    norms = of.other + of.whole if of.gathers else of.own  # the norm's output, which is whole, and its gradient
    norm = of_attention + norms + of.own
    if model.mlp_chunk_tokens != WHOLE:  # gradients of a chunk, and what is made again for it
        tokens = int(model.mlp_chunk_tokens)
        by_chunk = of.chunk_again if gathered else 0.0
        more, chunk, ffn = more - by_chunk + of.late, by_chunk + of.chunk_gradients, 0.0
        norm = norm if cost.tp * tp > 1 else of.own  # without a group a chunk's as well
        halving = norming = whole.chunks
    # The product's gradient is made of what came back, gathered; those of gate and up when the product itself is gone.
    # Of experts, whose rows' gradients are there before the first and after the second, shared ones have theirs later.
    # Gradients of rows that a group of GPUs gathers and reduces are there before, and after, as one of these has them.
    ffn *= 1 - of.shared
    came = of.own if of.rows else of.whole
    came += other + of.gradients
    product = came + max(ffn, 0.0 if of.passing else of.relayed)
    halves, entered = other + of.own + 2 * ffn, other + of.own + of.gradients + of.relayed - ffn
    beside_matmuls = _beside_matmuls(cost, of)
    if beside_matmuls and not of.rows and not tokens:
        product = halves = other + beside_matmuls
    norm = max(norm - of.rows - ffn, entered)  # rows are gone behind what they have given to gradients
    attention -= of.rows
    out = of.whole + of.q  # the output's gradient is made of what came back, gathered
    sums = model.lse_bytes * model.num_heads / tp  # of outputs times their gradients, one a head
    attend = of.own + of.q + of.kv + sums
    attention += of_attention
    inputs = attention + of.own + of.other * (gathered != 2) + of.whole - of.q  # as of the other norm's output
    fixed = 2 * of.fixed + of.counts[0]  # what is made again, and gradients
    passing = [MomentLine(whole.rows + fixed, more + came + of.passing, received=received)] if of.passing else []
    return [
        *passing,
        MomentLine(halving + fixed, more + max(product, halves, entered), chunk, tokens, received),
        MomentLine(norming + fixed, more + norm, chunk, tokens, received),
        MomentLine(whole.attention, attention + max(out, attend), received=received, copies=True),
        MomentLine(whole.inputs, inputs, received=received - 1),  # this layer's are gone with its attention
    ]


def _beside_matmuls(cost: Cost, of: LayerBytes) -> float:
    """Returns the bytes of a token that there are at the halves of a dense feed-forward's backward where exchanges go
    beside matmuls, in place of gradients of a half and what came back: that is whole until gradients of parameters have
    read it, and there are partial sums. By async_tp gates and products are of all tokens, and so are their gradients;
    else a slice at a time is made from the other.
    """
    how, slices, tp = cost.exchanges, cost.exchanges.count, cost.tp
    if tp == 1 or how.method == NONE or (how.method == SLICED and slices == 1):
        return 0.0  # of the best number of slices one may be best, and needs most
    if how.method == ASYNC_TP:
        return of.whole + 3 * of.ffn
    reduced = (1 - 1 / slices) * of.own  # of the slices before the last one
    if how.method == SLICED:
        return of.whole + reduced + 3 * of.ffn / slices
    sums = min(2, tp - 1) if how.transfers == RING else 1  # by a ring what comes is there beside what it is added to
    return of.whole + reduced + (sums * of.own + 3 * of.ffn / tp) / slices


def loss_lines(cost: Cost) -> tuple[MomentLine, ...]:
    """Returns the moments of the loss beside what layers keep, where parameters and gradients are not cut."""
    return _loss(cost, LayerBytes.of(cost, 1), 1, 0.0)


def _loss(cost: Cost, of: LayerBytes, tp: int, whole: float) -> tuple[MomentLine, ...]:
    """Returns the moments of the loss: logits, the norm's output and its gradient, both whole on every rank, the last
    layer's output and two sums a token.

    By chunks of a number of tokens, the norm's output and its gradient are of a chunk as well, but for what a group
    gathers. By AUTO's there are logits of a share of the tokens, or of LEAST_CHUNK, whichever are more.
    """
    model, states = cost.model, 2 * of.whole
    there, logits = of.own + 2 * model.lse_bytes, logits_of_token(model, 1 / tp)
    if model.loss_chunk_tokens == WHOLE:
        return (MomentLine(whole, there + states + logits),)
    if model.loss_chunk_tokens != AUTO:
        gathered = of.whole if tp * cost.tp > 1 else 0.0  # for all of a group's tokens
        return (MomentLine(whole, there + gathered, states - gathered + logits, int(model.loss_chunk_tokens)),)
    share = cost.tp * logits_of_share(model, 1 / (tp * cost.tp))
    return MomentLine(whole, there + states + share), MomentLine(whole, there + states, logits, LEAST_CHUNK)
