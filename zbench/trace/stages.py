"""Events of groups of ranks that hold a part of the layers each. Pure: no torch.

Of pipelines (zbench.plans.pipelines) and jobs with stages (zbench.cost.stacks) a stage's layers are one event a
micro-batch, and what is not hidden of collectives is at their end.
"""

from collections.abc import Iterator

import numpy as np

from zbench.cost.collective import Collectives, Sharing
from zbench.cost.cost import Cost
from zbench.cost.stage import held
from zbench.plans.plan import Plan
from zbench.runtime.clocks.events import OPTIMIZER, REDUCE
from zbench.simulator.pipelined import lines, play
from zbench.simulator.simulate import programs
from zbench.simulator.staged import play as staged_play
from zbench.simulator.staged import run
from zbench.trace.file import Event
from zbench.trace.tracks import GATHER, SHOWN, collective, complete_event, spans


def pipeline_events(plans: tuple[Plan, ...], cost: Cost) -> Iterator[Event]:
    """Yields the events of pipelines: every micro-batch's forward and backward on every rank of a stage, its layers in
    one."""
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
                    yield complete_event(name, node, local, begin, took, args)
    sharing = Sharing(Collectives.of(cost, held(pipelines, cost)))
    end = play(plans, cost, sharing, moved=False).end
    yield from _after(end - sharing.exposed, end, sharing.of, cost)


def stage_events(plans: tuple[Plan, ...], cost: Cost) -> Iterator[Event]:
    """Yields the events of jobs with stages: every micro-batch's forward and backward on every rank of a stage, its
    layers in one."""
    cluster, parts, last = cost.cluster, [programs(plan, cost) for plan in plans], 0.0
    for turn in run(plans, parts, cost):
        args, last = {"micro_batch": turn.micro, "stage": turn.stage}, max(last, float(turn.end.max()))
        for rank in np.flatnonzero(turn.end > turn.begin).tolist():
            node, local = divmod(rank, cluster.gpus_per_node)
            node += turn.stage * cluster.num_nodes
            begin, took = float(turn.begin[rank]), float(turn.end[rank] - turn.begin[rank])
            yield complete_event("backward" if turn.backward else "forward", node, local, begin, took, args)
    sharing = Sharing(Collectives.of(cost))
    end = staged_play(plans, parts, cost, sharing)[0].end
    yield from _after(last, end, sharing.of, cost)


def _after(layers: float, end: float, of: Collectives, cost: Cost) -> Iterator[Event]:
    """Yields the collectives beside and after the layers of pipelines and stages, which end at `layers`; the optimizer
    begins at `end`."""
    if of.every_step:
        start = 0.0 if of.overlap else layers
        yield from collective(GATHER, start, of.gather, of.gather_bytes, cost, {})
    yield from collective(REDUCE, end - of.reduce, of.reduce, of.reduce_bytes, cost, {})
    ranks = cost.whole.num_ranks
    yield from spans(SHOWN["backward"], np.full(ranks, layers), np.full(ranks, end - layers), cost, {})
    yield from spans(OPTIMIZER, np.full(ranks, end), np.full(ranks, cost.optimizer_seconds()), cost, {})
