"""The tokens a rank trains on: those of its own pieces of a batch's sequences. No torch.

Real ones where the workload has documents. Where it draws lengths only, tokens are made: in most places a
fixed function of the token before, in the others drawn anew, so that there is something to learn and the loss
falls. Either way a function of the batch alone.
"""

from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Flags
from zbench.describe.batch import Batch
from zbench.interfaces.protocols import Workload
from zbench.plans.plan import Ints, Plan
from zbench.runtime.program.holders import home_pieces

END = 0  # the target of a sequence's last token
_SURPRISES = 0.25  # share of made tokens that do not follow from the one before


@dataclass(frozen=True, slots=True)
class Text:
    """The tokens of a rank: tokens, positions (inside the sequence), targets (the next token): int64 [T], in the rank's
    order of rows. counted: int64, the rows of the batch's own tokens whose labels count; None: all."""

    tokens: Ints
    positions: Ints
    targets: Ints
    counted: Ints | None = None


def is_real(workload: Workload) -> bool:
    """Returns whether a workload has token ids of its own."""
    return hasattr(workload, "tokens_of")


def sequences(workload: Workload, batch: Batch, which: Ints, vocab: int) -> list[Ints]:
    """Returns the token ids of the batch's sequences `which`.

    Raises:
        ValueError: a token id is outside the model's vocabulary.
    """
    if is_real(workload):
        found: list[Ints] = workload.tokens_of(batch, which)  # type: ignore[attr-defined]
    else:
        found = [_made(batch, int(sequence), vocab) for sequence in which]
    most = max((int(tokens.max()) for tokens in found), default=0)
    if most >= vocab:
        raise ValueError(f"model.vocab is {vocab}; the workload's tokens need at least {most + 1}")
    return found


def rank_tokens(plan: Plan, rank: int, workload: Workload, batch: Batch, vocab: int) -> Text:
    """Returns the tokens of the blocks that `rank` is home of, block after block, their pieces by (sequence, start)."""
    seq, start, stop = home_pieces(plan, rank)
    which, place = np.unique(seq, return_inverse=True)
    found = sequences(workload, batch, plan.sequences[which], vocab)
    if plan.padding is not None:
        padding = plan.padding[which].tolist()
        found = [np.append(tokens, np.full(more, END)) for tokens, more in zip(found, padding, strict=True)]
    follows = [np.append(tokens[1:], END) for tokens in found]
    spans = list(zip(place.tolist(), start.tolist(), stop.tolist(), strict=True))
    nothing = [np.zeros(0, np.int64)]
    flags = _counting(plan, batch, which)
    counted = [] if flags is None else [flags[at][start:stop] for at, start, stop in spans]
    return Text(
        np.concatenate(nothing + [found[at][start:stop] for at, start, stop in spans]),
        np.concatenate(nothing + [np.arange(start, stop) for _, start, stop in spans]),
        np.concatenate(nothing + [follows[at][start:stop] for at, start, stop in spans]),
        None if flags is None else np.flatnonzero(np.concatenate([np.zeros(0, bool), *counted])),
    )


def _counting(plan: Plan, batch: Batch, which: Ints) -> list[Flags] | None:
    """Returns, of a plan's sequences `which`, whether the label of each token counts, those of padding do not; None
    where all do."""
    counts = batch.counts_of_sequences
    if plan.padding is None and counts is None:
        return None
    found = []
    for at in which.tolist():
        flags = np.zeros(int(plan.lengths[at]), bool)
        own = int(plan.own_lengths[at])
        flags[:own] = True if counts is None else counts[int(plan.sequences[at])]
        found.append(flags)
    return found


def _made(batch: Batch, sequence: int, vocab: int) -> Ints:
    """Runs of counting up, each from a token drawn anew."""
    rng = np.random.default_rng([batch.seed, batch.step, sequence])
    length = int(batch.lengths[sequence])
    at = np.arange(length)
    starts = rng.random(length) < _SURPRISES
    starts[:1] = True
    last = np.maximum.accumulate(np.where(starts, at, 0))
    return np.asarray((rng.integers(vocab, size=length)[last] + at - last) % vocab, np.int64)
