"""Events of ranks that hold all layers. Pure: no torch.

All layers are played out one by one, so nothing is extrapolated.
"""

from collections.abc import Iterator

import numpy as np

from zbench.cost.collective import Collectives, Sharing
from zbench.cost.cost import Cost
from zbench.describe.links import NIC
from zbench.describe.model import TENSOR_NAMES
from zbench.plans.plan import Ints, Ops, Plan
from zbench.runtime.clocks.events import OPTIMIZER, REDUCE
from zbench.simulator.clock import Timeline
from zbench.simulator.hop_graph import HopGraph
from zbench.simulator.layers import ClockState, Layers
from zbench.simulator.simulate import programs
from zbench.simulator.totals import Carried
from zbench.trace.channels import Channels
from zbench.trace.file import Event
from zbench.trace.tracks import GATHER, SHOWN, collective, complete_event, nic_track, port_classes, port_track, spans


def rank_events(plans: tuple[Plan, ...], cost: Cost) -> Iterator[Event]:
    """Yields the events micro-batch after micro-batch: forward, head and backward of all layers, then the optimizer."""
    cluster, model = cost.cluster, cost.model
    state, channels = ClockState.zero(cluster), Channels()
    sharing = Sharing(Collectives.of(cost))
    again = 1 if model.recompute == "full" else 0
    for micro, plan in enumerate(plans):
        forward, backward = programs(plan, cost)
        head, used, place = cost.head_seconds(plan.tokens_per_rank), Carried.of(forward, cost), {"micro_batch": micro}
        begin = float(state.ready.max())
        yield from _layers("forward", plan, forward, state, channels, cost, place)
        if micro == 0 or sharing.of.every_micro_batch:
            yield from _sharing("forward", sharing, begin, used, state, cost, place)
        yield from spans("head", state.ready, head, cost, place)
        state.ready = state.ready + head
        begin = float(state.ready.max())
        for name, of in (("recompute", forward),) * again + (("backward", backward),):
            yield from _layers(name, plan, of, state, channels, cost, place)
        if micro == len(plans) - 1 or sharing.of.reduced:
            used = used.times(again).plus(Carried.of(backward, cost))
            yield from _sharing("backward", sharing, begin, used, state, cost, place)
    yield from spans(OPTIMIZER, state.ready, np.full(cluster.num_ranks, cost.optimizer_seconds()), cost, {})


def _layers(
    name: str, plan: Plan, of: HopGraph, state: ClockState, channels: Channels, cost: Cost, place: Event
) -> Iterator[Event]:
    """Yields the events of one pass, forward, recompute or backward, over all layers."""
    back = name == "backward"
    ops, tokens = plan.backward if back else plan.forward, plan.tokens_per_rank
    times = cost.backward_linear_seconds(tokens) if back else cost.linear_seconds(tokens)
    for layer in range(cost.model.num_layers):
        from_input = layer if name == "forward" else cost.model.num_layers - 1 - layer
        here = {**place, "pass": name, "layer": from_input}
        yield from spans(f"linear {name}", state.ready, times, cost, here)
        yield from _legs(plan, ops, of, Layers(of, times, 1).one(state), name, channels, cost, here)


def _sharing(
    name: str, sharing: Sharing, begin: float, used: Carried, state: ClockState, cost: Cost, place: Event
) -> Iterator[Event]:
    """Yields what parameters and gradients add, as zbench.simulator.simulate has it, to a pass from `begin` whose
    layers have ended."""
    of, end, busiest = sharing.of, float(state.ready.max()), used.busiest(cost)
    if name == "forward":
        shown = sharing.forward(end - begin, busiest, moved=False)
    else:
        shown = sharing.backward(end - begin, busiest)
    if of.every_micro_batch or name == "backward":
        state.meet()
    if of.every_micro_batch or (of.every_step and name == "forward"):
        start = begin if of.overlap else end
        yield from collective(GATHER, start, of.gather, of.gather_bytes, cost, place)
    if name == "backward":
        yield from collective(REDUCE, end + shown - of.reduce, of.reduce, of.reduce_bytes, cost, place)
    yield from spans(SHOWN[name], state.ready, np.full(cost.cluster.num_ranks, shown), cost, place)
    state.ready = state.ready + shown


def _legs(
    plan: Plan, ops: Ops, of: HopGraph, timeline: Timeline, name: str, channels: Channels, cost: Cost, place: Event
) -> Iterator[Event]:
    cluster, parts = cost.cluster, of.hops
    kind, nics = parts.link_class, cluster.nic_of
    moves = np.isin(kind, [NIC, *port_classes(cluster)])
    drawn = _drawn(np.flatnonzero(moves), of, timeline, channels)
    for leg in np.flatnonzero((kind < 0) | moves).tolist():
        op = int(parts.op[leg])
        start, seconds = timeline.start[leg], timeline.release[leg] - timeline.start[leg]
        blocks = plan.lists[int(ops.blocks[op])][:8].tolist()
        if kind[leg] < 0:
            rank = int(parts.rank[leg])
            args = {
                **place,
                "operation": op,
                "q_blocks": blocks,
                "kv_blocks": plan.lists[int(ops.kv_blocks[op])][:8].tolist(),
            }
            yield complete_event(
                f"attend {name}", rank // cluster.gpus_per_node, rank % cluster.gpus_per_node, start, seconds, args
            )
            continue
        args = {
            **place,
            "operation": op,
            "blocks": blocks,
            "bytes": int(parts.bytes[leg]),
            "from": int(ops.src[op]),
            "to": int(ops.dst[op]),
        }
        if parts.channels[leg] > 1:
            args["channels"] = int(parts.channels[leg]) if parts.whole[leg] else 1
        ends = int(parts.queue_a[leg]) // parts.queues, int(parts.receiver[leg])
        for way, rank in enumerate(ends):
            node, local = divmod(rank, cluster.gpus_per_node)
            if kind[leg] == NIC:
                tid = nic_track(cluster, int(nics[rank]) % cluster.nics_per_node, way, drawn[leg][way])
            else:
                tid = port_track(cluster, local, int(kind[leg]), way, drawn[leg][way])
            yield complete_event(TENSOR_NAMES[int(ops.tensor[op])], node, tid, start, seconds, args)


def _drawn(moves: Ints, of: HopGraph, timeline: Timeline, channels: Channels) -> dict[int, tuple[int, int]]:
    """Returns the channels of the links, sending and receiving, that each of `moves` is drawn on."""
    parts, found = of.hops, {}
    for leg in moves[np.argsort(timeline.start[moves], kind="stable")].tolist():
        given = float(timeline.start[leg]), float(timeline.release[leg]), bool(parts.whole[leg])
        count = int(parts.channels[leg])
        a, b = (channels.take(int(link[leg]), count, *given) for link in (parts.link_a, parts.link_b))
        found[leg] = a, b
    return found
