"""The order that the clock keeps between what a GPU computes and copies of activations to and from its host.

A copy from the host begins when what stands before it is computed on its GPU, and was sent to the host, as the memory
that it takes is free then; what stands behind a copy to the host is computed when that has arrived, as it takes the
memory that was sent. So a GPU never has more of them than the account has in plan order, however slow its link is and
however many micro-batches are under way: it waits. Frameworks keep this order by events between a stream of copies and
the one that computes. Parameters that rest in host memory and are brought to be gathered keep it as activations do.
Gradients that go to hosts, and parameters that were updated (zbench.step.passes.memory.optimizer_on_hosts), have room
of their own, and are not waited for. Where pipelines change, what rests in host memory goes over GPUs
(zbench.step.passes.parameters.switch_hosts), and nothing is computed: what a GPU gets of it begins when what it forgets
before that has left it.
"""

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.step.layout import StepLayout
from zbench.step.operations import COMPUTE, DROP, GATHER, SEND
from zbench.step.tensor import STATE


def host_copies(layout: StepLayout, ops: Ints, num_gpus: int) -> tuple[Flags, Flags]:
    """Returns which operations of a template are copies of activations to host memory; and which are of activations, or
    of parameters that GPUs then gather or compute with, from there."""
    sends = ops[:, 0] == SEND
    what = np.where(sends, ops[:, 1], 0)
    batch = np.array([layout.of_batch(at) for at in range(len(layout.tensors))])
    at_work = ((ops[:, 0] == GATHER) | ((ops[:, 0] == COMPUTE) & (ops[:, 2] < num_gpus))).any()
    brought = batch[what] | ((layout.form.natures[what] == STATE) & at_work)
    return sends & batch[what] & (ops[:, 3] >= num_gpus), sends & brought & (ops[:, 2] >= num_gpus)


def edges_inside(layout: StepLayout, ops: Ints, num_gpus: int) -> tuple[Ints, Ints]:
    """Returns the edges between operations of a template, (producers, consumers)."""
    to_host, from_host = host_copies(layout, ops, num_gpus)
    edges, computes = list[tuple[int, int]](), (ops[:, 0] == COMPUTE) & (ops[:, 2] < num_gpus)
    for gpu in np.unique(np.concatenate([ops[to_host, 2], ops[from_host, 3]])).tolist():
        own = np.flatnonzero(computes & (ops[:, 2] == gpu))
        for at in np.flatnonzero(to_host & (ops[:, 2] == gpu)).tolist():
            edges += [(at, int(own[behind]))] if (behind := np.searchsorted(own, at)) < len(own) else []
        for at in np.flatnonzero(from_host & (ops[:, 3] == gpu)).tolist():
            edges += [(int(own[before - 1]), at)] if (before := np.searchsorted(own, at)) else []
    if np.isin(ops[:, 0], (SEND, DROP)).all():
        edges += _behind_forgotten(ops, num_gpus)
    producer, consumer = np.array(edges, np.int64).reshape(-1, 2).T
    return producer, consumer


def _behind_forgotten(ops: Ints, num_gpus: int) -> list[tuple[int, int]]:
    """Returns the edges from what takes forgotten copies of tensors away from a GPU to what brings it others of these
    tensors next, once for each place that sends it something: what that sends behind it goes in order."""
    edges = list[tuple[int, int]]()
    drops = (ops[:, 0] == DROP) & (ops[:, 2] < num_gpus)
    through = np.isin(ops[:, 1], ops[drops, 1]) & (ops[:, 0] == SEND)
    for gpu in np.unique(ops[drops, 2]).tolist():
        forgotten = np.flatnonzero(drops & (ops[:, 2] == gpu))
        away, brings = (np.flatnonzero(through & (ops[:, at] == gpu)) for at in (2, 3))
        away = away[np.isin(ops[away, 1], ops[forgotten, 1])]
        last = {int(ops[at, 1]): at for at in forgotten.tolist()}  # where each tensor is forgotten
        gone = np.sort([last[int(tensor)] for tensor in ops[away, 1]])
        away = away[np.argsort([last[int(tensor)] for tensor in ops[away, 1]], kind="stable")]
        known = dict[int, int]()
        for at in brings.tolist():
            count, src = int(np.searchsorted(gone, at)), int(ops[at, 2])
            edges += [(one, at) for one in away[known.get(src, 0) : count].tolist()]
            known[src] = count
    return edges
