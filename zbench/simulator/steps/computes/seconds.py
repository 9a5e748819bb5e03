"""Seconds of the computes of templates, all of a layout's together.

Matmuls take the rate that zbench.cost.cost gives a layer's (with its curve over tokens, where a device has one),
elementwise work goes through memory, and kernels start. What a dense layer's formulas take together is
Cost.linear_seconds forward and twice that backward, and the head's without its norm Cost.head_seconds. A function that
zbench.simulator.steps.computes.terms does not name reads its operands and writes its results once, in one kernel.

Matmuls of the experts of a GPU are one grouped matmul: a start for all, and each expert's rows at the rate that so many
rows have, where a device has a curve. Rows are brought into the experts' order before, and into that of the tokens,
weighed, after: a pass each, backward as well.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from zbench.cost.collective import GRADIENT_BYTES
from zbench.cost.cost import OPTIMIZER_BYTES, Cost
from zbench.cost.loss import moved_bytes
from zbench.cost.matmul import matmul_seconds
from zbench.describe.arrays import Flags, Floats, Ints
from zbench.plans.plan import Plan
from zbench.simulator.steps.computes.attends import AttendSeconds
from zbench.simulator.steps.computes.sizes import Sizes
from zbench.simulator.steps.computes.terms import (
    MATMUL,
    SCORE,
    SCORE_BACK,
    SORTING,
    UPDATE,
    TermRows,
    term_rows,
)
from zbench.simulator.steps.computes.works import GRADIENT, STRAIGHT, Works, works
from zbench.step.formula import Formula
from zbench.step.operations import COMPUTE

_OF_CPUS = ("adam", "attend", "attend_d", "contribute", "outer", "take")  # functions that may be at a host memory
_HEAD_MATMULS = 3  # over which the loss's passes through memory are spread: logits, and both gradients


def compute_seconds(sizes: Sizes, plan: Plan | None, cost: Cost, num_hosts: int = 0) -> Floats:
    """Returns the seconds of every compute of templates, float64 [operations], those of one template after another; 0
    of others. plan: the micro-batch's, where there is attention. num_hosts: host memories of the step: where these are
    GPUs' parts of a node's, each has a share of its CPUs.

    Raises:
        ValueError: a template has attention and no plan, or something else than an update is at a host memory.
    """
    layout, ops = sizes.layout, sizes.ops
    hosts = ops[(ops[:, 0] == COMPUTE) & (ops[:, 2] >= cost.cluster.num_ranks), 1]
    wrong = [number for number in np.unique(hosts).tolist() if not _is_of_cpus(layout.formulas[number])]
    if wrong:
        raise ValueError(f"a compute of {layout.formulas[wrong[0]]} is at a host memory; updates alone may be there")
    if len(hosts) and cost.cluster.host_adam_bandwidth is None:
        raise ValueError("cluster.host_adam_bandwidth is not given; updates in host memory take it")
    terms = term_rows(layout, cost.model)
    done = works(ops, sizes.begin, terms, sizes.named, sizes.counted, cost.model.element_bytes)
    found = np.zeros(len(ops))
    for which, rows in _by_rows(sizes, done):
        part = done if which is None else done.take(which)
        seconds = _Terms(sizes, terms, part, rows, cost, max(num_hosts // cost.cluster.num_nodes, 1)).seconds()
        found += np.bincount(part.op, weights=seconds, minlength=len(ops))
    if plan is not None:
        AttendSeconds(sizes, plan, cost).put(found)
    elif sizes.attends:
        raise ValueError(f"template {sizes.attends[0][0].name} has attention; it takes the plan of its micro-batch")
    return found


def _is_of_cpus(formula: Formula) -> bool:
    """Returns whether a formula may be computed at a host memory: an update, of a round's end too, or a copy."""
    (one, *more) = formula.terms
    return one.function in _OF_CPUS or (not one.function and len(one.operands) == 1 and not more)


def _by_rows(sizes: Sizes, of: Works) -> Iterator[tuple[Ints | None, Floats]]:
    """Yields works with the tokens that each has of every part of what its rows go to (of every expert), float64 [n,
    parts]; of those whose rows are in no such parts, all together, in one column. None: all of them."""
    plain = (of.tokens * of.meeting)[:, None]
    if not sizes.counted.routed.any():
        yield None, plain
        return
    formula = sizes.ops[of.op, 1]
    mine = np.flatnonzero(~sizes.counted.routed[formula])
    yield mine, plain[mine]
    for number in np.flatnonzero(sizes.counted.routed).tolist():
        mine = np.flatnonzero(formula == number)
        if len(mine):
            computes = np.flatnonzero(sizes.is_of(number))
            yield mine, sizes.of(sizes.layout.formulas[number], computes).rows[np.searchsorted(computes, of.op[mine])]


