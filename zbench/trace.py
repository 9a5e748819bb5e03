"""One simulated step as a Chrome trace, for Perfetto or chrome://tracing. Pure: no torch.

A track for every GPU's compute lane (linear modules, attends, head, optimizer), one for each direction of every
NIC (attention's transfers), and one a node for parameters' gathers and gradients' reductions, which use all its links.
These are charged to a pass as a whole (zbench.collective): a gather is drawn from the beginning of the pass, a
reduction up to its end, and what layers do not hide of them as waiting of every GPU. All layers are played out one by
one, so nothing is extrapolated. Of pipelines (zbench.pipelines) and jobs with stages (zbench.stacks) a stage's layers
are one event a micro-batch, and what is not hidden of collectives is at their end.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from zbench.clock import Program, Timeline
from zbench.cluster import Cluster
from zbench.collective import Collectives, Sharing
from zbench.cost import Cost, Floats
from zbench.layers import Layers, State
from zbench.legs import LANES, NIC, link_ids
from zbench.model import TENSOR_NAMES
from zbench.pipelined import lines, play
from zbench.plan import Ints, Ops, Plan
from zbench.record import Line
from zbench.runtime.events import OPTIMIZER, REDUCE
from zbench.simulate import programs
from zbench.stage import held
from zbench.staged import play as staged_play
from zbench.staged import run
from zbench.totals import Carried

GATHER = "gather parameters"
SHOWN = {"forward": "waiting for parameters", "backward": "waiting for gradients"}  # what layers do not hide
SHARED = frozenset((GATHER, REDUCE, OPTIMIZER, *SHOWN.values()))  # names of events that are not of the layers
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
    return write_events(path, True, cost.whole, chain(names(cost.whole), events(plans, cost)))


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


def told(path: str) -> Line:
    """What a step's line of a record has of its trace: the file, and what tells it from another."""
    return {"file": path, "digest": _digest(Path(path))}


def recorded(trace: Line, folder: Path) -> list[Event]:
    """Events of a trace that a record tells of, from where it was written, or from `folder` (the record's).

    Raises:
        ValueError: it is in neither place, or is another than that of the record.
    """
    name = Path(trace["file"])
    places = [path for path in (name, folder / name.name) if path.is_file()]
    if not places:
        raise ValueError(f"its trace {trace['file']} is not there")
    whole = [path for path in places if _digest(path) == trace["digest"]]
    if not whole:
        raise ValueError(f"the trace {places[0]} is another than the one that the record tells of")
    events: list[Event] = json.loads(whole[0].read_text())["traceEvents"]
    return events


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]


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
        if with_nics:
            args = {"name": "parameters, gradients"}
            yield {"ph": "M", "pid": node, "tid": sharing_lane(cluster), "name": "thread_name", "args": args}


def sharing_lane(cluster: Cluster) -> int:
    """The thread of a node on which parameters' gathers and gradients' reductions are: its last."""
    return cluster.gpus_per_node + 2 * cluster.nics_per_node


def events(plans: tuple[Plan, ...], cost: Cost) -> Iterator[Event]:
    """Every event of the step, micro-batch after micro-batch: what `args` says depends on its name."""
    if cost.pp > 1:
        yield from _stage_events(plans, cost)
    else:
        yield from (_rank_events if plans[0].pipelines is None else _pipeline_events)(plans, cost)


def _rank_events(plans: tuple[Plan, ...], cost: Cost) -> Iterator[Event]:
    cluster, model = cost.cluster, cost.model
    state = State.zero(cluster.num_ranks, cluster.num_ranks * LANES, link_ids(cluster)[0])
    sharing = Sharing(Collectives.of(cost))
    again = 1 if model.recompute == "full" else 0
    for micro, plan in enumerate(plans):
        forward, backward = programs(plan, cost)
        head, used, place = cost.head_seconds(plan.tokens_per_rank), Carried.of(forward, cost), {"micro_batch": micro}
        begin = float(state.ready.max())
        yield from _layers("forward", plan, forward, state, cost, place)
        if micro == 0 or sharing.of.every_micro_batch:
            yield from _sharing("forward", sharing, begin, used, state, cost, place)
        yield from _spans("head", state.ready, head, cost, place)
        state.ready = state.ready + head
        begin = float(state.ready.max())
        for name, of in (("recompute", forward),) * again + (("backward", backward),):
            yield from _layers(name, plan, of, state, cost, place)
        if micro == len(plans) - 1 or sharing.of.every_micro_batch:
            used = used.times(again).plus(Carried.of(backward, cost))
            yield from _sharing("backward", sharing, begin, used, state, cost, place)
    yield from _spans(OPTIMIZER, state.ready, np.full(cluster.num_ranks, cost.optimizer_seconds()), cost, {})


