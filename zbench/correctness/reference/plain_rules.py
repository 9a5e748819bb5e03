"""The rules of a plan's arrays in plain Python, one entry after the other. Pure: no torch.

They are those of docs/proof.md, written a second time: whoever judges the verifier must not use its code. What a plan
computes and sends is another matter (zbench.correctness.reference.interpreter, zbench.correctness.reference.byte_law).
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from sys import float_info
from typing import Any

import numpy as np

from zbench.correctness.reference.interpreter import Broken
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.mask import Mask
from zbench.plans.pipelines import Pipelines
from zbench.plans.plan import COLUMNS, Blocks, Lists, Ops, Plan

_TENSORS = {"forward": (0, 1, 2), "backward": (1, 3, 4, 5)}  # q kv o, kv do dq dkv
_PARTS = {"blocks": Blocks, "lists": Lists, "lanes": Lists, "forward": Ops, "backward": Ops}
_MODES = ("keep", "carry", "regather")

# Of an entry of each column of operations.
_BYTES = {
    "kind": 1,
    "tensor": 1,
    "src": 4,
    "dst": 4,
    "head_lo": 2,
    "head_hi": 2,
    "blocks": 4,
    "kv_blocks": 4,
    "via": 2,
    "keep": 1,
    "collective": 1,
}


def check_sequences(batch: Batch, plans: Sequence[Plan], mask: Mask) -> None:
    """Checks that every sequence of the batch is in one micro-batch, with its length and mask, and that pipelines are
    the same in all.

    Raises:
        Broken: a rule is broken.
    """
    found: list[int] = []
    for plan in plans:
        for name in ("lengths", "sequences"):
            _sound(getattr(plan, name))
        _need(len(plan.sequences) == len(plan.lengths), "sequences have lengths")
        _need(type(plan.mask) is Mask and plan.mask == mask, "the mask is the model's")
        _padding(plan)
        padding = [0] * len(plan.lengths) if plan.padding is None else plan.padding.tolist()
        for sequence, length, less in zip(plan.sequences.tolist(), plan.lengths.tolist(), padding, strict=True):
            _need(0 <= sequence < len(batch.lengths), "a sequence is one of the batch")
            _need(batch.lengths[sequence] == length - less, "a sequence has its length")
            found.append(sequence)
    _need(sorted(found) == list(range(len(batch.lengths))), "every sequence is in one micro-batch")
    layouts = [_layout(plan) for plan in plans]
    _need(all(layout == layouts[0] for layout in layouts), "pipelines are the same in all micro-batches")


def check_plan(plan: Plan, cost: Cost) -> None:
    """Checks that arrays are sound, and that every entry is in its range.

    Raises:
        Broken: a rule is broken.
    """
    _need(type(plan.num_ranks) in (int, np.int64) and plan.num_ranks == cost.cluster.num_ranks, "ranks")
    _need(type(plan.num_heads) in (int, np.int64) and plan.num_heads == cost.model.num_heads, "heads")
    _need(isinstance(plan.backward_mode, str) and plan.backward_mode in _MODES, "the backward mode is known")
    for waits in (plan.serial_legs, plan.in_rounds, plan.until_sent):
        _need(isinstance(waits, bool), "a kind of waits is there or not")
    _need(isinstance(plan.attention, str), "attention is a name")
    _need(
        isinstance(plan.notes, Mapping) and all(_is_note(*note) for note in plan.notes.items()),
        "notes are for the record",
    )
    for name, kind in _PARTS.items():
        _need(type(getattr(plan, name)) is kind, "parts are of their types")
    for name in ("lengths", "sequences"):
        _sound(getattr(plan, name))
    _need(len(plan.lengths) == len(plan.sequences) > 0, "there is a sequence")
    _need(min(plan.lengths) > 0, "a sequence has a token")
    _padding(plan)
    _blocks(plan)
    _lists(plan.lists, len(plan.blocks.home))
    _lists(plan.lanes, cost.cluster.nics_per_node)
    for row in _rows(plan.lanes):
        _need(len(set(row)) == len(row), "lanes of a list are different ones")
    for name in ("forward", "backward"):
        _operations(plan, name, cost)
        _kv_heads(getattr(plan, name), _rows(plan.lists), cost.model.num_heads // cost.model.num_kv_heads)
    if plan.pipelines is not None:
        _pipelines(plan, cost)


def _padding(plan: Plan) -> None:
    if plan.padding is not None:
        _sound(plan.padding)
        _need(len(plan.padding) == len(plan.lengths), "sequences have padding")
        _need(str(plan.mask) != "full", "no token of the batch sees padding")
        for less, length in zip(plan.padding.tolist(), plan.lengths.tolist(), strict=True):
            _need(0 <= less < length, "a sequence has a token of its own")


def _need(holds: object, rule: str) -> None:
    if not holds:
        raise Broken(f"a rule of arrays is broken: {rule}")


def _sound(array: Any, size: int = 8) -> None:
    """Checks one array. size: bytes of an entry."""
    _need(type(array) in (np.ndarray, np.memmap), "an array is one")
    _need(
        array.dtype.kind == "i" and array.dtype.isnative and array.ndim == 1, "an array has one dimension of integers"
    )
    _need(array.dtype.itemsize == size, f"its entries have {size} bytes")
    _need(len(array) < 2 or array.strides == (size,), "an array is contiguous")


def _is_note(name: object, value: object) -> bool:
    is_number = isinstance(value, int | float) and -float_info.max <= value <= float_info.max
    return isinstance(name, str) and (isinstance(value, str) or is_number)


def _within(array: Any, count: int, rule: str) -> None:
    _need(all(0 <= value < count for value in array.tolist()), rule)


def _layout(plan: Plan) -> object:
    if plan.pipelines is None:
        return None
    _need(type(plan.pipelines) is Pipelines, "pipelines are of their type")
    for name in ("lead", "tp", "pp"):
        _sound(getattr(plan.pipelines, name))
    return [getattr(plan.pipelines, name).tolist() for name in ("lead", "tp", "pp")]


def _blocks(plan: Plan) -> None:
    blocks = plan.blocks
    columns = [getattr(blocks, name) for name in ("seq", "start", "stop", "block")]
    for column in (*columns, blocks.home):
        _sound(column)
    _need(len({len(column) for column in columns}) == 1, "pieces have all columns")
    _within(blocks.home, plan.num_ranks, "a home is a rank")
    _within(blocks.seq, len(plan.lengths), "a piece is of a sequence")
    _within(blocks.block, len(blocks.home), "a piece is of a block")
    _need(set(blocks.block.tolist()) == set(range(len(blocks.home))), "a block has a piece")
    pieces = list(zip(*(column.tolist() for column in columns[:3]), strict=True))
    _need(pieces == sorted(pieces, key=lambda piece: piece[:2]), "pieces are in order")
    for seq, start, stop in pieces:
        _need(0 <= start < stop <= plan.lengths[seq], "a piece lies in its sequence")


def _rows(lists: Any) -> list[list[int]]:
    offsets, items = lists.offsets.tolist(), lists.items.tolist()
    return [items[offsets[at] : offsets[at + 1]] for at in range(len(offsets) - 1)]


def _lists(lists: Any, count: int) -> None:
    _sound(lists.offsets)
    _sound(lists.items)
    offsets = lists.offsets.tolist()
    _need(offsets[:1] == [0] and offsets[-1:] == [len(lists.items)], "offsets go from 0 to the number of items")
    _need(all(a < b for a, b in pairwise(offsets)), "a list has an item")
    _within(lists.items, count, "an item names what exists")


def _operations(plan: Plan, name: str, cost: Cost) -> None:
    ops: Ops = getattr(plan, name)
    for column in COLUMNS:
        _sound(getattr(ops, column), _BYTES[column])
    _need(len({len(getattr(ops, column)) for column in COLUMNS}) == 1, "operations have all columns")
    lists, lanes, per_node = len(plan.lists.offsets) - 1, len(plan.lanes.offsets) - 1, cost.cluster.gpus_per_node
    for row in zip(*(getattr(ops, column).tolist() for column in COLUMNS), strict=True):
        kind, tensor, src, dst, lo, hi, blocks, kv_blocks, via, keep, collective = row
        _need(0 <= src < plan.num_ranks and 0 <= dst < plan.num_ranks, "an operation is on ranks")
        _need(0 <= lo < hi <= plan.num_heads, "an operation has heads")
        _need(0 <= blocks < lists, "an operation has blocks")
        if kind == 1:
            _need(src == dst and 0 <= kv_blocks < lists, "an attend has one rank, and blocks of kv")
            _need((tensor, via, keep, collective) == (-1, -1, 0, 0), "an attend has nothing of a transfer's")
        else:
            _need(kind == 0 and src != dst and kv_blocks == -1, "a transfer is between ranks")
            _need(tensor in _TENSORS[name], "a transfer has a tensor of its direction")
            _need(-1 <= via < lanes, "a route is over lanes")
            _need(via == -1 or src // per_node != dst // per_node, "a route is between nodes")
            _need(collective in (0, 1), "a transfer is part of a collective or not")
            _need(keep == 0 or (keep == 1 and name == "forward" and tensor < 2), "a copy of the forward is kept")


def _kv_heads(ops: Ops, lists: list[list[int]], group: int) -> None:
    """Holds that each kv head of a block comes to a rank once, for whichever of so many query heads that share it."""
    there: set[tuple[int, int, int]] = set()
    columns = (getattr(ops, name).tolist() for name in ("kind", "tensor", "dst", "head_lo", "head_hi", "blocks"))
    for kind, tensor, dst, lo, hi, blocks in zip(*columns, strict=True):
        if kind == 0 and tensor == 1:
            heads = range(lo // group, (hi - 1) // group + 1)
            brought = {(dst, block, head) for block in lists[blocks] for head in heads}
            _need(not brought & there, "a kv head of a block comes to a rank once")
            there |= brought


def _pipelines(plan: Plan, cost: Cost) -> None:
    _need(cost.pipelines, "what runs the plan has pipelines")
    layout, model, per_node = _layout(plan), cost.model, cost.cluster.gpus_per_node
    assert isinstance(layout, list)
    _need(len({len(column) for column in layout}) == 1, "pipelines have all columns")
    taken: list[int] = []
    for lead, tp, pp in zip(*layout, strict=True):
        _need(tp > 0 and pp > 0 and lead >= 0 and lead + tp * pp <= plan.num_ranks, "a pipeline has ranks")
        taken += range(lead, lead + tp * pp)
        _need(model.num_heads % tp == 0 and model.num_layers % pp == 0, "a pipeline divides heads and layers")
        _need(0 in (model.num_kv_heads % tp, tp % model.num_kv_heads), "a pipeline divides kv heads, or copies them")
        inside = per_node % tp == 0 and lead % tp == 0
        _need(inside or (tp % per_node == 0 and lead % per_node == 0), "a stage is in a node, or has whole ones")
    _need(len(set(taken)) == len(taken), "a rank is in one pipeline")
    _need(set(plan.blocks.home.tolist()) <= set(layout[0]), "tokens are at leads")
    for ops in (plan.forward, plan.backward):
        for kind, q, kv, lo, hi in zip(
            *(getattr(ops, name).tolist() for name in ("kind", "blocks", "kv_blocks", "head_lo", "head_hi")),
            strict=True,
        ):
            _need(kind == 1 and q == kv and (lo, hi) == (0, plan.num_heads), "pipelines attend to whole sequences")
