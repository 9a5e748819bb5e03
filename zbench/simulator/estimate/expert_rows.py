"""Rows that ranks send to experts on other GPUs: as many as are expected of the law by which experts are drawn."""

from collections.abc import Iterator
from math import comb

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats, Ints
from zbench.describe.links import NIC
from zbench.describe.model import Model
from zbench.step.passes.routing import ExpertParallel


def send_seconds(cost: Cost, how: ExpertParallel, tokens: Ints | Floats) -> Floats:
    """Returns the seconds for which each rank's busiest port sends its tokens to experts once, float64 [ranks].

    cost: of the ranks; how: where experts are, and how tokens choose them; tokens: [ranks], at home on each.
    """
    cluster, model, tokens = cost.cluster, cost.model, np.asarray(tokens, np.float64)
    size = model.hidden * model.element_bytes
    number, sent = np.arange(len(tokens)), np.zeros((len(cluster.links), len(tokens)))
    for there, rows in _hops(cost, how, tokens):
        link, away = cluster.link_of(number, there), number != there
        np.add.at(sent, (link[away], number[away]), cost.transfer_seconds(rows * size, link)[away])
    shared = np.bincount(cluster.nic_of, weights=sent[NIC], minlength=cluster.num_nics)
    sent[NIC] = shared[cluster.nic_of]
    return np.asarray(sent.max(axis=0), np.float64)


def _hops(cost: Cost, how: ExpertParallel, tokens: Floats) -> Iterator[tuple[Ints, Floats]]:
    """Yields a rank that each rank sends rows to, itself where it keeps them, int64 [ranks], and how many, float64
    [ranks]."""
    ranks, number = max(how.degree // cost.tp, 1), np.arange(len(tokens))  # that hold all experts together
    first = number // ranks * ranks
    if how.inside_first:
        node = max(how.node // cost.tp, 1)
        each = rows_to(how, cost.model, 1).reshape(ranks, -1).sum(axis=1).reshape(-1, node)  # [nodes of a group, ranks]
        inside = number // node * node
        of_node = np.repeat(tokens.reshape(-1, node).sum(axis=1), node)
        for at, rows in enumerate(each.sum(axis=0).tolist()):
            yield inside + at, rows * tokens
        for at in range(len(each)):
            yield first + at * node + number % node, each[at, number % node] * of_node
        return
    unit = max(how.node, 1)  # GPUs that a row goes to once
    each, unit = rows_to(how, cost.model, unit), max(unit // cost.tp, 1)
    for at, rows in enumerate(each.reshape(ranks // unit, -1).sum(axis=1).tolist()):
        # The rank of a unit that has the sender's number in its own.
        yield first + at * unit + number % unit, rows * tokens


def rows_to(how: ExpertParallel, model: Model, unit: int) -> Floats:
    """Returns the rows that a token has, as expected, on each unit of so many GPUs of those that hold all experts,
    float64 [units]."""
    count, chosen, units = model.num_experts, model.experts_per_token, how.degree // unit
    groups = max(how.degree // how.tensor_parallel, 1)
    odds = np.exp(how.odds(count))
    shares = (odds / odds.sum()).reshape(min(units, groups), -1).sum(axis=1)
    inside = count // len(shares)
    if how.padded or how.counted:  # a row for each expert that was chosen there, and rows of padding
        rows = chosen * shares * (how.capacity if how.padded and how.capacity is not None else 1.0)
    elif how.skew:  # choices one by one, of which none is left out because it was made before
        rows = 1 - (1 - shares) ** chosen
    else:
        rows = np.full(len(shares), 1 - comb(count - inside, chosen) / comb(count, chosen))
    # To every GPU of a single group that all experts are cut over.
    return np.repeat(rows, max(units // len(rows), 1))
