"""One simulated step as a Chrome trace, for Perfetto or chrome://tracing. Pure: no torch.

A track for every GPU's compute lane (linear modules, attends, head) and one for each direction of every
NIC (attention's transfers). Parameters, gradients and the optimizer are charged to a step as a whole
(zbench.collective), not played, and so are not in the picture. All layers are played out one by one, so
nothing in it is extrapolated. Of pipelines (zbench.pipelines) a stage's layers are one event a micro-batch.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from zbench.clock import Program, Timeline
from zbench.cluster import Cluster
from zbench.cost import Cost
from zbench.layers import Layers, State
from zbench.legs import LANES, NIC, link_ids
from zbench.model import TENSOR_NAMES
from zbench.pipelined import lines
from zbench.plan import Ops, Plan
from zbench.simulate import programs

MOST_EVENTS = 4_000_000  # about 600 MB of json, what trace viewers still open
Event = dict[str, Any]


def write_trace(path: str | Path, cost: Cost, plans: tuple[Plan, ...]) -> int:
    """Writes the step's events to `path` and returns their number; the file appears only when complete.

    Raises:
        ValueError: more than MOST_EVENTS events, or the file cannot be written.
    """
    layers = cost.model.num_layers
    count = sum(layers * (len(plan.forward) + len(plan.backward)) for plan in plans)
    if count > MOST_EVENTS:
        raise ValueError(f"trace would hold {count} events; at most {MOST_EVENTS}: use fewer nodes or model.num_layers")
    return write_events(path, True, cost.cluster, chain(names(cost.cluster), events(plans, cost)))


def write_events(path: str | Path, simulated: bool, cluster: Cluster, events: Iterable[Event]) -> int:
    """Writes a trace file whole or not at all; returns the number of events.

    Raises:
        ValueError: the file cannot be written.
    """
    path = Path(path)
    part = path.with_name(path.name + ".part")
    written = 0
    try:
        with part.open("w") as file:
            other = {"simulated": simulated, "cluster": cluster.name}
            file.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(other)}, "traceEvents": [\n')
            for event in events:
                file.write((",\n" if written else "") + json.dumps(event, separators=(",", ":")))
                written += 1
            file.write("\n]}\n")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ValueError(f"trace is {str(path)!r}; it cannot be written there: {error.strerror}") from error
    return written


def names(cluster: Cluster, with_nics: bool = True) -> Iterator[Event]:
    """Names of processes (nodes) and threads (GPUs and, if asked for, NIC directions)."""
    for node in range(cluster.num_nodes):
        yield {"ph": "M", "pid": node, "name": "process_name", "args": {"name": f"node {node}"}}
        for local in range(cluster.gpus_per_node):
            rank = node * cluster.gpus_per_node + local
            yield {"ph": "M", "pid": node, "tid": local, "name": "thread_name", "args": {"name": f"GPU {rank}"}}
        for local in range(cluster.nics_per_node if with_nics else 0):
            for way, name in enumerate(("sends", "receives")):
                tid = cluster.gpus_per_node + 2 * local + way
                nic = node * cluster.nics_per_node + local
                yield {"ph": "M", "pid": node, "tid": tid, "name": "thread_name", "args": {"name": f"NIC {nic} {name}"}}


def events(plans: tuple[Plan, ...], cost: Cost) -> Iterator[Event]:
    """Every event of the step, micro-batch after micro-batch: what `args` says depends on its name."""
    yield from (_rank_events if plans[0].pipelines is None else _pipeline_events)(plans, cost)


def _rank_events(plans: tuple[Plan, ...], cost: Cost) -> Iterator[Event]:
    cluster, layers = cost.cluster, cost.model.num_layers
    state = State.zero(cluster.num_ranks, cluster.num_ranks * LANES, link_ids(cluster)[0])
    recompute, meeting = cost.model.recompute == "full", cost.model.sharding == "zero3"
    for micro, plan in enumerate(plans):
        forward, backward = programs(plan, cost)
        linear, head = cost.linear_seconds(plan.tokens_per_rank), cost.head_seconds(plan.tokens_per_rank)
        passes = [("forward", plan.forward, forward, linear)]
        passes += [("recompute", plan.forward, forward, linear)] if recompute else []
        passes += [("backward", plan.backward, backward, 2 * linear)]
        for name, ops, of, times in passes:
            if name != "forward" and name == passes[1][0]:
                yield from _spans("head", state.ready, head, cost, {"micro_batch": micro})
                state.ready = state.ready + head
            for layer in range(layers):
                from_input = layer if name == "forward" else layers - 1 - layer
                place = {"micro_batch": micro, "pass": name, "layer": from_input}
                yield from _spans(f"linear {name}", state.ready, times, cost, place)
                timeline = Layers(of, times, 1).one(state)
                yield from _legs(plan, ops, of, timeline, name, cost, place)
            if meeting:  # as parameters are gathered from all ranks (zbench.simulate)
                state.meet()


def _pipeline_events(plans: tuple[Plan, ...], cost: Cost) -> Iterator[Event]:
    """Of pipelines: every micro-batch's forward and backward on every rank of a stage, its layers in one."""
    for line in lines(plans, cost):
        seconds = {"forward": line.forwards, "backward": line.backwards}
        for name, start in (("forward", line.runs.forward), ("backward", line.runs.backward)):
            for stage, turn in np.ndindex(start.shape):
                args = {"micro_batch": int(line.micro.index[turn]), "stage": stage, "pipeline": line.lead}
                for rank in range(*line.ranks(stage).indices(cost.cluster.num_ranks)):
                    node, local = divmod(rank, cost.cluster.gpus_per_node)
                    begin, took = float(start[stage, turn]), float(seconds[name][stage, turn])
                    yield _event(name, node, local, begin, took, args)


def _spans(name: str, begin: np.ndarray, seconds: np.ndarray, cost: Cost, args: Event) -> Iterator[Event]:
    per_node = cost.cluster.gpus_per_node
    for rank in np.flatnonzero(seconds > 0).tolist():
        yield _event(name, rank // per_node, rank % per_node, begin[rank], seconds[rank], args)


def _legs(
    plan: Plan, ops: Ops, of: Program, timeline: Timeline, name: str, cost: Cost, place: Event
) -> Iterator[Event]:
    cluster, parts = cost.cluster, of.legs
    kind = parts.link_class(plan.num_ranks)
    for leg in np.flatnonzero((kind < 0) | (kind == NIC)).tolist():
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
            yield _event(
                f"attend {name}", rank // cluster.gpus_per_node, rank % cluster.gpus_per_node, start, seconds, args
            )
            continue
        args = {**place, "operation": op, "blocks": blocks, "bytes": int(parts.bytes[leg]),
                "from": int(ops.src[op]), "to": int(ops.dst[op])}  # fmt: skip
        for way, link in enumerate((int(parts.link_a[leg]), int(parts.link_b[leg]))):
            nic = link // 2 - plan.num_ranks
            node, local = divmod(nic, cluster.nics_per_node)
            tid = cluster.gpus_per_node + 2 * local + way
            yield _event(TENSOR_NAMES[int(ops.tensor[op])], node, tid, start, seconds, args)


def _event(name: str, pid: int, tid: int, start: float, seconds: float, args: Event) -> Event:
    """A complete event; Chrome traces count in microseconds."""
    return {
        "ph": "X",
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": round(start * 1e6, 3),
        "dur": round(seconds * 1e6, 3),
        "args": args,
    }