@dataclass(frozen=True)
class _Terms:
    """Works whose tokens are in as many parts, rows: float64 [n, parts]. hosts: host memories of a node."""

    sizes: Sizes
    terms: TermRows
    of: Works
    rows: Floats
    cost: Cost
    hosts: int

    def seconds(self) -> Floats:
        """Returns the seconds of each of them."""
        device, model, of = self.cost.cluster.device, self.cost.model, self.of
        kind, each = self.terms.kind[of.row], self.terms.each[of.row]
        found = np.zeros(len(of.op))
        matmuls = np.flatnonzero(kind >= MATMUL)
        if len(matmuls):
            found[matmuls] = self._matmuls(matmuls, kind[matmuls])
        scores = np.flatnonzero((kind == SCORE) | (kind == SCORE_BACK))
        if len(scores):
            size = moved_bytes(model, of.tokens[scores]) * of.share[scores]
            found[scores] += size / device.copy_bandwidth / _HEAD_MATMULS
        sorting = np.flatnonzero(kind == SORTING)
        if len(sorting):
            elements = self.rows[sorting].sum(axis=1) * model.hidden
            found[sorting] += each[sorting] * elements / device.copy_bandwidth
        passing, is_at_host = self._bandwidth(of.op)
        found += each * (of.passed / model.element_bytes) * of.meeting / passing
        found += np.where(is_at_host, 0, self.terms.starts[of.row] * device.kernel_seconds)
        updates = np.flatnonzero(kind == UPDATE)
        if len(updates):
            found[updates] = OPTIMIZER_BYTES * of.elements[updates] / passing[updates]
        return found

    def _bandwidth(self, ops: Ints) -> tuple[Floats, Flags]:
        """Returns the bytes/s with which operations pass through memory, a GPU's or that at which a host memory's CPUs
        update parameters, and whether they are at a host memory, which starts no kernels."""
        cluster = self.cost.cluster
        hosts = self.sizes.ops[ops, 2] >= cluster.num_ranks
        rate = (cluster.host_adam_bandwidth or 1.0) / self.hosts
        return np.where(hosts, rate, cluster.device.copy_bandwidth), hosts

    def _matmuls(self, mine: Ints, kind: Ints) -> Floats:
        """Returns the seconds of matmuls: of tokens with a parameter, or of tokens with tokens to a parameter's
        gradient."""
        of, device, model = self.of, self.cost.cluster.device, self.cost.model
        none = mine[of.share[mine] < 0]
        if len(none):
            formula = self.sizes.layout.formulas[int(self.sizes.ops[of.op[none[0]], 1])]
            raise ValueError(f"formula {formula}: a product has no parameter, and no gradient of one")
        rows, elements = self.rows[mine], of.elements[mine][:, None]
        curve = device.matmul_by_tokens.get(model.name)
        if curve is None:
            return self._by_shape(rows, elements, mine)
        found = np.asarray((2 * rows * elements * curve.seconds(np.maximum(rows, 1))).sum(axis=1), np.float64)
        scores = np.flatnonzero((kind == SCORE) | (kind == SCORE_BACK))
        if len(scores):
            found[scores] = self._by_shape(rows[scores], elements[scores], mine[scores])
        return found

    def _by_shape(self, rows: Floats, elements: Floats, mine: Ints) -> Floats:
        """Returns the seconds of matmuls by what each multiplies. elements: of parameters, [n, 1]."""
        device, model = self.cost.cluster.device, self.cost.model
        # A parameter has the hidden size on one side and what it is cut along on the other.
        hidden, other = np.full_like(elements, model.hidden), elements / model.hidden
        gradient, straight = ((self.of.shape[mine] == one)[:, None] for one in (GRADIENT, STRAIGHT))
        height, width = np.where(gradient, hidden, rows), np.where(straight, hidden, other)
        inner = np.where(gradient, rows, np.where(straight, other, hidden))
        found = matmul_seconds(device, height, width, inner, model.element_bytes).sum(axis=1)
        # What adds to a gradient that is there already reads and writes it once more, as chunks of tokens do.
        again = np.where(self.of.again[mine] & gradient[:, 0], 1.0, 0.0)
        more = 2 * GRADIENT_BYTES * again * elements.sum(axis=1) / device.copy_bandwidth
        return np.asarray(more + found, np.float64)
