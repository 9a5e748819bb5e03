"""A whole step as text, with the tokens that its attention is over: what a clock needs of a step to play it. Pure.

A step says which parts of queries see which keys, and not how many pairs of tokens do, which a kernel's seconds depend
on. So behind the step's own lines (zbench.step.text) stands, for each layout that has attention,

tokens of layout 0: 8 heads, mask causal       query heads of a GPU; what a query sees of its sequence
  serial legs                                  what else than data is waited for (zbench.plans.plan): or in rounds, or
  sequence 0 of 600 tokens, 3 of padding       until sent; then the sequences of the micro-batch, by their number in
  sequence 4 of 90 tokens                      the batch
  block 0[0:300]                               which tokens of them are a block, a group of the relation visible; a
  block 0[300:600] 1[0:90]                     sequence by its place here, from 0
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from zbench.describe.batch import Batch
from zbench.describe.mask import Mask
from zbench.plans.columns import COLUMNS, Blocks, Lists, Ops
from zbench.plans.plan import WAITS, Plan
from zbench.step.index import Relation
from zbench.step.layout import StepLayout
from zbench.step.passes.visible import visible_parts
from zbench.step.reading.read import read_step
from zbench.step.reading.scanner import MOST_NUMBER, Scanner, TextFault
from zbench.step.template import Step
from zbench.step.text import step_text

_BEGIN = "tokens"
_FLAGS = {name.replace("_", " "): name for name in WAITS}
_VISIBLE = "visible"


@dataclass(frozen=True)
class WrittenStep:
    """A step and what its attention is over. plans: of its layouts, the first ones, whose blocks, heads, mask and waits
    count and whose operations do not; () where the text has none."""

    step: Step
    plans: tuple[Plan, ...] = ()

    @property
    def text(self) -> str:
        """The text that `read` reads."""
        more = (line for number, plan in enumerate(self.plans) for line in _lines(number, plan))
        return step_text(self.step) + "".join(f"{line}\n" for line in more)

    @staticmethod
    def read(text: str) -> "WrittenStep":
        """Returns the step of a text; whether it is correct is for zbench.step.proof.prove to say.

        Raises:
            TextFault: a line says nothing that a step has, or tokens are not those of its blocks; the message names
                line and column.
        """
        lines = text.splitlines()
        first = next((at for at, line in enumerate(lines) if line.split()[:1] == [_BEGIN]), len(lines))
        step = read_step("\n".join(lines[:first]))
        reader = _Reader(step)
        for number, line in enumerate(lines[first:], start=first + 1):
            if line.strip():
                scanner = Scanner(line, number)
                reader.line(scanner)
                scanner.end()
        return WrittenStep(step, reader.plans(len(lines) + 1))

    @property
    def untold(self) -> list[int]:
        """The layouts with attention of whose tokens nothing is known."""
        return [at for at, one in enumerate(self.step.layouts) if at >= len(self.plans) and _visible(one) is not None]

    @cached_property
    def batch(self) -> Batch | None:
        """The sequences that it trains with, by their numbers, each as long as the batch has it; None without any. It
        has no seed: nothing drew it."""
        found: dict[int, int] = {}
        for plan in self.plans:
            found |= dict(zip(plan.sequences.tolist(), plan.own_lengths.tolist(), strict=True))
        return Batch(np.array([found[one] for one in sorted(found)], np.int64), seed=0, step=0) if found else None


def _visible(layout: StepLayout) -> Relation | None:
    return next((one for one in layout.relations if one.name == _VISIBLE), None)


def _lines(number: int, plan: Plan) -> Iterator[str]:
    """Yields the lines of a layout's tokens."""
    yield f"{_BEGIN} of layout {number}: {plan.num_heads} heads, mask {plan.mask}"
    yield from (f"  {words}" for words, name in _FLAGS.items() if getattr(plan, name))
    for which, length, own in zip(
        *(column.tolist() for column in (plan.sequences, plan.lengths, plan.own_lengths)), strict=True
    ):
        yield f"  sequence {which} of {length} tokens" + (f", {length - own} of padding" if length > own else "")
    blocks = plan.blocks
    for block in range(len(blocks)):
        pieces = blocks.pieces[block].tolist()
        yield "  block" + "".join(f" {blocks.seq[at]}[{blocks.start[at]}:{blocks.stop[at]}]" for at in pieces)


@dataclass
class _Tokens:
    """The tokens of a layout while they are read. sequences: number, tokens, padding; pieces: sequence, first and last
    token, block."""

    heads: int
    mask: Mask
    flags: dict[str, bool] = field(default_factory=dict)
    sequences: list[tuple[int, int, int]] = field(default_factory=list)
    pieces: list[tuple[int, int, int, int]] = field(default_factory=list)
    num_blocks: int = 0

    def plan(self, layout: StepLayout) -> Plan:
        """Returns them as the plan of a layout.

        Raises:
            ValueError: blocks do not have every token once, or not those that the layout says.
        """
        sequences = np.array(self.sequences, np.int64).reshape(-1, 3)
        seq, start, stop, block = np.array(sorted(self.pieces), np.int64).reshape(-1, 4).T.copy()
        blocks = Blocks(seq, start, stop, block, np.zeros(self.num_blocks, np.int64))
        ends = np.append(0, np.cumsum(sequences[:, 1]))
        whole = np.stack([ends[seq] + start, ends[seq] + stop])  # counted through all sequences
        if not np.array_equal(np.append(0, whole[1]), np.append(whole[0], ends[-1])):
            raise ValueError("blocks do not have every token of its sequences once")
        none, lists = np.zeros(0, np.int64), Lists.of([])
        ops = Ops(**dict.fromkeys(COLUMNS, none))
        plan = Plan(
            sequences[:, 1].copy(),
            sequences[:, 0].copy(),
            1,
            self.heads,
            blocks,
            lists,
            ops,
            ops,
            lists,
            self.mask,
            padding=sequences[:, 2].copy() if sequences[:, 2].any() else None,
        ).with_(**self.flags)
        _check(plan, layout)
        return plan


