"""Mutations of blocks, lists of them and lanes: who owns what, what travels together and how. Pure: no torch."""

from dataclasses import replace

import numpy as np
from numpy.random import Generator

from zbench.correctness.mutations.paths import other, put, put_at
from zbench.cost.cost import Cost
from zbench.plans.plan import Blocks, Ints, Lists, Plan


def boundary(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Moves the boundary between two pieces that follow one another; by more than one's tokens, it is wrong."""
    blocks = plan.blocks
    if len(blocks.seq) < 2:
        return put_at(plan, "blocks.stop", 0, int(blocks.stop[0]) - 1)
    at = int(rng.integers(len(blocks.seq) - 1))
    by = int(rng.choice((-1, 1, -3, 3)))
    plan = put_at(plan, "blocks.stop", at, int(blocks.stop[at]) + by)
    return put_at(plan, "blocks.start", at + 1, int(blocks.start[at + 1]) + by)


def exchanged_homes(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Exchanges the homes of two blocks, or moves all blocks to the next rank."""
    home = plan.blocks.home.copy()
    if rng.random() < 0.3:
        return put(plan, "blocks.home", (home + 1) % plan.num_ranks)
    a, b = rng.integers(len(home), size=2)
    home[[a, b]] = home[[b, a]]
    return put(plan, "blocks.home", home)


def exchanged_pieces(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Exchanges the rows of two pieces, or only the blocks they belong to."""
    blocks = plan.blocks
    order = np.arange(len(blocks.seq))
    a, b = rng.integers(len(order), size=2)
    order[[a, b]] = order[[b, a]]
    return put(plan, "blocks.block", blocks.block[order]) if rng.random() < 0.5 else _pieces(plan, order)


def dropped_piece(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Leaves out a piece, or has one twice."""
    count = len(plan.blocks.seq)
    at = int(rng.integers(count))
    order = np.arange(count)
    return _pieces(plan, np.delete(order, at) if rng.random() < 0.5 else np.insert(order, at, at))


def cut_piece(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Cuts a piece in two of the same block: right, unless it has one token or a token is lost between them."""
    at = int(rng.integers(len(plan.blocks.seq)))
    plan = _pieces(plan, np.insert(np.arange(len(plan.blocks.seq)), at, at))
    middle = int(plan.blocks.start[at] + plan.blocks.stop[at]) // 2
    plan = put_at(plan, "blocks.stop", at, middle)
    return put_at(plan, "blocks.start", at + 1, middle + int(rng.random() < 0.3))


def merged_blocks(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Gives a block's pieces to another one, which leaves it empty, or adds an empty block."""
    blocks = plan.blocks
    if rng.random() < 0.3:
        return put(plan, "blocks.home", np.append(blocks.home, 0))
    a, b = rng.integers(len(blocks), size=2)
    return put(plan, "blocks.block", np.where(blocks.block == a, b, blocks.block))


def list_item(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Puts another block into a list, leaves one out, or has one twice."""
    return plan.with_(lists=_changed(rng, plan.lists, len(plan.blocks)))


def exchanged_lists(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Exchanges two lists, turns one round, or empties one."""
    rows = [row.copy() for row in (plan.lists[at] for at in range(len(plan.lists)))]
    a, b = rng.integers(len(rows), size=2).tolist()
    kind = rng.integers(3)
    if kind == 0:
        rows[a], rows[b] = rows[b], rows[a]
    else:
        rows[a] = rows[a][::-1] if kind == 1 else rows[a][:0]
    return plan.with_(lists=Lists.of(rows))


def lane_item(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Changes a lane, leaves one out, or has one twice."""
    plan = with_lanes(rng, plan, cost)
    return plan.with_(lanes=_changed(rng, plan.lanes, cost.cluster.nics_per_node))


def emptied_lanes(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Empties all lists of lanes, or one, or leaves out the lists."""
    plan = with_lanes(rng, plan, cost)
    kind, count = rng.integers(3), len(plan.lanes)
    if kind == 0:
        return plan.with_(lanes=Lists.of([]))
    empty = np.ones(count, bool) if kind == 1 else np.arange(count) == rng.integers(count)
    return plan.with_(lanes=Lists.of([row[:0] if gone else row for row, gone in zip(_rows(plan), empty, strict=True)]))


def rerouted(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Routes some operations, whatever they are: right where they are transfers between nodes."""
    plan = with_lanes(rng, plan, cost)
    node, share = cost.cluster.node_of, rng.choice((0.05, 0.5, 1.0))
    for name in ("forward", "backward"):
        ops = getattr(plan, name)
        some = rng.random(len(ops)) < share
        if rng.random() < 0.5:
            some &= node[ops.src] != node[ops.dst]
        via = rng.integers(-1, len(plan.lanes), len(ops))
        plan = put(plan, f"{name}.via", np.where(some, via, ops.via))
    return plan


def with_lanes(rng: Generator, plan: Plan, cost: Cost) -> Plan:
    """Returns the plan with lists of lanes and transfers between nodes that use them, if it has none: still right."""
    if len(plan.lanes):
        return plan
    node, nics = cost.cluster.node_of, cost.cluster.nics_per_node
    lanes = Lists.of([rng.permutation(nics)[: rng.integers(1, nics + 1)] for _ in range(rng.integers(1, 3))])
    routed = []
    for ops in (plan.forward, plan.backward):
        across = (ops.kind == 0) & (node[ops.src] != node[ops.dst])
        via = np.where(across, rng.integers(len(lanes), size=len(ops)), -1)
        routed.append(replace(ops, via=via.astype(np.int64)))
    return plan.with_(lanes=lanes, forward=routed[0], backward=routed[1])


def _rows(plan: Plan) -> list[Ints]:
    return [plan.lanes[at] for at in range(len(plan.lanes))]


def _changed(rng: Generator, lists: Lists, count: int) -> Lists:
    """Returns the lists with one item changed, left out, or there twice."""
    rows = [lists[at].copy() for at in range(len(lists))]
    at = int(rng.integers(len(rows)))
    place, kind = int(rng.integers(len(rows[at]))), rng.integers(3)
    if kind == 0:
        rows[at][place] = other(rng, int(rows[at][place]), count)
    else:
        rows[at] = np.delete(rows[at], place) if kind == 1 else np.insert(rows[at], place, rows[at][place])
    return Lists.of(rows)


def _pieces(plan: Plan, index: Ints) -> Plan:
    blocks = plan.blocks
    return plan.with_(
        blocks=Blocks(blocks.seq[index], blocks.start[index], blocks.stop[index], blocks.block[index], blocks.home)
    )
