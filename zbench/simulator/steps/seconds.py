"""Seconds of the computes of a template, formula by formula.

Matmuls take the rate that zbench.cost.cost gives a layer's (with its curve over tokens, where a device has one),
elementwise work goes through memory, and kernels start. What a dense layer's formulas take together is
Cost.linear_seconds forward and twice that backward, and the head's without its norm Cost.head_seconds. A function that
is not in the table below reads its operands and writes its results once, in one kernel.

Matmuls of the experts of a GPU are one grouped matmul: a start for all, and each expert's rows at the rate that so many
rows have, where a device has a curve. Rows are brought into the experts' order before, and into that of the tokens,
weighed, after: a pass each, backward as well.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType

import numpy as np

from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.cost import OPTIMIZER_BYTES, Cost
from zbench.cost.loss import moved_bytes
from zbench.cost.matmul import matmul_seconds
from zbench.describe.arrays import Floats, Ints
from zbench.plans.plan import Plan
from zbench.simulator.steps.attends import attends_seconds
from zbench.simulator.steps.sizes import ComputeSizes, Sizes
from zbench.step.formula import Formula, Reference, Term
from zbench.step.layers import without_counts
from zbench.step.operations import COMPUTE

# Bytes of an element of the result that elementwise work passes through memory, as numbers of an element's bytes where
# it is fused, and absolute where it is not: Model.elementwise_bytes says of what they are the sum. Keys are half of kv.
_PASSES: Mapping[str, tuple[float, float]] = MappingProxyType({
    "norm": (2, 28), "turn": (2, 24), "turn_keys": (1, 12), "act": (3, 10), "add": (3, 6), "lookup": (2, 4),
    "enter": (2, 4), "leave": (2, 10),
})  # fmt: skip
MATMULS = ("", "turn", "turn_keys", "score", "weigh", "enter", "leave")  # functions that multiply with a parameter
_SORTED = ("enter", "leave", "enter_d0", "leave_d1")  # with which hidden states come into another order
_SHARES = "leave_d0"  # the gradient of shares: products with u of what leave_d1's matmul makes, by row
_STARTS = 2  # kernels of a formula: 20 of the 10 of a dense layer's forward beside attention (Cost.LAYER_KERNELS)
# Parts of other kernels: of attention's backward, the head's, norm_d0.
_FREE = ("row_sums", "lose", "regress", "norm_d1")
_HEAD_MATMULS = 3  # over which the loss's passes through memory are spread: logits, and both gradients
_DERIVATIVE = re.compile(r"_d(\d)$")


def compute_seconds(sizes: Sizes, plan: Plan | None, cost: Cost) -> Floats:
    """Returns the seconds of every compute of a template, float64 [operations]; 0 of others. plan: the micro-batch's,
    where there is attention.

    Raises:
        ValueError: a template has attention and no plan.
    """
    ops = sizes.template.operations
    found = np.zeros(len(ops))
    attends: list[tuple[Ints, bool]] = []
    computes = np.flatnonzero(ops.kind == COMPUTE)
    what = ops.what[computes]
    order = computes[np.argsort(what, kind="stable")]
    ends = [0, *np.cumsum(np.bincount(what, minlength=len(sizes.layout.formulas))).tolist()]
    for number in sizes.template.formulas:
        mine = order[ends[number] : ends[number + 1]]
        formula = sizes.layout.formulas[number]
        name = formula.terms[0].function
        if name in ("attend", "attend_d"):
            attends.append((mine, name == "attend_d"))
        elif len(mine):
            if name != "adam" and (ops.src[mine] >= cost.cluster.num_ranks).any():
                raise ValueError(f"a compute of {formula} is at a host memory; updates alone may be there")
            found[mine] = _Formula(sizes.of(formula, mine), formula, mine, cost).seconds()
    if attends and plan is None:
        raise ValueError(f"template {sizes.template.name} has attention; it takes the plan of its micro-batch")
    for mine, backward in attends:
        assert plan is not None
        found[mine] = attends_seconds(sizes, plan, mine, backward, cost)
    return found


@cache
def _parsed(function: str) -> tuple[str, str, str]:
    """Returns a function's name without counts, the name without its derivative, and which that is of, "" if none."""
    function = without_counts(function)
    derived = _DERIVATIVE.search(function)
    return (function, function[: derived.start()], derived[1]) if derived else (function, function, "")