def _check(plan: Plan, layout: StepLayout) -> None:
    """Raises ValueError where blocks are not the groups of tokens that a layout has, or meet otherwise."""
    relation = _visible(layout)
    assert relation is not None
    groups, sizes = relation.second_group, layout.index[relation.second].sizes
    here = np.bincount(groups, weights=sizes).astype(np.int64)
    if len(here) != len(plan.blocks):
        raise ValueError(f"it has {len(plan.blocks)} blocks; the layout's relation {_VISIBLE} has {len(here)} groups")
    if len(wrong := np.flatnonzero(here != plan.blocks.tokens)):
        which = int(wrong[0])
        told = f"block {which} has {plan.blocks.tokens[which]} tokens; the parts of its group have {here[which]}"
        raise ValueError(told)
    seen = visible_parts(plan, groups)
    owner = np.zeros(len(relation.offsets) - 1, np.int64)
    owner[relation.first_group] = groups  # of a group of queries the block that they are of
    for group, block in enumerate(owner.tolist()):
        said = relation.partners[slice(*relation.offsets[group : group + 2].tolist())]
        if not np.array_equal(said, seen.partners[slice(*seen.offsets[block : block + 2].tolist())]):
            raise ValueError(
                f"block {block} sees other blocks by its tokens than the layout's relation {_VISIBLE} says"
            )


class _Reader:
    """The tokens of layouts, collected line by line."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.made: list[Plan] = []
        self.at: _Tokens | None = None

    def line(self, scanner: Scanner) -> None:
        """Takes a line."""
        word = scanner.take(_BEGIN, "sequence", "block", *_FLAGS)
        if word == _BEGIN:
            self._finish(scanner.number)
            self.at = self._begun(scanner)
        elif self.at is None:
            raise scanner.fault(f"this stands behind a line such as: {_BEGIN} of layout 0: 8 heads, mask causal", 0)
        elif word == "sequence":
            self._sequence(scanner, self.at)
        elif word == "block":
            self._block(scanner, self.at)
        else:
            self.at.flags[_FLAGS[word]] = True

    def _begun(self, scanner: Scanner) -> _Tokens:
        scanner.take("of layout")
        at = scanner.at + 1
        number, count = scanner.integer("the number of a layout"), len(self.step.layouts)
        if number != len(self.made) or number >= count or _visible(self.step.layouts[number]) is None:
            more = sum(_visible(one) is not None for one in self.step.layouts)
            raise scanner.fault(
                f"it has layout {number} where it takes {len(self.made)}: layouts in their order, of which {more} have "
                "attention",
                at,
            )
        scanner.take(":")
        heads = scanner.integer("query heads of a GPU")
        scanner.take("heads")
        scanner.take(",")
        scanner.take("mask")
        words, at = scanner.rest()
        try:
            mask = Mask.of(words)
        except ValueError as error:
            raise scanner.fault(str(error), at) from error
        if heads < 1:
            raise scanner.fault(f"it has {heads} heads; it takes at least 1", 0)
        return _Tokens(heads, mask)

    def _sequence(self, scanner: Scanner, tokens: _Tokens) -> None:
        number = scanner.integer("a sequence's number in the batch")
        scanner.take("of")
        length, padding = scanner.integer("the tokens of a sequence"), 0
        scanner.take("tokens")
        if scanner.has(","):
            padding = scanner.integer("tokens of padding")
            scanner.take("of padding")
        if number < 0 or not 0 <= padding < length:
            raise scanner.fault("a sequence has a number of at least 0, and tokens that are no padding", 0)
        tokens.sequences.append((number, length, padding))

    def _block(self, scanner: Scanner, tokens: _Tokens) -> None:
        while True:
            at = scanner.at + 1
            seq = scanner.integer("a sequence's place in the layout", MOST_NUMBER)
            scanner.take("[")
            start = scanner.integer("the first token")
            scanner.take(":")
            stop = scanner.integer("the token behind the last one")
            scanner.take("]")
            if not 0 <= seq < len(tokens.sequences):
                raise scanner.fault(f"there is no sequence {seq}; there are {len(tokens.sequences)} before this", at)
            length = tokens.sequences[seq][1]
            if not 0 <= start < stop <= length:
                raise scanner.fault(f"tokens {start}:{stop} are none of a sequence of {length}", at)
            tokens.pieces.append((seq, start, stop, tokens.num_blocks))
            if scanner.next(r"$") is not None:
                break
        tokens.num_blocks += 1

    def _finish(self, line: int) -> None:
        """Makes a plan of the tokens that were read. line: the number of the line behind them."""
        if self.at is None:
            return
        try:
            self.made.append(self.at.plan(self.step.layouts[len(self.made)]))
        except ValueError as error:
            raise TextFault(
                f"line {line}, column 1: before this, of tokens of layout {len(self.made)}, {error}"
            ) from error
        self.at = None

    def plans(self, line: int) -> tuple[Plan, ...]:
        """Returns the plans of all lines. line: the number of the one after the last."""
        self._finish(line)
        return tuple(self.made)
