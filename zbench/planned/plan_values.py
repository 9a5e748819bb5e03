"""A plan as plain values (numbers, text, lists and mappings), and back: what a plan file has of each plan. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.mask import Mask
from zbench.describe.units import with_noun
from zbench.plans.pipelines import Pipelines
from zbench.plans.plan import COLUMNS, Blocks, Lists, Ops, Plan
from zbench.proof.array_rules import array_fault
from zbench.proof.verify import PlanError

BLOCKS = ("seq", "start", "stop", "block", "home")
LISTS = ("offsets", "items")
PIPELINES = ("lead", "tp", "pp")
_TABLES = {"blocks": BLOCKS, "lists": LISTS, "lanes": LISTS, "forward": COLUMNS, "backward": COLUMNS}
_PLAIN = {
    "num_ranks": int,
    "num_heads": int,
    "mask": str,
    "backward_mode": str,
    "serial_legs": bool,
    "attention": str,
    "notes": dict,
}
KEYS = (*_PLAIN, "lengths", "sequences", *_TABLES, "pipelines")
# Written where they are not as usual, so that older versions read all other plans.
ALSO = {"in_rounds": bool, "until_sent": bool, "padding": list}


def plan_values(plan: Plan) -> dict[str, Any]:
    """Returns the values of a plan, by the names of its fields; columns are lists of whole numbers.

    Raises:
        zbench.proof.verify.PlanError: its arrays or its plain values are not as they have to be.
    """
    if fault := array_fault(plan):
        raise PlanError(fault)
    values: dict[str, Any] = {
        "num_ranks": int(plan.num_ranks),
        "num_heads": int(plan.num_heads),
        "mask": str(plan.mask),
        "backward_mode": plan.backward_mode,
        "serial_legs": plan.serial_legs,
        "attention": plan.attention,
        "notes": dict(plan.notes),
        "lengths": plan.lengths.tolist(),
        "sequences": plan.sequences.tolist(),
    }
    values |= {name: True for name, kind in ALSO.items() if kind is bool and getattr(plan, name)}
    values |= {} if plan.padding is None else {"padding": plan.padding.tolist()}
    values |= {name: _columns(getattr(plan, name), columns) for name, columns in _TABLES.items()}
    return values | {"pipelines": None if plan.pipelines is None else _columns(plan.pipelines, PIPELINES)}


def plan_of(values: Any, where: str) -> Plan:
    """Returns the plan that `plan_values` wrote; whether it is correct is for zbench.proof.verify to say.

    where: its place in the file, for messages.

    Raises:
        ValueError: something is missing, or of another type than it has to be.
    """
    check_plan_keys(values, KEYS, where, tuple(ALSO))
    kinds = {**_PLAIN, **{name: kind for name, kind in ALSO.items() if kind is bool and name in values}}
    plain = {name: _plain(values[name], kind, f"{where}.{name}") for name, kind in kinds.items()}
    tables = {
        name: {column: ints(part, f"{where}.{name}.{column}") for column, part in _table(values, name, columns, where)}
        for name, columns in _TABLES.items()
    }
    pipelines = None
    if values["pipelines"] is not None:
        found = _table(values, "pipelines", PIPELINES, where)
        pipelines = Pipelines(**{name: ints(part, f"{where}.pipelines.{name}") for name, part in found})
    return Plan(
        **{**plain, "mask": Mask.of(plain["mask"])},
        lengths=ints(values["lengths"], f"{where}.lengths"),
        sequences=ints(values["sequences"], f"{where}.sequences"),
        blocks=Blocks(**tables["blocks"]),
        lists=Lists(**tables["lists"]),
        lanes=Lists(**tables["lanes"]),
        forward=Ops(**tables["forward"]),
        backward=Ops(**tables["backward"]),
        pipelines=pipelines,
        padding=ints(values["padding"], f"{where}.padding") if "padding" in values else None,
    )


def check_plan_keys(values: Any, keys: Sequence[str], where: str, also: Sequence[str] = ()) -> None:
    """Refuses what is no mapping with exactly these keys. also: keys that may be there.

    Raises:
        ValueError: the message names the place and the key.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{where} is {shown(values)}; it has to be an object with {', '.join(keys)}")
    for key in keys:
        if key not in values:
            raise ValueError(f"{where} has no {key}; it has to have {', '.join(keys)}")
    for key in values:
        if key not in keys and key not in also:
            raise ValueError(f"{where} has {shown(key)}, which this version does not know; it has {', '.join(keys)}")


def ints(values: Any, where: str) -> Ints:
    """Returns a list of whole numbers as int64 [n].

    Raises:
        ValueError: it is none, or a number has more than 64 bits.
    """
    if not isinstance(values, list) or not set(map(type, values)) <= {int}:
        raise ValueError(f"{where} is {shown(values)}; it has to be a list of whole numbers")
    try:
        return np.array(values, np.int64)
    except OverflowError:
        raise ValueError(f"{where} has a number that does not fit in 64 bits") from None


def shown(value: Any) -> str:
    """Returns a value as a sentence may have it: lists and mappings of a file may be long."""
    if isinstance(value, list):
        odd = next((one for one in value if type(one) is not int), None)
        return f"a list with {odd!r:.40}" if odd is not None else f"a list of {with_noun(len(value), 'number')}"
    return "an object" if isinstance(value, Mapping) else f"{value!r:.60}"


def _columns(table: Any, names: Sequence[str]) -> dict[str, list[int]]:
    return {name: getattr(table, name).tolist() for name in names}


def _table(values: Any, name: str, columns: Sequence[str], where: str) -> Sequence[tuple[str, Any]]:
    check_plan_keys(values[name], columns, f"{where}.{name}")
    return [(column, values[name][column]) for column in columns]


def _plain(value: Any, kind: type, where: str) -> Any:
    if type(value) is not kind:
        words = {int: "a whole number", str: "text", bool: "true or false", dict: "an object of numbers and words"}
        raise ValueError(f"{where} is {shown(value)}; it has to be {words[kind]}")
    return value
