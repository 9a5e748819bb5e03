"""Plans of workers that train apart, side by side in one plan of all ranks, and each of them cut out of it again.

A worker is ranks that follow one another, the same number in each. Its plan is one of these ranks alone; side by side,
nothing goes from one to another. So whoever proves, records or counts plans has the whole batch, and whoever runs a
worker has its own.
"""

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

from zbench.plans.columns import ATTEND
from zbench.plans.plan import WAITS, Blocks, Lists, Ops, Plan


def joined_plans(groups: Sequence[Sequence[Plan]]) -> tuple[Plan, ...]:
    """Returns the plans of all workers together. groups: of each worker, one plan a micro-batch; a worker may have
    fewer than others, or none. Micro-batches of the same number are one plan, or several where workers' differ in more
    than tokens (in whether ranks wait for more than data)."""
    ranks = next(plan.num_ranks for plans in groups for plan in plans)
    found = []
    for row in zip_longest(*groups):
        alike: dict[Any, list[tuple[int, Plan]]] = {}
        for worker, plan in enumerate(row):
            if plan is not None:
                alike.setdefault(_ways(plan), []).append((worker, plan))
        found += [_joined(members, ranks, len(groups)) for members in alike.values()]
    return tuple(found)


def _ways(plan: Plan) -> tuple[Any, ...]:
    """Returns what plans that are joined have in common."""
    return plan.backward_mode, plan.attention, plan.padding is None, *(getattr(plan, name) for name in WAITS)


def _joined(members: Sequence[tuple[int, Plan]], ranks: int, workers: int) -> Plan:
    """Returns a plan of all ranks. members: (worker, its plan)."""
    first = members[0][1]
    seqs = _starts([len(plan.lengths) for _, plan in members])
    blocks = _starts([len(plan.blocks) for _, plan in members])
    lists = _starts([len(plan.lists) for _, plan in members])
    lanes = _starts([len(plan.lanes) for _, plan in members])
    every = list(enumerate(members))

    def ops(name: str) -> Ops:
        return Ops.concatenate([
            _moved(getattr(plan, name), worker * ranks, int(lists[at]), int(lanes[at])) for at, (worker, plan) in every
        ])  # fmt: skip

    def column(name: str, more: Sequence[int]) -> Any:
        return np.concatenate([getattr(plan.blocks, name) + more[at] for at, (_, plan) in every]).astype(np.int64)

    none = [0] * len(members)
    whole = Blocks(
        column("seq", seqs),
        column("start", none),
        column("stop", none),
        column("block", blocks),
        column("home", [worker * ranks for worker, _ in members]),
    )
    padding = None if first.padding is None else np.concatenate([plan.padding for _, plan in members])
    return first.with_(
        lengths=np.concatenate([plan.lengths for _, plan in members]),
        sequences=np.concatenate([plan.sequences for _, plan in members]),
        num_ranks=ranks * workers,
        blocks=whole,
        lists=_together([plan.lists for _, plan in members], blocks),
        lanes=_together([plan.lanes for _, plan in members], none),
        forward=ops("forward"),
        backward=ops("backward"),
        padding=padding,
        notes={f"worker {worker}: {key}": value for worker, plan in members for key, value in plan.notes.items()},
    )


def _starts(sizes: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(sizes).tolist()]


def _together(parts: Sequence[Lists], more: Sequence[int]) -> Lists:
    """Returns lists one after another, their items counted from `more` on."""
    ends = _starts([len(one.items) for one in parts])
    offsets = [one.offsets[:-1] + end for one, end in zip(parts, ends, strict=False)]
    items = [one.items + add for one, add in zip(parts, more, strict=False)]
    return Lists(np.concatenate([*offsets, [ends[-1]]]).astype(np.int64), np.concatenate(items).astype(np.int64))


def _moved(ops: Ops, ranks: int, lists: int, lanes: int) -> Ops:
    """Returns operations of other ranks, lists and lanes, counted from there on."""
    columns = {name: getattr(ops, name) for name in Ops.__dataclass_fields__}
    wide = {name: columns[name].astype(np.int64) for name in ("src", "dst", "blocks", "kv_blocks", "via")}
    columns |= {"src": wide["src"] + ranks, "dst": wide["dst"] + ranks, "blocks": wide["blocks"] + lists}
    columns |= {
        name: np.where(wide[name] >= 0, wide[name] + more, wide[name])
        for name, more in (("kv_blocks", lists), ("via", lanes))
    }
    return Ops(**columns)


def plans_of_worker(plans: Sequence[Plan], worker: int, ranks: int) -> tuple[Plan, ...]:
    """Returns a worker's own plans, of those micro-batches in which it has tokens. ranks: of a worker.

    Raises:
        ValueError: something goes from it to another worker, or from there to it.
    """
    return tuple(found for plan in plans if (found := _own(plan, worker, ranks)) is not None)


def _own(plan: Plan, worker: int, ranks: int) -> Plan | None:
    begin, blocks = worker * ranks, plan.blocks
    mine = blocks.home // ranks == worker
    if not mine.any():
        return None
    number = np.cumsum(mine) - 1
    pieces = mine[blocks.block]
    sequences, seq = np.unique(blocks.seq[pieces], return_inverse=True)
    here = [np.flatnonzero(ops.src // ranks == worker) for ops in (plan.forward, plan.backward)]
    taken = [ops.take(index) for ops, index in zip((plan.forward, plan.backward), here, strict=True)]
    used = np.unique(
        np.concatenate([named for ops in taken for named in (ops.blocks, ops.kv_blocks[ops.kind == ATTEND])])
    )
    rows = [plan.lists[one] for one in used.tolist()]
    apart = any((ops.dst // ranks != worker).any() for ops in taken) or not all(mine[row].all() for row in rows)
    if apart or np.isin(blocks.seq[~pieces], sequences).any():
        raise ValueError(
            f"plans send between workers, or divide a sequence over them: worker {worker} has ranks {begin} to "
            f"{begin + ranks - 1}; with sync in rounds a system plans for each worker by itself"
        )
    at = np.zeros(len(plan.lists) + 1, np.int64)
    at[used] = np.arange(len(used))
    forward, backward = (_from(ops, begin, at) for ops in taken)
    return plan.with_(
        lengths=plan.lengths[sequences],
        sequences=plan.sequences[sequences],
        padding=None if plan.padding is None else plan.padding[sequences],
        num_ranks=ranks,
        blocks=Blocks(
            seq.reshape(-1),
            blocks.start[pieces],
            blocks.stop[pieces],
            number[blocks.block[pieces]],
            blocks.home[mine] - begin,
        ),
        lists=Lists.of([number[row] for row in rows]),
        forward=forward,
        backward=backward,
        notes={},
    )


def _from(ops: Ops, begin: int, at: Any) -> Ops:
    """Returns operations with ranks counted from `begin` on and lists by other numbers. at: of each list."""
    columns = {name: getattr(ops, name) for name in Ops.__dataclass_fields__}
    columns |= {name: columns[name].astype(np.int64) - begin for name in ("src", "dst")}
    columns |= {"blocks": at[ops.blocks], "kv_blocks": np.where(ops.kv_blocks >= 0, at[ops.kv_blocks], -1)}
    return Ops(**columns)
