"""Makes rows of what the terms of formulas take, which loops over all computes of a layout read.

A row is a term of a formula: a matmul, or work that elements pass through memory in, or both, and how many kernels
start. What a row refers to, it refers to by the rows of references (zbench.step.layout.FormulaRows).
"""

import re
from collections.abc import Mapping
from functools import cache, lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.model import Model
from zbench.step.form import LayoutForm
from zbench.step.formula import Formula
from zbench.step.layers import without_counts
from zbench.step.layout import StepLayout

# Bytes of an element of the result that elementwise work passes through memory, as numbers of an element's bytes where
# it is fused, and absolute where it is not: Model.elementwise_bytes says of what they are the sum. Keys are half of kv.
_PASSES: Mapping[str, tuple[float, float]] = MappingProxyType({
    "norm": (2, 28), "turn": (2, 24), "turn_keys": (1, 12), "act": (3, 10), "add": (3, 6), "lookup": (2, 4),
    "enter": (2, 4), "leave": (2, 10),
})  # fmt: skip
MATMULS = ("", "turn", "turn_keys", "score", "weigh", "enter", "leave")  # functions that multiply with a parameter
_SORTED = ("enter", "leave", "enter_d0", "leave_d1")  # with which hidden states come into another order
_SHARES = "leave_d0"  # the gradient of shares: products with u of what leave_d1's matmul makes, by row
# Kernels of a formula: a dense layer's forward has 10 beside attention, and LAYER_KERNELS (zbench.cost.linear) 20.
_STARTS = 2
# Parts of other kernels: of attention's backward, the head's, norm_d0; and attention, which is counted as a plan's.
_FREE = ("row_sums", "lose", "regress", "norm_d1", "attend", "attend_d")
_DERIVATIVE = re.compile(r"_d(\d)$")

# Kinds of rows: no matmul; a parameter's update; matmuls, of which some have the loss's passes through memory beside
# them, forward and backward, and some bring hidden states into another order.
PASSES, UPDATE, MATMUL, SCORE, SCORE_BACK, SORTING = range(6)
_NONE, _RESULT, _FIRST, _SECOND, _THIRD, _ALL = range(6)  # what elementwise work passes through memory
# Where a round ends a parameter in its state is read or written, a third of it, and the moments beside it are not:
# contribute(s, share) -> d reads it, and take(w, s, c) -> w, s reads it, to mix it with c or to write w of it, and
# writes it (zbench.runtime.handlers.optimizer.RoundUpdate). What passes, and how often.
_OF_STATE: Mapping[str, tuple[tuple[int, float], ...]] = MappingProxyType({
    "contribute": ((_FIRST, 1 / 3), (_RESULT, 1)),
    "take": ((_SECOND, 2 / 3), (_THIRD, 1), (_RESULT, 1)),
})  # fmt: skip


class TermRows(NamedTuple):
    """The rows of a layout's formulas; offsets by formula.

    refs: int64 [rows, 5]: where the references of a term begin, and how many it has; where those begin that pass
    through memory, and how many they are; 1 where the term's own do as well. A formula's results come after its
    operands. kind: as above. each: bytes that pass through memory for an element. starts: kernels that start.
    """

    offsets: Ints
    refs: Ints
    kind: Ints
    each: Floats
    starts: Floats


class _Taken(NamedTuple):
    """The work that a function is in a formula. name: of what passes through memory, "" for what is read and written as
    it is. of: the references that do, `times` as often as the table has it; of those that sort, hidden states of rows.
    """

    kind: int
    name: str
    of: int
    times: float
    starts: int


def bytes_of_element(element_bytes: int, is_fused: bool, name: str) -> float:
    """Returns the bytes that elementwise work passes through memory for an element."""
    fused, eager = _PASSES[name]
    return fused * element_bytes if is_fused else eager


def term_rows(layout: StepLayout, model: Model) -> TermRows:
    """Returns the rows of all formulas of a layout."""
    return _rows_of(layout.form, model.element_bytes, model.kernels == "fused")


