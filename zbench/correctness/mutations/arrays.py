"""Mutations of arrays as such, of plain values, of pipelines, and of a step's micro-batches. Pure: no torch.

Compiled loops trust types, lengths and offsets, so a verifier that looks too late dies of these.
"""

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np
from numpy.random import Generator

from zbench.correctness.mutations.paths import PATHS, WILD, Mutation, array, counts, other, put, put_at, with_pipelines
from zbench.correctness.mutations.tokens import with_lanes
from zbench.correctness.reference.judge import CorrectStep
from zbench.cost.cost import Cost
from zbench.describe.mask import FULL, Mask
from zbench.plans.pipelines import Pipelines
from zbench.plans.plan import WAITS, Plan

_PARTS = ("lengths", "sequences", "blocks", "lists", "lanes", "forward", "backward")


def length(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Makes one array shorter or longer, or empties it."""
    path = _path(rng, plan)
    values = array(plan, path)
    kind = rng.integers(4)
    if kind == 0:
        return put(plan, path, values[:-1].copy())
    if kind == 1:
        return put(plan, path, values[:0].copy())
    return put(plan, path, np.append(values, values[-1:] if kind == 2 and len(values) else 0))


def dtype(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Gives an array another type, the values being the same where it can hold them."""
    path = _path(rng, plan)
    kind = str(rng.choice(("int32", "uint64", "float64", "bool", "object", ">i8", "int8", "complex128")))
    return put(plan, path, array(plan, path).astype(kind))


def shape(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Gives an array a second dimension or none, strides or a mask, or puts something else in its place."""
    path = _path(rng, plan)
    values = array(plan, path)
    wide = np.stack([values, values], axis=1)
    shapes = (
        wide,
        values[None],
        np.int64(0),
        values.tolist(),
        None,
        wide[:, 0],
        values[::-1],
        np.ma.masked_less(values, 1),
    )
    return put(plan, path, shapes[rng.integers(len(shapes))])


def offsets(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Breaks the offsets of the lists of blocks or of lanes, or what they have in common with the items."""
    name = str(rng.choice(("lists", "lanes")))
    plan = with_lanes(rng, plan, cost) if name == "lanes" else plan
    lists = getattr(plan, name)
    count, total = len(lists.offsets), len(lists.items)
    kind = rng.integers(6)
    if kind == 0:
        return put(plan, f"{name}.offsets", lists.offsets + 1)
    if kind == 1:
        return put(plan, f"{name}.offsets", lists.offsets[1:].copy())
    if kind == 2:
        return put(plan, f"{name}.items", lists.items[:-1].copy())
    if kind == 3:
        return put(plan, f"{name}.offsets", lists.offsets[::-1].copy())
    at = int(rng.integers(count))
    value = int(rng.integers(total + 1)) if kind == 4 else int(rng.choice((*WILD, total + 1)))
    return put_at(plan, f"{name}.offsets", at, value)


def part(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Puts something else in the place of one of the plan's parts."""
    name = str(rng.choice(_PARTS))
    kinds: tuple[object, ...] = (None, plan, plan.lists, plan.blocks, plan.forward, plan.lengths, [])
    return plan.with_(**{name: kinds[rng.integers(len(kinds))]})


_OTHERS: Mapping[str, tuple[object, ...]] = MappingProxyType(
    {
        "mask": (FULL, Mask(window=1), Mask(window=3), None, "causal"),
        "backward_mode": ("", "kept", "Keep", None, 1, np.array(["keep", "x"])),
        **dict.fromkeys(WAITS, (True, 1, 0, None, "serial")),
        "padding": (None, 1, [], np.zeros(1, np.int32), np.ones(1, np.int64), np.full(2, -1, np.int64)),
        "attention": (None, 1, ("deepspeed",)),
        "notes": (None, [], {"gap": float("nan")}, {1: "one"}, {"gap": np.zeros(1)}, {"gap": None}, {"gap": 10**400}),
    }
)


def value(name: str) -> Mutation:
    """Changes one of the plan's plain values."""

    def change(rng: Generator, plan: Plan, cost: Cost) -> Plan:
        others = _OTHERS.get(name) or _numbers(getattr(plan, name))
        return plan.with_(**{name: others[rng.integers(len(others))]})

    return change


def _numbers(old: int) -> tuple[object, ...]:
    """Lists what a number of ranks or heads may become."""
    return (old + 1, old - 1, 2 * old, 0, -old, 2**62, 10**400, float(old), np.int32(old), None, True)


def pipeline_entry(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Changes a pipeline's first rank, or its numbers of ranks; a plan without any gets some first."""
    plan = with_pipelines(plan)
    name = str(rng.choice(("lead", "tp", "pp")))
    old = array(plan, f"pipelines.{name}")
    at = int(rng.integers(len(old)))
    return put_at(plan, f"pipelines.{name}", at, other(rng, int(old[at]), counts(plan)[name]))


def pipeline_rows(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Gives the plan other pipelines: none, one twice, one less, other shapes, or all ranks in one."""
    given = with_pipelines(plan).pipelines
    assert given is not None
    count, kind = len(given), rng.integers(5)
    if kind == 0:
        return plan.with_(pipelines=None if plan.pipelines is not None else given)
    index = np.arange(count)
    if kind == 1:
        index = np.insert(index, rng.integers(count), rng.integers(count))
    elif kind == 2:
        index = np.delete(index, rng.integers(count))
    rows = Pipelines(given.lead[index], given.tp[index], given.pp[index])
    if kind == 3:
        rows = replace(rows, tp=rows.pp, pp=rows.tp)
    if kind == 4:
        rows = Pipelines(*(np.array([number], np.int64) for number in (0, plan.num_ranks, 1)))
    return plan.with_(pipelines=rows)


def micro_batches(rng: Generator, case: CorrectStep) -> tuple[Plan, ...]:
    """Leaves out a micro-batch, has one twice or in another order, or gives one other sequences than it has."""
    plans, kind = list(case.plans), rng.integers(5)
    at = int(rng.integers(len(plans)))
    if kind == 0:
        del plans[at]
    elif kind == 1:
        plans.insert(at, plans[at])
    elif kind == 2:
        plans = plans[::-1]
    elif kind == 3:
        plans[at] = plans[at].with_(sequences=rng.permutation(plans[at].sequences))
    else:
        lengths = case.batch.lengths[::-1][plans[at].sequences].copy()
        plans[at] = plans[at].with_(lengths=lengths)
    return tuple(plans)


def _path(rng: Generator, plan: Plan) -> str:
    paths = [path for path in PATHS if plan.pipelines is not None or not path.startswith("pipelines")]
    return str(rng.choice(paths))
