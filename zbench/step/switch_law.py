"""The byte law of a change of strategy: what every GPU sends and receives where a step begins with parameters and
optimizer state in other places than the step before has left them, counted from both steps' columns alone.

It shares no code with what moves them. An element of a parameter that a GPU lacks comes from one that has it: of
several, in the order of GPUs, GPU p asks number p, counted round.
"""

import numpy as np

from zbench.step.elements import element_moves, elements_held
from zbench.step.template import Step


def other_pipelines(told: str) -> ValueError:
    """Returns the error of a batch whose plans have other pipelines than those of the batch before, where optimizer
    state rests in host memory. told: the key that has it there."""
    return ValueError(
        f"plans have other pipelines than those of the batch before, and {told}; state would go from host to host, "
        "which no step does, so it takes pipelines that stay, as of one pair in system.tp_pp_pairs"
    )


def switch_bytes(before: Step, after: Step) -> list[tuple[int, int]]:
    """Returns the bytes (sent, received) of every GPU. before: the step whose ends are there; after: whose begins have
    to be.

    Raises:
        ValueError: something rests in host memory, which nothing here counts.
    """
    found = np.zeros((after.num_gpus, 2), np.int64)
    for one in element_moves(elements_held(before, before.ends), elements_held(after, after.begins)):
        number = np.cumsum(one.has, axis=0) - 1  # of a GPU among those that have a piece
        copies = np.maximum(one.has.sum(axis=0), 1)
        for gpu in np.flatnonzero(one.lacks.any(axis=1)).tolist():
            asked = one.has & (number == gpu % copies) & one.lacks[gpu]
            found[:, 0] += len(one.layers) * (asked @ one.sizes)
            found[gpu, 1] += len(one.layers) * int(one.lacks[gpu] @ one.sizes)
    return [(int(sent), int(received)) for sent, received in found]