@lru_cache(maxsize=64)
def _rows_of(form: LayoutForm, element_bytes: int, is_fused: bool) -> TermRows:
    """Returns the rows of all formulas of layouts of a form."""
    offsets, rows = [0], list[tuple[float, ...]]()
    each = {"": float(element_bytes), **{name: bytes_of_element(element_bytes, is_fused, name) for name in _PASSES}}
    for begin, formula in zip(form.bound.offsets.tolist(), form.formulas, strict=False):
        at, results = begin, (begin + len(formula.operands), len(formula.results))
        for term in formula.terms:
            count = len(term.operands)
            for kind, name, of, times, starts in _taken(term.function, count == 1):
                passed = ((0, 0), (results[0], 1), (at, 1), (at + 1, 1), (at + 2, 1), results)[of]
                rows.append((at, count, *passed, of == _ALL, kind, times * each[name], starts))
            at += count
        rows += _added(formula, results[0], each["add"])
        offsets.append(len(rows))
    table = np.array(rows, np.float64).reshape(-1, 8)
    refs, kinds = table[:, :5].astype(np.int64), table[:, 5].astype(np.int64)
    return TermRows(np.array(offsets, np.int64), refs, kinds, table[:, 6].copy(), table[:, 7].copy())


def _added(formula: Formula, result: int, each: float) -> list[tuple[float, ...]]:
    """Returns rows for adding up the terms of a formula: passes through memory, and kernels."""
    more = len(formula.terms) - 1
    if not more:
        return []
    back = any(_parsed(term.function)[2] for term in formula.terms)
    starts = 2 * more if back else 1
    passes, none = (1 + back) * more * each, (0, 0, 0, 0, 0, PASSES)
    return [(0, 0, result, 1, 0, PASSES, passes, 0), (*none, 0.0, _STARTS * starts)]


@cache
def _parsed(function: str) -> tuple[str, str, str]:
    """Returns a function's name without counts, the name without its derivative, and which that is of, "" if none."""
    function = without_counts(function)
    derived = _DERIVATIVE.search(function)
    return (function, function[: derived.start()], derived[1]) if derived else (function, function, "")


@cache
def _taken(function: str, alone: bool) -> tuple[_Taken, ...]:
    """Returns what a function takes, () if nothing. alone: whether it has one operand."""
    if function in _OF_STATE:
        return tuple(_Taken(PASSES, "", of, times, int(at == 0)) for at, (of, times) in enumerate(_OF_STATE[function]))
    found = _work(function, alone)
    return () if found is None else (found,)


def _work(function: str, alone: bool) -> _Taken | None:
    """Returns what a function takes that is one work, None if nothing. alone: whether it has one operand."""
    function, name, derived = _parsed(function)
    if function in _FREE or (not name and alone):
        return None
    if function == "adam":
        return _Taken(UPDATE, "", _NONE, 0, 0)
    if function == _SHARES:
        return _Taken(PASSES, "enter", _SECOND, 1, _STARTS)
    if name == "score":
        return _Taken(SCORE_BACK if derived else SCORE, "", _NONE, 0, 0)
    if name in ("enter", "leave"):
        return _Taken(SORTING if function in _SORTED else MATMUL, name, _NONE, 1, _STARTS)
    if name in MATMULS:
        if name in _PASSES and function == name:
            return _Taken(MATMUL, name, _RESULT, 1, _STARTS)
        if name in _PASSES and derived == "0":
            return _Taken(MATMUL, name, _FIRST, 2, _STARTS)
        return _Taken(MATMUL, "", _NONE, 0, _STARTS)
    if name == "lookup":
        return _Taken(PASSES, name, _FIRST if derived else _RESULT, 1, 0)
    if name in _PASSES:
        times = 2 if derived else 1
        return _Taken(PASSES, name, _FIRST if derived else _RESULT, times, times * _STARTS)
    return _Taken(PASSES, "", _ALL, 1, 1)
