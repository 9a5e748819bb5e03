"""Seconds that a layer takes on one node: exchanges, attends and ways home, in the order of step 3. Compiled.

It is an estimate of what zbench.systems.nodewise.operations puts in order. Exchanges go in rounds that take as long as
the GPU with most to send or receive. Messages wait for each other and for the slowest GPU's linear modules; attends
wait for their messages and for each other. `clock` is float64 [P]: when each GPU has done all that it was given so far.
"""

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.compiled import ENTERED, INNER
from zbench.plans.plan import Ints
from zbench.systems.nodewise.chunks import chunk_bounds, shard_bounds
from zbench.systems.nodewise.records import BACKWARD, FORWARD, NodeWork, Pace, PassSeconds, Record


@nb.njit(**ENTERED)
def seconds(work: NodeWork, order: Ints, cuts: Ints, pace: Pace) -> float:
    """Estimates the seconds of a layer in both directions.

    order: int64 [G], of the groups in the forward. cuts: int64 [2, G + 1], of every group's heads and, last, of the
    shards', by direction (zbench.systems.nodewise.chunks).
    """
    both: float = _forward(work, order, cuts[FORWARD], pace) + _backward(work, order, cuts[BACKWARD], pace)
    return both


@nb.njit(**INNER)
def _forward(work: NodeWork, order: Ints, cuts: Ints, pace: Pace) -> float:
    """Local attends, shards' own keys in chunks, groups, then keys of other shards; o of these goes home last."""
    rates, shards = pace.passes[FORWARD], work.shards[FORWARD]
    clock = work.linear * rates.linear
    sent, free = _links_free(clock.max(), rates)
    _attend_locally(clock, work.local[FORWARD], 0.0, pace)
    bounds = shard_bounds(cuts[-1], shards["heads"])
    # Keys leave when the first chunk is exchanged and all nodes of their sequences are ready.
    across, wide = max(free, shards["ready"]), shards["away"] * shards["tokens"] * rates.nic_out
    keys = across + max(bounds[1] * shards["tokens"] * rates.out, wide) + _key_seconds(shards, rates)
    if shards["tokens"] > 0:
        for c in range(len(bounds) - 1):
            part = bounds[c + 1] - bounds[c]
            sent += part * shards["tokens"] * rates.out * max(1.0, work.busiest)
            come = max(sent, across + bounds[c + 1] * wide) if wide > 0 else sent
            _attend_to_own(clock, part, come, shards, pace)
    home = _run_groups(clock, sent, work, FORWARD, rates, order, cuts, pace)
    if shards["tokens"] > 0:
        last = 1 - bounds[-2]  # only the last shard's last chunk waits for all keys
        if shards["others"] > 0:
            clock = np.maximum(clock + shards["others"], keys + last * shards["last_call"])
        each = max(rates.home * max(1.0, work.busiest), shards["away"] * rates.nic_home)
        home = max(home, clock.max()) + last * shards["tokens"] * each
    return float(max(clock.max(), home + pace.latency))


@nb.njit(**INNER)
def _backward(work: NodeWork, order: Ints, cuts: Ints, pace: Pace) -> float:
    """The forward from its end to its begin; gradients of keys travel back to other nodes meanwhile."""
    rates, shards = pace.passes[BACKWARD], work.shards[BACKWARD]
    clock = work.linear * rates.linear
    sent, free = _links_free(clock.max(), rates)
    bounds, keys = shard_bounds(cuts[-1], shards["heads"]), 0.0
    if shards["tokens"] > 0:
        last = 1 - bounds[-2]
        each = shards["tokens"] * max(rates.out * max(1.0, work.busiest), shards["away"] * rates.nic_out)
        sent += last * each
        if shards["others"] > 0:
            clock = np.maximum(clock, sent + pace.latency) + shards["others"]
            ready = max(sent + pace.latency, free, shards["ready"])
            keys = ready + last * shards["last_call"] + _key_seconds(shards, rates)
        sent += (1 - last) * each
    home = _run_groups(clock, sent, work, BACKWARD, rates, order[::-1], cuts, pace)
    if shards["tokens"] > 0:
        each = max(rates.home * max(1.0, work.busiest), shards["away"] * rates.nic_home)
        for c in range(len(bounds) - 2, -1, -1):
            part = bounds[c + 1] - bounds[c]
            _attend_to_own(clock, part, 0.0, shards, pace)
            # What goes home last waits for the gradients of its keys from other nodes.
            come = keys if c == 0 or shards["away"] > 0 else 0.0
            home = max(home, clock.max(), come) + part * shards["tokens"] * each
    _attend_locally(clock, work.local[BACKWARD], rates.start, pace)
    return float(max(clock.max(), home + pace.latency))