@dataclass(frozen=True)
class _Formula:
    """Operations `mine` of a formula."""

    sizes: ComputeSizes
    formula: Formula
    mine: Ints
    cost: Cost

    def seconds(self) -> Floats:
        """Returns the seconds of each operation."""
        device, terms = self.cost.cluster.device, self.formula.terms
        back = any(_parsed(term.function)[2] for term in terms)
        found = sum((self._term(term) for term in terms), np.zeros(len(self.mine)))
        more = len(terms) - 1
        if more:
            found = found + (1 + back) * more * self._passes("add", self.formula.results[0])
            found += (_STARTS * (1 + back) * more if back else 0.0) * device.kernel_seconds
            if not back:
                found += _STARTS * device.kernel_seconds
        return np.asarray(found, np.float64)

    def _term(self, term: Term) -> Floats:
        device, none = self.cost.cluster.device, np.zeros(len(self.mine))
        function, name, derived = _parsed(term.function)
        starts = none + _STARTS * device.kernel_seconds
        if function in _FREE or (not name and len(term.operands) == 1):
            return none
        if function == "adam":
            weight = self.formula.results[0]
            return OPTIMIZER_BYTES * self._elements(self._parameter(weight), weight) / self._update_bandwidth()
        if function == _SHARES:
            return self._passes("enter", term.operands[1]) + starts
        if name in MATMULS:
            found = self._matmul(term, function)
            if name == "score":
                share = self.sizes.share(self._weight(term))
                size = moved_bytes(self.cost.model, self.sizes.tokens) * share
                return found + size / device.copy_bandwidth / _HEAD_MATMULS
            if name in ("enter", "leave"):
                return found + (self._sorting(name) if function in _SORTED else none) + starts
            if name in _PASSES and function == name:
                found = found + self._passes(name, self.formula.results[0])
            elif name in _PASSES and derived == "0":
                found = found + 2 * self._passes(name, term.operands[0])
            return found + starts
        if name in ("lookup",):
            return self._passes(name, term.operands[0] if derived else self.formula.results[0])
        if name in _PASSES:
            of = term.operands[0] if derived else self.formula.results[0]
            return (2 if derived else 1) * (self._passes(name, of) + starts)
        size = sum((self.sizes.bytes_of(one) for one in (*self.formula.results, *term.operands)), none)
        return self.sizes.meeting * size / device.copy_bandwidth + device.kernel_seconds

    def _update_bandwidth(self) -> Floats:
        """Returns the bytes/s with which each operation updates parameters: a GPU's, or that of a node's CPUs."""
        cluster, places = self.cost.cluster, self.sizes.of.template.operations.src[self.mine]
        hosts = places >= cluster.num_ranks
        if hosts.any() and cluster.host_adam_bandwidth is None:
            raise ValueError("cluster.host_adam_bandwidth is not given; updates in host memory take it")
        return np.where(hosts, cluster.host_adam_bandwidth or 1.0, cluster.device.copy_bandwidth)

    def _each(self, name: str) -> float:
        """Returns the bytes that elementwise work passes through memory for an element."""
        fused, eager = _PASSES[name]
        return fused * self.cost.model.element_bytes if self.cost.model.kernels == "fused" else eager

    def _sorting(self, name: str) -> Floats:
        """Returns the seconds in which hidden states of routed tokens come into another order."""
        elements = self.sizes.rows.sum(axis=1) * self.cost.model.hidden
        return np.asarray(self._each(name) * elements / self.cost.cluster.device.copy_bandwidth, np.float64)

    def _passes(self, name: str, ref: Reference) -> Floats:
        model, each = self.cost.model, self._each(name)
        elements = self.sizes.bytes_of(ref) / model.element_bytes
        meeting = self.sizes.meeting
        return np.asarray(each * elements * meeting / self.cost.cluster.device.copy_bandwidth, np.float64)

    def _weight(self, term: Term) -> Reference:
        """Returns the reference that a matmul's parameter, or its gradient, has in the formula."""
        for ref in (*term.operands, *self.formula.results):
            if not self.sizes.of.layout.of_batch(self.sizes.of.layout.number[ref.tensor]):
                return ref
        raise ValueError(f"formula {self.formula}: a product has no parameter, and no gradient of one")

    def _parameter(self, ref: Reference) -> str:
        """Returns the name of the parameter that a reference is of, or of whose gradient."""
        plain = ref.tensor.removeprefix("d")
        return plain if plain in self.sizes.of.layout.number else ref.tensor

    def _elements(self, name: str, ref: Reference) -> Floats:
        """Returns the elements of a parameter that a reference names."""
        size = self.sizes.of.whole(self.sizes.of.layout.number[name])
        return np.asarray(size / self.cost.model.element_bytes * self.sizes.share(ref))

    def _matmul(self, term: Term, function: str) -> Floats:
        """Returns the seconds of a matmul: of tokens with a parameter, or of tokens with tokens to a parameter's
        gradient."""
        device, model, weight = self.cost.cluster.device, self.cost.model, self._weight(term)
        rows = self.sizes.rows
        elements = self._elements(self._parameter(weight), weight)[:, None]
        if self.sizes.routed is not None:
            elements = elements / self.sizes.parts(weight)[:, None]
        curve = device.matmul_by_tokens.get(model.name)
        if curve is not None and not function.startswith("score"):
            return np.asarray((2 * rows * elements * curve.seconds(np.maximum(rows, 1))).sum(axis=1), np.float64)
        # A parameter has the hidden size on one side and what it is cut along on the other.
        hidden, other = np.full_like(elements, model.hidden), elements / model.hidden
        if weight in self.formula.results:
            matmul = matmul_seconds(device, hidden, other, rows, model.element_bytes).sum(axis=1)
            return np.asarray(self._added(elements) + matmul, np.float64)
        if function == "score" or not weight.slots or weight.slots[0] in self._result_slots():
            shape = rows, other, hidden
        else:
            shape = rows, hidden, other
        return np.asarray(matmul_seconds(device, *shape, model.element_bytes).sum(axis=1), np.float64)

    def _added(self, elements: Floats) -> Floats:
        """Returns the seconds in which a parameter's gradient is read and written once more by each of several
        operations of a GPU, as chunks of tokens are, but for the first."""
        places = self.sizes.of.template.operations.src[self.mine]
        first, every = np.empty(int(places.max(initial=0)) + 1, np.int64), np.arange(len(places))
        first[places[::-1]] = every[::-1]  # of several the last that is written stays
        again = np.where(first[places] == every, 0.0, 1.0)
        return np.asarray(2 * GRADIENT_BYTES * again * elements.sum(axis=1) / self.cost.cluster.device.copy_bandwidth)

    def _result_slots(self) -> set[str]:
        """Returns the slots that the formula's results have."""
        return {slot for ref in self.formula.results for slot in ref.slots}
