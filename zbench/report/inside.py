"""Looks into a recorded step: planned and simulated again, as columns for the page. Pure: no torch.

A plan is a function of batch and configuration, so a record need not hold it. The timeline is of a whole step with
LAYERS layers in place of all (they are alike), simulated, whatever the run's executor was: what was measured is not
made again (zbench.report.measured has it where it was traced).
"""

from dataclasses import asdict, replace

import numpy as np

from zbench.cost.cost import Cost
from zbench.critical.told import told_path
from zbench.describe.batch import Batch
from zbench.describe.overlap import StepOverlap
from zbench.plans.plan import Plan
from zbench.record.record import Line
from zbench.report.about import TokenBlocks
from zbench.report.columns import MOST_EVENTS, Columns
from zbench.report.overview import Table
from zbench.simulated.executor import Simulated
from zbench.trace.file import MOST_EVENTS as MOST_OPERATIONS
from zbench.trace.file import Event
from zbench.trace.whole_step import track_titles

LAYERS = 2  # a first one from a cold start, and one as those that follow it
_DRAWN = 48  # sequences drawn of a home, the longest; the others there are one piece


def timeline(batch: Batch, plans: tuple[Plan, ...], executor: Simulated) -> Table | None:
    """Returns the events of a step as columns (zbench.report.columns), of as many layers as are gathered ahead where
    those are more than LAYERS; None where there are more than MOST_EVENTS.

    Raises:
        ValueError: there is no such step.
    """
    cost = executor.cost
    ahead = StepOverlap(executor.window).layers_ahead  # a forward has no more
    layers = cost.model.num_layers if cost.pp > 1 else min(max(LAYERS, ahead), cost.model.num_layers)
    titles, drawn = track_titles(cost.gpus.cluster), replace(executor, cost=cost.of_layers(layers))
    columns, blocks = Columns(), TokenBlocks(drawn.chosen(batch, plans).steps.parts(batch, plans))
    for event, lists in drawn.events(batch, plans):
        if len(columns) == MOST_EVENTS:
            return None
        args, span = event["args"], (event["ts"], event["dur"])
        route = [args["from"], args["to"]] if "from" in args else []
        track = event["pid"] * len(titles[0]) + event["tid"]
        of = args["micro_batch"], args["layer"]
        about = blocks.what(of[0], lists)
        columns.add(track, name_with_pass(event), span, of, about, args.get("bytes", 0), route)
    return {
        "layers": layers,
        "of_layers": cost.model.num_layers,
        "measured": False,
        "tracks": [title for node in titles for title in node],
        "per_node": len(titles[0]),
        "gpus": cost.gpus.cluster.num_ranks,
        **columns.table(blocks.plans),
    }


def critical_path_table(
    batch: Batch, plans: tuple[Plan, ...], executor: Simulated, start: Line, line: Line
) -> Table | None:
    """Returns the critical path of a whole step, as `zbench critical` tells it; None where playing all layers of its
    plans would take minutes. start, line: as of zbench.critical.told.told_path."""
    layers = executor.cost.model.num_layers
    if layers * sum(len(plan.forward) + len(plan.backward) for plan in plans) > MOST_OPERATIONS:
        return None
    told = told_path(*executor.all_layers(batch, plans), start, line)
    return {"head": told.head, "sheets": [asdict(sheet) for sheet in (told.made, told.listed)]}


def name_with_pass(event: Event) -> str:
    """Writes what is done, and in which pass: 'attend forward', 'keys and values, forward'."""
    name, passing = event["name"], event["args"].get("pass", "")
    return name if not passing or passing in name.replace(",", "").split() else f"{name}, {passing}"


def homes(plans: tuple[Plan, ...], cost: Cost) -> list[Table]:
    """Lists for every micro-batch who is home of what: [owner, sequence, tokens here] rows, longest sequences first.

    The sequences of an owner beyond the first _DRAWN are one row each owner, with sequence -1. sequences: of every one
    that is named, its tokens and on how many owners it lies. owner: what one is called, as plans of tensor-parallel
    groups and of stages are not made for GPUs one by one.
    """
    return [{**_homes(plan), "owner": cost.owner} for plan in plans]


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
    return {"rows": rows, "sequences": about, "owners": plan.num_ranks}