@nb.njit(**INNER)
def _links_free(begin: float, rates: PassSeconds) -> tuple[float, float]:
    """Tells when gathers and reductions leave attention NVLink and NICs: not before `begin`, when linear modules are
    done."""
    since = rates.begins * begin
    return max(begin, since + rates.kept), max(begin, since + rates.kept_nic)


@nb.njit(**INNER)
def _key_seconds(shards: Record, rates: PassSeconds) -> float:
    """Seconds of keys on NICs without what nodes that share heads exchange, which goes before and after them."""
    exchanged = shards["away"] * shards["tokens"] * (rates.nic_out + rates.nic_home)
    return float(max(shards["keys"] - exchanged, 0.0))


@nb.njit(**INNER)
def _attend_locally(clock: Floats, local: Floats, start: float, pace: Pace) -> None:
    """Adds every GPU's one attend to the sequences that are whole on it."""
    for r in range(len(clock)):
        clock[r] += max(local[r] + start, pace.least) if local[r] > 0 else 0.0


@nb.njit(**INNER)
def _attend_to_own(clock: Floats, part: float, come: float, shards: Record, pace: Pace) -> None:
    """Adds a chunk of the shards' attends to their own keys, which waits for its messages."""
    for r in range(len(clock)):
        clock[r] = max(clock[r], come + pace.latency) + max(part * shards["own"] + shards["starts"], pace.least)


@nb.njit(**INNER)
def _run_groups(
    clock: Floats,
    sent: float,
    work: NodeWork,
    direction: int,
    rates: PassSeconds,
    order: Ints,
    cuts: Ints,
    pace: Pace,
) -> float:
    """Moves every GPU's clock on over the groups; returns when all is home. A way home begins when all is sent."""
    heads, backward = work.heads, direction == BACKWARD
    ranks, home = len(clock), sent
    for g in order:
        shares = _exchange_shares(heads[g], chunk_bounds(cuts[g]), work.busiest)
        home += work.group_tokens[g] * rates.out * shares.sum()
    for g in order:
        bounds = chunk_bounds(cuts[g])
        shares = _exchange_shares(heads[g], bounds, work.busiest)
        for turn in range(len(shares)):
            c = len(shares) - 1 - turn if backward else turn
            sent += work.group_tokens[g] * rates.out * shares[c]
            for r in range(ranks):
                part = _heads_between(heads[g, r + 1] - heads[g, r], bounds[c], bounds[c + 1])
                if part > 0:
                    busy = work.group_work[direction, g] * part / heads[g, ranks] + rates.start
                    clock[r] = max(clock[r], sent + pace.latency) + max(busy, pace.least)
            home = max(home, clock.max()) + work.group_tokens[g] * rates.home * shares[c]
    return home


@nb.njit(**INNER)
def _heads_between(width: int, low: float, high: float) -> float:
    """How many of `width` heads are in a chunk, whose bounds are rounded to whole ones."""
    return float(np.floor(width * high + 0.5) - np.floor(width * low + 0.5))


@nb.njit(**INNER)
def _exchange_shares(heads: Ints, bounds: Floats, busiest: float) -> Floats:
    """How long every chunk's exchange takes, in parts of an even exchange of all heads.

    It is the heads of the GPU with most, in even shares of all heads, or what the busiest home sends, if that is more.
    """
    shares, ranks = np.empty(len(bounds) - 1), len(heads) - 1
    for c in range(len(shares)):
        most, total = 0.0, 0.0
        for r in range(ranks):
            part = _heads_between(heads[r + 1] - heads[r], bounds[c], bounds[c + 1])
            most, total = max(most, part), total + part
        shares[c] = max(most * ranks, busiest * total) / heads[ranks]
    return shares
