"""Breaks steps on purpose: one operation of one template is changed, in every layer that plays it."""

from dataclasses import replace

import numpy as np

from zbench.step.operations import COLUMN_NAMES, COMPUTE, DROP, GATHER, QUEUES, REDUCE, Operations
from zbench.step.template import Step

KINDS = (
    "delete",
    "repeat",
    "swap",
    "move",
    "source",
    "destination",
    "list",
    "layer",
    "formula",
    "tensor",
    "kind",
    "version",
    "queue",
    "order",
)
_AT = {name: at for at, name in enumerate(COLUMN_NAMES)}


def step_mutant(step: Step, kind: str, rng: np.random.Generator) -> Step | None:
    """Returns a step with one change of a kind, or None where the operation that was drawn has nothing like it."""
    filled = [at for at, template in enumerate(step.templates) if len(template.operations)]
    which = int(rng.choice(filled))
    rows = step.templates[which].operations.table
    at = int(rng.integers(len(rows)))
    changed = _changed(step, which, rows, at, kind, rng)
    if changed is None or (changed.shape == rows.shape and (changed == rows).all()):
        return None
    template = replace(step.templates[which], operations=Operations.of(changed.tolist()))
    return replace(step, templates=(*step.templates[:which], template, *step.templates[which + 1 :]))


def _changed(
    step: Step, which: int, rows: np.ndarray, at: int, kind: str, rng: np.random.Generator
) -> np.ndarray | None:
    """Returns the rows with the change, None if there is nothing to change."""
    layout, row = step.layouts[step.templates[which].layout], rows[at].copy()
    collective, alone = row[0] in (GATHER, REDUCE), row[0] in (COMPUTE, DROP)
    if kind == "delete":
        return np.delete(rows, at, axis=0)
    if kind in ("repeat", "move", "swap"):
        other = int(rng.integers(len(rows)))
        if kind == "repeat":
            return np.insert(rows, other, row, axis=0)
        if kind == "move":
            return np.insert(np.delete(rows, at, axis=0), min(other, len(rows) - 1), row, axis=0)
        return _swapped(rows, at, other)
    if kind == "order":  # with what follows it in its place's queue
        queues = rows[:, [_AT["queue"], _AT["src"]]]
        after = at + 1 + np.flatnonzero((queues[at + 1 :] == queues[at]).all(axis=1))
        return _swapped(rows, at, int(after[0])) if len(after) else None
    made = step.templates[which].formulas
    places = [number for number in range(len(layout.lists)) if layout.lists.index_of(number) == "place"]
    if kind == "source" and not collective:
        row[_AT["src"]] = rng.integers(step.num_places)
    elif kind == "destination" and not alone:
        row[_AT["dst"]] = rng.choice(places) if collective else rng.integers(step.num_places)
    elif kind == "list":
        used = np.flatnonzero(row[4:7] >= 0)
        if not len(used):
            return None
        column = 4 + int(rng.choice(used))
        owner = layout.lists.of[row[column]]
        same = np.flatnonzero(layout.lists.of == owner) if rng.random() < 0.8 else np.arange(len(layout.lists))
        row[column] = rng.choice(same)
    elif kind == "layer" and row[0] != COMPUTE:
        row[_AT["layer"]] += rng.choice((-1, 1))
    elif kind == "queue" and row[0] != DROP:
        row[_AT["queue"]] = rng.choice(wrong_queues(step, row))
    elif kind == "version":
        row[_AT["version"]] += rng.choice((-1, 1))
    elif kind == "formula" and row[0] == COMPUTE:
        slots = layout.formulas[row[_AT["what"]]].slots
        row[_AT["what"]] = rng.choice([one for one in made if layout.formulas[one].slots == slots])
    elif kind == "tensor" and row[0] != COMPUTE:
        axes = layout.tensors[row[_AT["what"]]].axes
        row[_AT["what"]] = rng.choice([at for at, one in enumerate(layout.tensors) if one.axes == axes])
    elif kind == "kind" and row[0] != COMPUTE:
        row[_AT["kind"]] = rng.integers(1, 6)
    else:
        return None
    changed = rows.copy()
    changed[at] = row
    return changed


def wrong_queues(step: Step, row: np.ndarray) -> list[int]:
    """Returns the queues that do not serve an operation's kind. row: its columns; it drops nothing."""
    at_host = row[0] not in (COMPUTE, GATHER, REDUCE) and max(row[_AT["src"]], row[_AT["dst"]]) >= step.num_gpus
    right = {"compute"} if row[0] == COMPUTE else {"host"} if at_host else {*QUEUES} - {"compute", "host"}
    return [number for number, name in enumerate(QUEUES) if name not in right]


def _swapped(rows: np.ndarray, one: int, other: int) -> np.ndarray:
    """Returns the rows with two of them in each other's place."""
    order = np.arange(len(rows))
    order[[one, other]] = order[[other, one]]
    return np.asarray(rows[order])
