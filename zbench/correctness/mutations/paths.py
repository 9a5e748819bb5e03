"""Arrays of a plan by their paths, such as "forward.via", and values to put into them. Pure: no torch."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.random import Generator

from zbench.cost.cost import Cost
from zbench.plans.pipelines import Pipelines
from zbench.plans.plan import COLUMNS, Plan

Mutation = Callable[[Generator, Plan, Cost], Plan]
OPERATIONS = ("forward", "backward")
PATHS = (
    "lengths",
    "sequences",
    *(f"blocks.{name}" for name in ("seq", "start", "stop", "block", "home")),
    *(f"{part}.{name}" for part in ("lists", "lanes") for name in ("offsets", "items")),
    *(f"{part}.{name}" for part in OPERATIONS for name in COLUMNS),
    *(f"pipelines.{name}" for name in ("lead", "tp", "pp")),
)
# Values that mean nothing anywhere; the largest make sums and products leave 64 bits.
WILD = (-1, -2, -7, 10**9, -(10**9), 2**31, 2**62, -(2**62), 2**63 - 1, -(2**63))


def array(plan: Plan, path: str) -> Any:
    """Returns the array at a path."""
    value: Any = plan
    for name in path.split("."):
        value = getattr(value, name)
    return value


def put(plan: Plan, path: str, value: object) -> Plan:
    """Returns the plan with `value` at a path instead of its array."""
    part, _, name = path.partition(".")
    return plan.with_(**{part: replace(getattr(plan, part), **{name: value}) if name else value})


def put_at(plan: Plan, path: str, at: int, value: int) -> Plan:
    """Returns the plan with one entry of an array changed."""
    values = array(plan, path).astype(np.int64)  # which holds more than a column of operations may
    values[at] = value
    return put(plan, path, values)


def other(rng: Generator, old: int, count: int) -> int:
    """Draws a value unlike `old`: mostly one below `count`, or a neighbour; sometimes the edge, or a wild one."""
    while True:
        kind = rng.random()
        if kind < 0.5 and count > 1:
            value = int(rng.integers(count))
        elif kind < 0.7:
            value = min(max(old + int(rng.choice((-1, 1))), -(2**63)), 2**63 - 1)
        else:
            value = (count, count + 1, *WILD)[rng.integers(len(WILD) + 2)]
        if value != old:
            return value


def counts(plan: Plan) -> dict[str, int]:
    """Tells how many values, from 0 on, the entries of a column may have, by its name."""
    ranks, heads, lists, blocks = plan.num_ranks, plan.num_heads, len(plan.lists), len(plan.blocks)
    tokens = int(plan.lengths.max()) + 1
    return {
        "lengths": tokens,
        "sequences": len(plan.sequences),
        "seq": len(plan.lengths),
        "start": tokens,
        "stop": tokens,
        "block": blocks,
        "home": ranks,
        "kind": 2,
        "tensor": 6,
        "src": ranks,
        "dst": ranks,
        "head_lo": heads,
        "head_hi": heads + 1,
        "blocks": lists,
        "kv_blocks": lists,
        "via": max(len(plan.lanes), 1),
        "keep": 2,
        "collective": 2,
        "lead": ranks,
        "tp": ranks + 1,
        "pp": ranks + 1,
    }


def entry(path: str) -> Mutation:
    """Changes one entry of the array at a path."""

    def change(rng: Generator, plan: Plan, cost: Cost) -> Plan:
        old = array(plan, path)
        if not len(old):
            return put(plan, path, np.zeros(1, np.int64))
        at = int(rng.integers(len(old)))
        return put_at(plan, path, at, other(rng, int(old[at]), counts(plan)[path.rpartition(".")[2]]))

    return change


def with_pipelines(plan: Plan) -> Plan:
    """Returns the plan with every rank a pipeline by itself, if it has none."""
    ones = np.ones(plan.num_ranks, np.int64)
    alone = Pipelines(np.arange(plan.num_ranks, dtype=np.int64), ones, ones)
    return plan if plan.pipelines is not None else plan.with_(pipelines=alone)
