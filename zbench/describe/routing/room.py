"""The room that every expert has for a GPU's tokens, by its capacity: of the GPU's n tokens, each with k of E experts,
ceil(capacity x n k / E), dropless all n."""

import numpy as np

from zbench.describe.arrays import Ints

SEAT_BYTES = 8  # of the number of the token in a seat, and of a number of these, as indices of torch are


def expert_room(
    tokens: Ints, per_token: int, num_experts: int, capacity: float | None, at_most_all: bool = False
) -> Ints:
    """Returns the rows that every expert takes of GPUs with so many tokens, int64 like `tokens`. capacity: None,
    dropless; at_most_all: no more than there are tokens, as where rows without one are not sent."""
    if capacity is None:
        return tokens
    room = np.ceil(capacity * tokens * per_token / num_experts).astype(np.int64)
    return np.minimum(room, tokens) if at_most_all else room


def room_of_token(per_token: int, num_experts: int, capacity: float | None, at_most_all: bool = False) -> float:
    """Returns how much room at every expert each token brings, which `expert_room` rounds up to a row; arguments as
    there."""
    if capacity is None:
        return 1.0
    room = capacity * per_token / num_experts
    return min(room, 1.0) if at_most_all else room
