"""The rules of a step's order: each instance finds what its contract needs, and nothing else of what it touches.

A contract's items of one tensor and layer are a group, and a group is compared as a whole, by its digest: so a step of
many layers costs its contracts once, and a few comparisons an instance.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE
from zbench.step.proof.sentences import item_name
from zbench.step.proof.tables import ItemRows, item_rows, walk_tables
from zbench.step.template import COMPLETE, Instance, Items, Step, Template

Key = tuple[str, int, int]  # tensor, layer, micro-batch (-1: of the step)


@dataclass(frozen=True)
class _Group:
    """All there is of a tensor of a layer. table: int64 [items, 5]: place, cell, count, version, hops; versions from
    `version` on."""

    digest: bytes
    version: int
    table: Ints


@dataclass(frozen=True)
class _Contract:
    """A template's contract by (tensor, layer offset). used: all (tensor, offset) that it needs, touches or leaves;
    computed: those that formulas touch."""

    needs: dict[tuple[int, int], _Group]
    leaves: dict[tuple[int, int], _Group]
    used: tuple[tuple[int, int], ...]
    computed: frozenset[tuple[int, int]]


def order_fault(step: Step, counts: list[tuple[Ints, ...]]) -> str:
    """Returns the first rule that the order of instances breaks, "" if none."""
    if fault := _computed_fault(step):
        return fault
    contracts = [_contract(step, template, counts[template.layout]) for template in step.templates]
    there: dict[Key, tuple[bytes, int, Ints]] = {}
    for key, group in _of_every_layer(step, step.begins, counts[0]):
        there[key] = (group.digest, group.version, group.table)
    for number, one in enumerate(step.order):
        if not 0 <= one.template < len(step.templates):
            return f"instance {number} is of template {one.template}; there are {len(step.templates)}"
        template = step.templates[one.template]
        for layer in one.layers:
            if word := _play(step, template, contracts[one.template], one, layer, there):
                return f"instance {number} (template {template.name}, layer {layer}) {word}"
    wanted = dict(_of_every_layer(step, step.ends, counts[0]))
    for key in sorted(there.keys() | wanted.keys()):
        have, want = there.get(key), wanted.get(key)
        if have is None or want is None or (have[0], have[1]) != (want.digest, want.version):
            word = _difference(step, step.layouts[0], key, have, want, 0)
            return f"at the end of the step {word}" if want is not None else f"the step ends with {_named(key)} left"
    return ""


def _play(
    step: Step,
    template: Template,
    contract: _Contract,
    one: Instance,
    layer: int,
    there: dict[Key, tuple[bytes, int, Ints]],
) -> str:
    """Plays one instance on what is there; returns what is wrong, "" if nothing."""
    layout = step.layouts[template.layout]
    for tensor, offset in contract.computed:
        if not layout.tensors[tensor].exists(_layer(layout, tensor, layer + offset), step.num_layers):
            return f"computes with {layout.tensors[tensor].name} of layer {layer + offset}, which there is not"
    for tensor, offset in contract.used:
        key = _key(template.layout, layout, tensor, layer + offset)
        if not layout.tensors[tensor].exists(key[1], step.num_layers):
            continue
        want, have = contract.needs.get((tensor, offset)), there.pop(key, None)
        if want is None and have is None:
            continue
        if want is None or have is None or (have[0], have[1]) != (want.digest, want.version + one.version):
            return _difference(step, layout, key, have, want, one.version)
    for (tensor, offset), group in contract.leaves.items():
        key = _key(template.layout, layout, tensor, layer + offset)
        if layout.tensors[tensor].exists(key[1], step.num_layers):
            there[key] = (group.digest, group.version + one.version, group.table)
    return ""


def _layer(layout: StepLayout, tensor: int, layer: int) -> int:
    return 0 if layout.tensors[tensor].layers == "none" else layer


def _key(micro_batch: int, layout: StepLayout, tensor: int, layer: int) -> Key:
    return layout.tensors[tensor].name, _layer(layout, tensor, layer), micro_batch if layout.of_batch(tensor) else -1


def _named(key: Key) -> str:
    return f"{key[0]} of layer {key[1]}{f', micro-batch {key[2]}' if key[2] >= 0 else ''}"


def _difference(
    step: Step, layout: StepLayout, key: Key, have: tuple[bytes, int, Ints] | None, want: _Group | None, version: int
) -> str:
    """Says how what is there of a tensor and layer differs from what is needed."""
    if want is None:
        return f"touches {_named(key)} and does not need it, but it is there"
    if have is None:
        return f"needs {_named(key)}, and nothing of it is there"
    mine, theirs = want.table.copy(), have[2].copy()
    mine[:, 3] += want.version + version
    theirs[:, 3] += have[1]
    first, second = ({(int(row[0]), int(row[1])): row[2:].tolist() for row in table} for table in (mine, theirs))
    for place, cell in sorted(first.keys() | second.keys()):
        a, b = first.get((place, cell)), second.get((place, cell))
        if a != b:
            tensor = layout.number[key[0]]
            what = item_name(step, layout, tensor, 0, place, cell)
            state = layout.tensors[tensor].nature == "state"
            return f"needs {_named(key)}: {what} has to be {_told(a, state)} and is {_told(b, state)}"
    raise AssertionError("groups with the same items have the same digest")


def _told(item: list[int] | None, state: bool) -> str:
    """Returns what is known of an item as words."""
    if item is None:
        return "absent"
    count, version, hops = item
    words = ["there"]
    if count:
        words.append("complete" if count == COMPLETE else f"with {count} contributions")
    if state:
        words.append(f"after update {version}")
    if hops:
        words.append(f"after {hops} lossy hops")
    return ", ".join(words)


def _contract(step: Step, template: Template, counts: tuple[Ints, ...]) -> _Contract:
    """Returns the groups of a template's contract."""
    layout, ops = step.layouts[template.layout], template.operations
    rows = layout.bound
    moves = ops.kind != COMPUTE
    pairs = np.unique(np.stack([ops.what[moves], ops.layer[moves]], axis=1).astype(np.int64), axis=0)
    touched = {(int(what), int(layer)) for what, layer in pairs}
    computed = set()
    for formula in template.formulas:
        for row in rows.rows[rows.offsets[formula] : rows.offsets[formula + 1]]:
            computed.add((int(row[1]), int(row[2])))
    needs, leaves = (_groups(step, layout, items, counts) for items in (template.needs, template.leaves))
    used = sorted(touched | computed | needs.keys() | leaves.keys())
    return _Contract(needs, leaves, tuple(used), frozenset(computed))


