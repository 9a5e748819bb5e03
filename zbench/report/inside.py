"""A recorded step looked into: planned and simulated again, as columns for the page. Pure: no torch.

A plan is a function of batch and configuration, so a record need not hold it. What was measured is not made again: the
timeline is the simulator's, of LAYERS layers in place of all (they are equal), whatever the run's executor was.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from zbench.cost import Cost
from zbench.plan import Plan
from zbench.report.overview import Table
from zbench.trace import Event, events, sharing_lane

LAYERS = 2  # a first one from a cold start, and one as those that follow it
MOST_EVENTS = 60_000  # of one step: about 2 MB of the page, and what a browser still draws at once
_NAMED = 4  # sequences and blocks of an operation that are named; of others their number is told
_DRAWN = 48  # sequences drawn on a rank, the longest; the others of the rank are one piece


@dataclass(slots=True)
class _Names:
    """Texts or tuples, each once, by number."""

    number: dict[Any, int] = field(default_factory=dict)

    def of(self, value: Any) -> int:
        return self.number.setdefault(value, len(self.number))


def timeline(plans: tuple[Plan, ...], cost: Cost) -> Table | None:
    """Events as columns, and the lists of blocks they name; None where there are more than MOST_EVENTS.

    tracks: names; an event's track is an index into them. begin, length: microseconds. what: [q or moved, kv] lists.
    """
    pipelines = plans[0].pipelines is not None
    layers = cost.model.num_layers if pipelines else min(LAYERS, cost.model.num_layers)
    short = replace(cost, model=replace(cost.model, num_layers=layers))
    if not pipelines and sum(layers * (len(plan.forward) + len(plan.backward)) for plan in plans) > MOST_EVENTS:
        return None
    names, lists = _Names(), _Names()
    columns: dict[str, list[Any]] = {key: [] for key in ("track", "name", "begin", "length", "micro", "layer", "what",
                                                         "bytes", "route")}  # fmt: skip
    for event in events(plans, short):
        if len(columns["track"]) == MOST_EVENTS:
            return None
        args, way = event["args"], _way(plans, event)
        columns["track"].append(_track(event, cost))
        columns["name"].append(names.of(_titled(event)))
        columns["begin"].append(event["ts"])
        columns["length"].append(event["dur"])
        columns["micro"].append(args.get("micro_batch", -1))
        columns["layer"].append(args.get("layer", -1))
        columns["what"].append([lists.of((args["micro_batch"], number)) for number in way])
        columns["bytes"].append(args.get("bytes", 0))
        columns["route"].append([args["from"], args["to"]] if "from" in args else [])
    described = [_described(plans[micro], number) for micro, number in lists.number]
    return {
        "layers": layers, "of_layers": cost.model.num_layers, "pipelines": pipelines, "tracks": _tracks(cost),
        "per_node": sharing_lane(cost.cluster) + 1,
        "names": list(names.number), "lists": described, **columns,
    }  # fmt: skip


def _tracks(cost: Cost) -> list[str]:
    """Node by node: its GPUs, what each of its NICs sends and receives, and what all of them share."""
    out = []
    for node in range(cost.cluster.num_nodes):
        gpus, nics = cost.cluster.gpus_per_node, cost.cluster.nics_per_node
        out += [f"GPU {node * gpus + local}" for local in range(gpus)]
        out += [f"NIC {node * nics + local} {way}" for local in range(nics) for way in ("sends", "receives")]
        out.append("parameters, gradients")
    return out


def _track(event: Event, cost: Cost) -> int:
    return int(event["pid"] * (sharing_lane(cost.cluster) + 1) + event["tid"])


def _titled(event: Event) -> str:
    """'attend forward', 'kv backward': what is done, and in which pass."""
    name, passing = event["name"], event["args"].get("pass", "")
    return name if not passing or passing in name else f"{name} {passing}"


def _way(plans: tuple[Plan, ...], event: Event) -> list[int]:
    """The lists of blocks that an attend or transfer is about: (what moves or asks, keys of an attend)."""
    if "operation" not in event["args"]:
        return []
    plan, op = plans[event["args"]["micro_batch"]], event["args"]["operation"]
    ops = plan.backward if event["args"]["pass"] == "backward" else plan.forward
    keys = int(ops.kv_blocks[op])
    return [int(ops.blocks[op])] + ([keys] if keys >= 0 else [])


def _described(plan: Plan, number: int) -> Table:
    """Of a list of blocks: how many and which, their tokens, and the sequences they are of, longest share first."""
    blocks = plan.lists[number]
    pieces = np.concatenate([plan.blocks.pieces[int(block)] for block in blocks])
    tokens = plan.blocks.stop[pieces] - plan.blocks.start[pieces]
    of = np.bincount(plan.blocks.seq[pieces], tokens)
    first = np.argsort(-of, kind="stable")[: min(_NAMED, np.count_nonzero(of))]
    return {
        "blocks": blocks[:_NAMED].tolist(), "num_blocks": len(blocks), "tokens": int(tokens.sum()),
        "sequences": [[int(plan.sequences[seq]), int(plan.lengths[seq]), int(of[seq])] for seq in first],
        "num_sequences": int(np.count_nonzero(of)),
    }  # fmt: skip


def homes(plans: tuple[Plan, ...]) -> list[Table]:
    """Of every micro-batch who is home of what: [rank, sequence, tokens here] rows, longest sequences first.

    The sequences of a rank beyond the first _DRAWN are one row each rank, with sequence -1. lengths, ranks: of every
    sequence that is named, its tokens and on how many ranks it lies.
    """
    return [_homes(plan) for plan in plans]


def _homes(plan: Plan) -> Table:
    blocks = plan.blocks
    rank, tokens = blocks.home[blocks.block], blocks.stop - blocks.start
    here = np.zeros((plan.num_ranks, len(plan.lengths)), np.int64)
    np.add.at(here, (rank, blocks.seq), tokens)
    wide = (here > 0).sum(axis=0)
    rows, named = [], set()
    for at, row in enumerate(here):
        mine = sorted(np.flatnonzero(row).tolist(), key=lambda seq: (-plan.lengths[seq], seq))
        rows += [[at, int(plan.sequences[seq]), int(row[seq])] for seq in mine[:_DRAWN]]
        named |= set(mine[:_DRAWN])
        if rest := mine[_DRAWN:]:
            rows.append([at, -1, int(row[rest].sum()), len(rest)])
    about = {int(plan.sequences[seq]): [int(plan.lengths[seq]), int(wide[seq])] for seq in sorted(named)}
    return {"rows": rows, "sequences": about, "num_ranks": plan.num_ranks}
