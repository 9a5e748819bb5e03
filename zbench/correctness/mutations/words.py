"""Names in words what a mutation has changed. Pure: no torch."""

from collections.abc import Sequence

import numpy as np

from zbench.correctness.mutations.paths import PATHS, array
from zbench.plans.columns import is_array
from zbench.plans.plan import WAITS, Plan

_PLAIN = ("num_ranks", "num_heads", "mask", "backward_mode", *WAITS, "padding", "attention", "notes")


def changes(before: Sequence[Plan], after: Sequence[Plan], most: int = 4) -> str:
    """Names the first few changes of each plan, such as "plan.forward.via[3]: 0 becomes -7"; "none" without any."""
    if len(before) != len(after):
        return f"{len(before)} micro-batches become {len(after)}"
    found = [
        (f"micro-batch {at}: " if len(before) > 1 else "") + one
        for at, pair in enumerate(zip(before, after, strict=True))
        for one in _changed(*pair)
    ]
    return "; ".join(found[:most]) + ("; ..." if len(found) > most else "") if found else "none"


def _changed(before: Plan, after: Plan) -> list[str]:
    found = []
    for name in _PLAIN:
        old, new = getattr(before, name), getattr(after, name)
        if old is not new and repr(old) != repr(new):
            found.append(f"plan.{name}: {old!r} becomes {new!r}")
    for path in PATHS:
        if path.startswith("pipelines") and (before.pipelines is None or after.pipelines is None):
            if path.endswith("lead") and before.pipelines is not after.pipelines:
                found.append(f"plan.pipelines: {before.pipelines} becomes {after.pipelines}")
            continue
        old, new = array(before, path), _array(after, path)
        if is_array(new) and new.shape == old.shape and new.dtype == old.dtype:
            found += [
                f"plan.{path}[{at}]: {old[at]} becomes {new[at]}" for at in np.flatnonzero(old != new)[:3].tolist()
            ]
            if not found and new.strides != old.strides:
                found.append(f"plan.{path}: strides {old.strides} become {new.strides}")
        else:
            found.append(f"plan.{path}: {_form(old)} becomes {_form(new)}")
    return found


def _array(plan: Plan, path: str) -> object:
    try:
        return array(plan, path)
    except AttributeError:
        return "nothing"


def _form(value: object) -> str:
    return f"{value.dtype} {value.shape}" if is_array(value) else f"{type(value).__name__}"