def _groups(step: Step, layout: StepLayout, items: Items, counts: tuple[Ints, ...]) -> dict[tuple[int, int], _Group]:
    """Returns the items of a contract by (tensor, layer offset)."""
    zeros = np.zeros(len(layout.tensors), np.int64)
    rows = item_rows(layout, items, walk_tables(step, layout, counts, (zeros, zeros)))
    starts = np.flatnonzero(np.diff(rows.tensor, prepend=-1) | np.diff(rows.layer, prepend=-99))
    found = {}
    for begin, end in zip(starts.tolist(), [*starts.tolist()[1:], len(rows.tensor)], strict=len(starts) > 0):
        found[int(rows.tensor[begin]), int(rows.layer[begin])] = _group(rows, slice(begin, end))
    return found


def _group(rows: ItemRows, which: slice) -> _Group:
    table = np.stack(
        [one[which] for one in (rows.place, rows.cell, rows.contributions, rows.version, rows.hops)], axis=1
    )
    version = int(table[:, 3].min())
    table[:, 3] -= version
    return _Group(blake2b(table.tobytes(), digest_size=16).digest(), version, table)


def _of_every_layer(step: Step, items: Items, counts: tuple[Ints, ...]) -> Iterator[tuple[Key, _Group]]:
    """Yields the groups of the step's own contract for every layer that has them."""
    layout = step.layouts[0]
    for (tensor, _), group in _groups(step, layout, items, counts).items():
        for layer in range(step.num_layers + 1):
            if layout.tensors[tensor].exists(layer, step.num_layers):
                yield _key(0, layout, tensor, layer), group


def _computed_fault(step: Step) -> str:
    """Returns a formula that is not computed once for every layer of every micro-batch, "" if there is none.

    What updates state is left to versions: a step may have several rounds.
    """
    done: Counter[tuple[int, int, int]] = Counter()
    totals: Counter[tuple[int, int]] = Counter()
    for one in step.order:
        if 0 <= one.template < len(step.templates):
            template = step.templates[one.template]
            for made in template.formulas:
                totals[template.layout, made] += one.repeats
                done.update((template.layout, made, layer) for layer in one.layers)
    for number, layout in enumerate(step.layouts):
        for at, formula in enumerate(layout.formulas):
            if formula.action == ":=":
                continue
            names = {ref.tensor for ref in (*formula.results, *formula.operands)}
            each = any(layout.tensors[layout.number[name]].layers == "layer" for name in names)
            times = [(layer, done[number, at, layer]) for layer in range(step.num_layers)]
            total = totals[number, at]
            wrong = [layer for layer, count in times if count != 1] if each else []
            if wrong or total != (step.num_layers if each else 1):
                where = f"layer {wrong[0]}" if wrong else "the step"
                count = dict(times)[wrong[0]] if wrong else total
                return (
                    f"micro-batch {number}: formula {layout.labels[at]} is computed {count} times for {where}, not once"
                )
    return ""