def _layers(name: str, plan: Plan, of: Program, state: State, cost: Cost, place: Event) -> Iterator[Event]:
    """One pass, forward, recompute or backward, over all layers."""
    ops, linear = plan.backward if name == "backward" else plan.forward, cost.linear_seconds(plan.tokens_per_rank)
    times = 2 * linear if name == "backward" else linear
    for layer in range(cost.model.num_layers):
        from_input = layer if name == "forward" else cost.model.num_layers - 1 - layer
        here = {**place, "pass": name, "layer": from_input}
        yield from _spans(f"linear {name}", state.ready, times, cost, here)
        yield from _legs(plan, ops, of, Layers(of, times, 1).one(state), name, cost, here)


def _sharing(
    name: str, sharing: Sharing, begin: float, used: Carried, state: State, cost: Cost, place: Event
) -> Iterator[Event]:
    """What parameters and gradients add, as zbench.simulate has it, to a pass from `begin` whose layers have ended."""
    of, end, busiest = sharing.of, float(state.ready.max()), used.busiest(cost)
    if name == "forward":
        shown = sharing.forward(end - begin, busiest, moved=False)
    else:
        shown = sharing.backward(end - begin, busiest)
    if of.every_micro_batch or name == "backward":
        state.meet()
    if of.every_micro_batch or (of.every_step and name == "forward"):
        yield from _collective(GATHER, begin, of.gather, of.gather_bytes, cost, place)
    if name == "backward":
        yield from _collective(REDUCE, end + shown - of.reduce, of.reduce, of.reduce_bytes, cost, place)
    yield from _spans(SHOWN[name], state.ready, np.full(cost.cluster.num_ranks, shown), cost, place)
    state.ready = state.ready + shown


def _collective(name: str, begin: float, seconds: float, size: Ints, cost: Cost, place: Event) -> Iterator[Event]:
    """On every node; size: bytes of every NIC, each way, [num_nics]."""
    cluster = cost.cluster
    for node in range(cost.whole.num_nodes if seconds else 0):
        args = {**place, "bytes": int(size[node % cluster.num_nodes * cluster.nics_per_node])}
        yield _event(name, node, sharing_lane(cluster), begin, seconds, args)


def _pipeline_events(plans: tuple[Plan, ...], cost: Cost) -> Iterator[Event]:
    """Of pipelines: every micro-batch's forward and backward on every rank of a stage, its layers in one."""
    pipelines = plans[0].pipelines
    assert pipelines is not None
    for line in lines(plans, cost):
        seconds = {"forward": line.forwards, "backward": line.backwards}
        for name, start in (("forward", line.runs.forward), ("backward", line.runs.backward)):
            for stage, turn in np.ndindex(start.shape):
                args = {"micro_batch": int(line.micro.index[turn]), "stage": stage, "pipeline": line.lead}
                for rank in range(*line.ranks(stage).indices(cost.cluster.num_ranks)):
                    node, local = divmod(rank, cost.cluster.gpus_per_node)
                    begin, took = float(start[stage, turn]), float(seconds[name][stage, turn])
                    yield _event(name, node, local, begin, took, args)
    sharing = Sharing(Collectives.of(cost, held(pipelines, cost)))
    end = play(plans, cost, sharing, moved=False).end
    yield from _after(end - sharing.exposed, end, sharing.of, cost)


def _stage_events(plans: tuple[Plan, ...], cost: Cost) -> Iterator[Event]:
    """Of jobs with stages: every micro-batch's forward and backward on every rank of a stage, its layers in one."""
    cluster, parts, last = cost.cluster, [programs(plan, cost) for plan in plans], 0.0
    for turn in run(plans, parts, cost):
        args, last = {"micro_batch": turn.micro, "stage": turn.stage}, max(last, float(turn.end.max()))
        for rank in np.flatnonzero(turn.end > turn.begin).tolist():
            node, local = divmod(rank, cluster.gpus_per_node)
            node += turn.stage * cluster.num_nodes
            begin, took = float(turn.begin[rank]), float(turn.end[rank] - turn.begin[rank])
            yield _event("backward" if turn.backward else "forward", node, local, begin, took, args)
    sharing = Sharing(Collectives.of(cost))
    end = staged_play(plans, parts, cost, sharing)[0].end
    yield from _after(last, end, sharing.of, cost)


def _after(layers: float, end: float, of: Collectives, cost: Cost) -> Iterator[Event]:
    """Beside and after the layers of pipelines and stages, which end at `layers`; the optimizer begins at `end`."""
    if of.every_step:
        yield from _collective(GATHER, 0.0, of.gather, of.gather_bytes, cost, {})
    yield from _collective(REDUCE, end - of.reduce, of.reduce, of.reduce_bytes, cost, {})
    ranks = cost.whole.num_ranks
    yield from _spans(SHOWN["backward"], np.full(ranks, layers), np.full(ranks, end - layers), cost, {})
    yield from _spans(OPTIMIZER, np.full(ranks, end), np.full(ranks, cost.optimizer_seconds()), cost, {})


def _spans(name: str, begin: Floats, seconds: Floats, cost: Cost, args: Event) -> Iterator[Event]:
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
