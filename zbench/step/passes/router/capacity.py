"""The room that experts have for the tokens of every GPU: which choices they take, and how many rows fill the rest."""

import numpy as np

from zbench.describe.arrays import Ints


def with_room(chosen: Ints, gpu: Ints, room: Ints, num_experts: int) -> Ints:
    """Returns choices with those as ~expert that an expert has no room for: of each GPU's tokens it takes the first in
    their order. gpu: int64 [tokens]; room: int64 [GPUs], the tokens that every expert takes of a GPU's."""
    key = (gpu[:, None] * num_experts + chosen).reshape(-1)
    order = np.argsort(key, kind="stable")
    counts = np.bincount(key)
    place = np.empty_like(key)  # of each choice among those of its GPU's tokens and its expert
    place[order] = np.arange(len(key)) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.where(place.reshape(chosen.shape) < room[gpu][:, None], chosen, ~chosen)


def padding_rows(tokens: Ints, home: Ints, room: Ints) -> Ints:
    """Returns the rows by which each GPU fills its room at every expert, which go with the last of its parts, int64
    [parts, experts]. tokens: of each part that go to each expert."""
    found, last = np.zeros_like(tokens), np.full(len(room), -1)
    np.maximum.at(last, home, np.arange(len(home)))
    of_gpu = np.zeros((len(room), tokens.shape[1]), np.int64)
    np.add.at(of_gpu, home, tokens)
    there = last >= 0
    found[last[there]] = (room[:, None] - of_gpu)[there]
    return found
