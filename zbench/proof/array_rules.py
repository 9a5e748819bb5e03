"""The rules that a plan's arrays have to follow before anything reads them.

Compiled loops follow offsets and ids without looking whether they lead outside of an array, so these rules come
before all others: types, shapes, lengths of columns that belong together, offsets, and plain values. Ids that name
something else of the plan are checked by zbench.proof.block_rules, zbench.proof.operation_rules and
zbench.proof.cluster_rules.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from zbench.describe.cluster import MOST_RANKS
from zbench.describe.mask import FULL, Mask
from zbench.describe.units import with_noun
from zbench.passes.reverse import MODES
from zbench.plans.columns import COLUMNS, TYPES, Blocks, Lists, Ops, is_array
from zbench.plans.pipelines import Pipelines
from zbench.plans.plan import ATTENTIONS, WAITS, Plan

_PARTS = {"blocks": Blocks, "lists": Lists, "lanes": Lists, "forward": Ops, "backward": Ops}
_LIMIT = 2.0**63


def array_fault(plan: Plan) -> str:
    """Returns the first of the rules above that the plan breaks, as a sentence; "" if none."""
    return next(_faults(plan), "")


def _faults(plan: Plan) -> Iterator[str]:
    for name, kind in _PARTS.items():
        if not isinstance(getattr(plan, name), kind):
            yield f"plan.{name} is {_told(getattr(plan, name))}; it takes zbench.plans.plan.{kind.__name__}"
    if not isinstance(plan.pipelines, Pipelines | None):
        yield f"plan.pipelines is {_told(plan.pipelines)}; it takes zbench.plans.pipelines.Pipelines or None"
    for where, holder, columns in _tables(plan):
        types = TYPES if isinstance(holder, Ops) else {}
        yield from _table_faults(where, {name: getattr(holder, name) for name in columns}, types)
    for name in ("lists", "lanes"):
        yield from _list_faults(f"plan.{name}", getattr(plan, name))
    yield from _value_faults(plan)


def _tables(plan: Plan) -> Iterator[tuple[str, object, Sequence[str]]]:
    """Yields (where, what holds them, names) of the arrays that have to be of one length."""
    yield "plan", plan, ("lengths", "sequences", *(() if plan.padding is None else ("padding",)))
    yield "plan.blocks", plan.blocks, ("seq", "start", "stop", "block")
    yield "plan.blocks", plan.blocks, ("home",)
    for name in ("lists", "lanes"):
        for column in ("offsets", "items"):
            yield f"plan.{name}", getattr(plan, name), (column,)
    for name in ("forward", "backward"):
        yield f"plan.{name}", getattr(plan, name), COLUMNS
    if plan.pipelines is not None:
        yield "plan.pipelines", plan.pipelines, ("lead", "tp", "pp")


def _table_faults(where: str, columns: Mapping[str, Any], types: Mapping[str, Any]) -> Iterator[str]:
    """Yields a sentence for every column of a table that is not as it has to be. types: of columns that are not
    int64."""
    for name, column in columns.items():
        wanted = types.get(name, np.dtype(np.int64))
        if is_array(column) and column.dtype.kind == "i" and column.ndim == 1 and column.dtype != wanted:
            yield from _beyond(f"{where}.{name}", column, wanted)
        right = is_array(column) and column.ndim == 1 and column.dtype == wanted
        if not (right and column.dtype.isnative and column.flags.c_contiguous):
            yield f"{where}.{name} is {_told(column)}; it takes a contiguous {wanted} array of one dimension"
    (first, count), *others = ((name, len(column)) for name, column in columns.items())
    for name, other in others:
        if other != count:
            yield f"{where}.{name} has {other} entries and {where}.{first} has {count}; they have to have as many"


def _beyond(where: str, column: Any, wanted: Any) -> Iterator[str]:
    """Yields a sentence about values that do not fit, of a column that is wider than it has to be."""
    low, high = np.iinfo(wanted).min, np.iinfo(wanted).max
    outside = (column < low) | (column > high)
    if outside.any():
        at = int(np.argmax(outside))
        yield f"{where}[{at}] is {column[at]}; it takes whole numbers from {low} to {high}"


def _told(value: object) -> str:
    """Names an array by its form and anything else by its type, as what is wrong may be large."""
    if is_array(value):
        kind = "an array" if value.flags.c_contiguous else "a non-contiguous array"
        return f"{kind} of {value.dtype} and shape {value.shape}"
    return f"of type {type(value).__name__}"


def _list_faults(where: str, lists: Lists) -> Iterator[str]:
    offsets, total = lists.offsets, len(lists.items)
    if not len(offsets) or offsets[0] != 0:
        yield f"{where}.offsets begins with {offsets[:1].tolist()}; it has to begin with 0"
    falls = offsets[1:] < offsets[:-1]
    if falls.any():
        at = int(np.argmax(falls))
        yield (
            f"{where}.offsets goes from {offsets[at]} down to {offsets[at + 1]} at list {at}; "
            f"it has to rise from 0 to {total}"
        )
    if offsets[-1] != total:
        yield f"{where}.offsets ends with {offsets[-1]}; it has to end with {total}, the number of items"


def _value_faults(plan: Plan) -> Iterator[str]:
    for name in ("num_ranks", "num_heads"):
        value = getattr(plan, name)
        if not isinstance(value, int | np.int64) or isinstance(value, bool) or not 1 <= value < _LIMIT:
            yield f"plan.{name} is {_shown(value)}; it takes a whole number of at least 1 and below 2^63"
    if plan.num_ranks > MOST_RANKS:  # tables of all ranks are made
        yield f"plan.num_ranks is {plan.num_ranks}; zbench takes at most {MOST_RANKS} ranks"
    if not isinstance(plan.mask, Mask):
        yield f"plan.mask is {_told(plan.mask)}; it takes a zbench.describe.mask.Mask"
    for name in WAITS:
        if not isinstance(getattr(plan, name), bool):
            yield f"plan.{name} is {getattr(plan, name)!r}; it takes True or False"
    if not isinstance(plan.backward_mode, str) or plan.backward_mode not in MODES:
        yield f"plan.backward_mode is {_shown(plan.backward_mode)}; it takes {', '.join(MODES)}"
    if not isinstance(plan.attention, str) or plan.attention not in ATTENTIONS:
        yield f"plan.attention is {_shown(plan.attention)}; it takes one of {', '.join(map(repr, ATTENTIONS))}"
    if not isinstance(plan.notes, Mapping):
        yield f"plan.notes is {_told(plan.notes)}; it takes a mapping of names to numbers or words"
    for key, note in plan.notes.items():
        if not isinstance(key, str) or not (isinstance(note, str) or _is_number(note)):
            yield f"plan.notes has {_shown(key)}: {_shown(note)}; it takes names with words or finite numbers of Python"
    yield from _sequence_faults(plan)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) <= sys.float_info.max


def _shown(value: object) -> str:
    """Returns a plain value as Python writes it, which it does not do for integers of thousands of digits."""
    if isinstance(value, int) and abs(value) > sys.float_info.max:
        return f"an integer of {value.bit_length()} bits"
    return _told(value) if is_array(value) else repr(value)


def _sequence_faults(plan: Plan) -> Iterator[str]:
    lengths, sequences = plan.lengths, plan.sequences
    if not len(lengths):
        yield "plan.lengths is empty; a micro-batch has at least one sequence"
    if lengths.min() < 1:
        at = int(np.argmin(lengths))
        yield f"plan.lengths[{at}] is {lengths[at]}; a sequence has at least one token"
    if plan.padding is not None:
        wrong = (plan.padding < 0) | (plan.padding >= lengths)
        if wrong.any():
            at = int(np.argmax(wrong))
            yield (
                f"plan.padding[{at}] is {plan.padding[at]}; of {lengths[at]} tokens it takes 0 to {lengths[at] - 1}, "
                "as one at least is the batch's"
            )
        if plan.mask == FULL:
            yield "plan.padding is given under the mask full, where all tokens would see it; it takes a causal one"
    if sequences.min() < 0:
        at = int(np.argmin(sequences))
        yield f"plan.sequences[{at}] is {sequences[at]}; sequences of a batch are numbered from 0"
    seen, times = np.unique(sequences, return_counts=True)
    if times.max() > 1:
        yield f"plan.sequences has {seen[np.argmax(times)]} {times.max()} times; a sequence is in a micro-batch once"
    # The proof counts triples, and numbers pairs of blocks with a head, in 64 bits.
    triples = float((lengths.astype(np.float64) ** 2).sum()) * plan.num_heads
    pairs = float(len(plan.blocks)) ** 2 * (plan.num_heads + 1)
    if max(triples, pairs) >= _LIMIT:
        yield (
            f"plan.lengths adds up to {float(lengths.astype(np.float64).sum()):.3g} tokens, of "
            f"{with_noun(plan.num_heads, 'head')}; their (query, key, head) triples have to be below 2^63"
        )
