"""A plan as text that people read and programs read back, and a summary of it.

A line says one thing, in the plan's order:

    plan of 2 sequences on 4 ranks, 6 heads, mask causal
    backward keep
    sequence 0 of 600 tokens               its number in the batch
    block at 3: 0[0:100] 1[20:50]          home rank; pieces of the micro-batch's sequences, by place in the plan
    list 0 1                               of blocks; the first is list 0, as of blocks and lanes
    lanes 0 1
    forward
      transfer kv list 0 heads 0:6 rank 3 -> 1
      attend rank 1 q list 1 kv list 0 heads 0:6
    backward
      ...

A transfer may end in `lanes 0`, `keep` and `collective`. Blanks at a line's ends and empty lines mean nothing.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from zbench.describe.mask import Mask
from zbench.describe.model import TENSOR_NAMES
from zbench.describe.units import with_noun
from zbench.plans.columns import ATTEND, COLUMNS, TRANSFER, Blocks, Lists, Ops
from zbench.plans.pipelines import Pipelines
from zbench.plans.plan import WAITS, Plan

_HEAD = re.compile(r"plan of (\d+) sequences on (\d+) ranks, (\d+) heads, mask (\S+)")
_WORDS = {"backward": "backward_mode", "attention": "attention"}
_FLAGS = {name.replace("_", " "): name for name in WAITS}
_SEQUENCE = re.compile(r"sequence (\d+) of (\d+) tokens(?:, (\d+) of padding)?")
_BLOCK = re.compile(r"block at (\d+):((?: \d+\[\d+:\d+\])*)")
_PIECE = re.compile(r"(\d+)\[(\d+):(\d+)\]")
_LIST = re.compile(r"(list|lanes)((?: \d+)*)")
_PIPELINE = re.compile(r"pipeline at (\d+): tp (\d+) pp (\d+)")
_TRANSFER = re.compile(
    r"transfer (\w+) list (\d+) heads (\d+):(\d+) rank (\d+) -> (\d+)(?: lanes (\d+))?( keep)?( collective)?"
)
_ATTEND = re.compile(r"attend rank (\d+) q list (\d+) kv list (\d+) heads (\d+):(\d+)")
_FORMS = (
    "plan of N sequences on N ranks, N heads, mask MASK",
    "sequence N of N tokens, N of padding",
    "block at N: N[N:N] ...",
    "list N ...",
    "lanes N ...",
    "pipeline at N: tp N pp N",
    "transfer TENSOR list N heads N:N rank N -> N",
    "attend rank N q list N kv list N heads N:N",
)


def summary(plan: Plan, group: int = 1) -> str:
    """Returns what a person wants to know of a plan: sizes, balance, what is cut, operations by kind; a few lines.

    group: GPUs that are one rank of the plan, a tensor-parallel group.
    """
    rank, each = ("rank", "") if group == 1 else ("tensor-parallel group", f" of {group} GPUs")
    tokens, lists = plan.tokens_per_rank, (("forward", plan.forward), ("backward", plan.backward))
    home = plan.blocks.home[plan.blocks.block]
    first = np.unique(np.stack([plan.blocks.seq, home]), axis=1)[0]  # a sequence once for every rank that has some
    ranks = np.bincount(first, minlength=len(plan.lengths))
    cut = ranks[ranks > 1]
    over = f" over up to {cut.max():,} {rank.split()[-1]}s" if len(cut) else ""
    padded = int(plan.lengths.sum() - plan.own_lengths.sum())
    padding = f" and {padded:,} of padding" if padded else ""
    lines = [
        f"plan of {with_noun(len(plan.lengths), 'sequence')}, {int(plan.own_lengths.sum()):,} tokens{padding}, "
        f"{with_noun(plan.num_ranks, rank)}{each}, {with_noun(len(plan.blocks), 'block')}",
        f"  tokens of a {rank.split()[-1]}: {tokens.min():,} to {tokens.max():,}; mask {plan.mask}; "
        f"heads {'of a GPU ' * (group > 1)}{plan.num_heads}",
        f"  sequences: {len(ranks) - len(cut):,} whole on a {rank.split()[-1]}, {len(cut):,} cut{over}",
    ]
    for name, ops in lists:
        moved = np.bincount(ops.tensor[ops.kind == TRANSFER], minlength=len(TENSOR_NAMES))
        kinds = ", ".join(f"{count:,} of {tensor}" for tensor, count in zip(TENSOR_NAMES, moved, strict=True) if count)
        attends = int((ops.kind == ATTEND).sum())
        mode = f" ({plan.backward_mode})" if name == "backward" and plan.backward_mode else ""
        lines.append(
            f"  {name}{mode}: {with_noun(len(ops), 'operation')}, {with_noun(attends, 'attend')}, "
            f"{with_noun(len(ops) - attends, 'transfer')}"
            f"{f' ({kinds})' if kinds else ''}"
        )
    if plan.pipelines is not None:
        lines.append(f"  pipelines: {len(plan.pipelines):,}")
    for name, value in plan.notes.items():
        lines.append(f"  {name}: {value:.4g}" if isinstance(value, float) else f"  {name}: {value}")
    return "\n".join(lines)


def to_text(plan: Plan) -> str:
    """Returns all of a plan as text; the plan is one that zbench.proof.verify takes."""
    return "".join(f"{line}\n" for line in _lines(plan))


def _lines(plan: Plan) -> Iterator[str]:
    yield f"plan of {len(plan.lengths)} sequences on {plan.num_ranks} ranks, {plan.num_heads} heads, mask {plan.mask}"
    yield from (f"{word} {value}" for word, name in _WORDS.items() if (value := getattr(plan, name)))
    yield from (word for word, name in _FLAGS.items() if getattr(plan, name))
    yield from (f"note {json.dumps([name, value])}" for name, value in plan.notes.items())
    for number, length, own in zip(
        *(x.tolist() for x in (plan.sequences, plan.lengths, plan.own_lengths)), strict=True
    ):
        less = "" if plan.padding is None else f", {length - own} of padding"
        yield f"sequence {number} of {length} tokens{less}"
    blocks = plan.blocks
    for block, home in enumerate(blocks.home.tolist()):
        pieces = (f" {blocks.seq[at]}[{blocks.start[at]}:{blocks.stop[at]}]" for at in blocks.pieces[block])
        yield f"block at {home}:{''.join(pieces)}"
    for name, lists in (("list", plan.lists), ("lanes", plan.lanes)):
        yield from (f"{name}{''.join(f' {item}' for item in lists[row].tolist())}" for row in range(len(lists)))
    if plan.pipelines is not None:
        yield from (f"pipeline at {lead}: tp {tp} pp {pp}" for lead, tp, pp in zip(*plan.pipelines.layout, strict=True))
    for name, ops in (("forward", plan.forward), ("backward", plan.backward)):
        yield name
        columns = [getattr(ops, column).tolist() for column in COLUMNS]
        yield from (f"  {_operation(*row)}" for row in zip(*columns, strict=True))


def _operation(kind: int, tensor: int, src: int, dst: int, low: int, high: int, *rest: int) -> str:
    blocks, kv_blocks, via, keep, collective = rest
    if kind == ATTEND:
        return f"attend rank {src} q list {blocks} kv list {kv_blocks} heads {low}:{high}"
    lanes = f" lanes {via}" if via >= 0 else ""
    flags = f"{' keep' * keep}{' collective' * collective}"
    return f"transfer {TENSOR_NAMES[tensor]} list {blocks} heads {low}:{high} rank {src} -> {dst}{lanes}{flags}"


def from_text(words: str) -> Plan:
    """Returns the plan that `to_text` wrote; whether it is correct is for zbench.proof.verify to say.

    Raises:
        ValueError: a line says nothing that a plan has; the message names its number.
    """
    reader = _Reader()
    for number, line in enumerate(words.splitlines(), start=1):
        try:
            if line.strip() and not reader.take(line.strip()):
                raise ValueError(f"it has to be one of {'; '.join(_FORMS)}")
        except (ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"line {number} of the plan is {line.strip()!r:.80}: {error}") from error
    return reader.plan()


class _Reader:
    """The parts of a plan, collected line by line."""

    def __init__(self) -> None:
        self.plain: dict[str, Any] = {}
        self.notes: dict[str, float | str] = {}
        self.sequences: list[list[int]] = []
        self.is_padded = False
        self.pieces: list[list[int]] = []  # seq, start, stop, block
        self.homes: list[int] = []
        self.lists: dict[str, list[list[int]]] = {"list": [], "lanes": []}
        self.pipelines: list[list[int]] = []
        self.ops: dict[str, list[tuple[int, ...]]] = {}

    def take(self, line: str) -> bool:
        """Takes what a line says; returns whether it says something."""
        if line in ("forward", "backward"):
            if line in self.ops:
                raise ValueError(f"a plan has one {line}")
            self.ops[line] = []
            return True
        if line in _FLAGS:
            self.plain[_FLAGS[line]] = True
            return True
        if line.startswith("note "):
            name, value = json.loads(line[5:])
            self.notes[name] = value
            return True
        if found := _HEAD.fullmatch(line):
            self.plain |= {"num_ranks": int(found[2]), "num_heads": int(found[3]), "mask": Mask.of(found[4])}
            return True
        takes: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], None]], ...] = (
            (_TRANSFER, self._transfer),
            (_ATTEND, self._attend),
            (_SEQUENCE, self._sequence),
            (_BLOCK, self._block),
            (_LIST, self._list),
            (_PIPELINE, self._pipeline),
        )
        for form, method in takes:
            if found := form.fullmatch(line):
                method(found)
                return True
        word, _, value = line.partition(" ")
        if word not in _WORDS or not value:
            return False
        self.plain[_WORDS[word]] = value
        return True

    def _sequence(self, found: re.Match[str]) -> None:
        self.is_padded |= found[3] is not None
        self.sequences.append([int(found[1]), int(found[2]), int(found[3] or 0)])

    def _block(self, found: re.Match[str]) -> None:
        self.pieces += [[*map(int, piece), len(self.homes)] for piece in _PIECE.findall(found[2])]
        self.homes.append(int(found[1]))

    def _list(self, found: re.Match[str]) -> None:
        self.lists[found[1]].append([int(item) for item in found[2].split()])

    def _pipeline(self, found: re.Match[str]) -> None:
        self.pipelines.append([int(found[1]), int(found[2]), int(found[3])])

    def _transfer(self, found: re.Match[str]) -> None:
        if found[1] not in TENSOR_NAMES:
            raise ValueError(f"a transfer carries one of {', '.join(TENSOR_NAMES)}")
        blocks, low, high, src, dst = (int(found[at]) for at in range(2, 7))
        via = -1 if found[7] is None else int(found[7])
        flags = int(found[8] is not None), int(found[9] is not None)
        self._add(TRANSFER, TENSOR_NAMES.index(found[1]), src, dst, low, high, blocks, -1, via, *flags)

    def _attend(self, found: re.Match[str]) -> None:
        rank, q_blocks, kv_blocks, low, high = (int(found[at]) for at in range(1, 6))
        self._add(ATTEND, -1, rank, rank, low, high, q_blocks, kv_blocks, -1, 0, 0)

    def _add(self, *row: int) -> None:
        if not self.ops:
            raise ValueError("operations stand under forward or backward")
        self.ops[next(reversed(self.ops))].append(row)

    def plan(self) -> Plan:
        """Returns the plan of all lines.

        Raises:
            ValueError: there is no first line.
        """
        if "num_ranks" not in self.plain:
            raise ValueError(f"the text has no line such as {_FORMS[0]!r}, with which a plan begins")
        sequences = np.array(self.sequences, np.int64).reshape(-1, 3)
        seq, start, stop, block = np.array(sorted(self.pieces), np.int64).reshape(-1, 4).T.copy()
        part = Pipelines(*np.array(self.pipelines, np.int64).T.copy()) if self.pipelines else None
        return Plan(
            **self.plain,
            lengths=sequences[:, 1].copy(),
            sequences=sequences[:, 0].copy(),
            blocks=Blocks(seq, start, stop, block, np.array(self.homes, np.int64)),
            lists=Lists.of(self.lists["list"]),
            lanes=Lists.of(self.lists["lanes"]),
            forward=_ops(self.ops.get("forward", [])),
            backward=_ops(self.ops.get("backward", [])),
            pipelines=part,
            padding=sequences[:, 2].copy() if self.is_padded else None,
            notes=self.notes,
        )


def _ops(rows: list[tuple[int, ...]]) -> Ops:
    columns = np.array(rows, np.int64).reshape(-1, len(COLUMNS)).T.copy()
    return Ops(**dict(zip(COLUMNS, columns, strict=True)))
