"""How many rows a GPU is sent for its experts, as expected of laws, beside what is drawn."""

from math import comb

import numpy as np
import pytest

from zbench.describe.arrays import Ints
from zbench.describe.expert_schedule import DIRICHLET, ZIPF
from zbench.describe.routing.choices import busiest_slice
from zbench.describe.routing.popularity import Popularity
from zbench.describe.routing.room import expert_room, room_of_token
from zbench.step.passes.router.capacity import with_room

TOKENS = 100_000
LAWS = [
    Popularity(ZIPF, 0.9, step=3),
    Popularity(ZIPF, 3.0, step=1),
    Popularity(ZIPF, 0.9, drift=20, seed=4, step=7),
    Popularity(DIRICHLET, 0.5, seed=2),
    Popularity(DIRICHLET, 3.0, seed=1, step=1),
]


def drawn(law: Popularity, experts: int, per_token: int, room: float | None) -> Ints:
    """Experts of tokens of one GPU, [tokens, experts a token]; ~expert where one has no room."""
    noise = np.random.default_rng(5).gumbel(size=(TOKENS, experts))
    chosen = np.argpartition(-(law.odds(experts) + noise), per_token - 1)[:, :per_token]
    if room is None:
        return chosen
    return with_room(chosen, np.zeros(TOKENS, np.int64), np.array([int(np.ceil(room * TOKENS))]), experts)


@pytest.mark.parametrize("law", LAWS, ids=str)
@pytest.mark.parametrize("shape", [(8, 8, 2), (8, 2, 2), (16, 4, 6), (8, 1, 2)], ids=str)
@pytest.mark.parametrize("capacity", [None, 1.25, 0.5])
def test_rows_are_those_that_are_drawn(law: Popularity, shape: tuple[int, int, int], capacity: float | None) -> None:
    """To four standard deviations of a draw's mean, and what a capacity drops, which goes token by token, to 1 %."""
    experts, slices, per_token = shape
    room = None if capacity is None else room_of_token(per_token, experts, capacity)
    found, chosen = busiest_slice(law, experts, slices, per_token, room), drawn(law, experts, per_token, room)
    count = np.zeros((TOKENS, slices), np.int64)
    for one in chosen.T:
        np.add.at(count, (np.flatnonzero(one >= 0), one[one >= 0] // (experts // slices)), 1)
    rows, each = (count > 0).mean(axis=0).max(), count.mean(axis=0)
    less = 0.0 if room is None else 0.01
    spread = 4 / np.sqrt(TOKENS)
    assert found.rows == pytest.approx(rows, abs=spread * np.sqrt(found.rows_variance) + less * rows + 2e-4)
    assert found.experts == pytest.approx(
        each.max(), abs=spread * np.sqrt(found.experts_variance) + less * each.max() + 2e-4
    )
    assert found.least == pytest.approx(each.min(), rel=0.05, abs=1e-3)
    if room is None:
        assert count.var(axis=0).max() == pytest.approx(found.experts_variance, rel=0.05, abs=1e-3)


@pytest.mark.parametrize("shape", [(8, 4, 2), (64, 8, 6), (256, 32, 8)], ids=str)
def test_even_experts_are_hypergeometric(shape: tuple[int, int, int]) -> None:
    experts, slices, per_token = shape
    found, own = busiest_slice(Popularity(), experts, slices, per_token, None), experts // slices
    none = comb(experts - own, per_token) / comb(experts, per_token)
    share = own / experts
    variance = per_token * share * (1 - share) * (experts - per_token) / (experts - 1)
    assert found.rows == pytest.approx(1 - none, rel=2e-4)
    assert found.experts == pytest.approx(per_token * share, rel=2e-4)
    assert found.experts_variance == pytest.approx(variance, rel=1e-3)


def test_no_step_s_gpu_has_more_than_that_of_the_most_popular_experts() -> None:
    every = Popularity(ZIPF, 0.9, seed=3, step=None)
    most = busiest_slice(every, 16, 4, 6, None)
    for step in range(10):
        one = busiest_slice(Popularity(ZIPF, 0.9, seed=3, step=step), 16, 4, 6, None)
        assert one.rows <= most.rows + 1e-12
        assert one.experts <= most.experts + 1e-12


def test_room_is_a_whole_number_of_rows() -> None:
    tokens = np.array([0, 1, 37, 40])
    assert expert_room(tokens, 2, 8, None).tolist() == tokens.tolist()
    assert expert_room(tokens, 2, 8, 1.25).tolist() == [0, 1, 12, 13]
    assert expert_room(tokens, 2, 8, 1.1).tolist() == [0, 1, 11, 11]
    assert expert_room(tokens, 2, 8, 8.0).tolist() == [0, 2, 74, 80]
    assert expert_room(tokens, 2, 8, 8.0, at_most_all=True).tolist() == tokens.tolist()
    assert room_of_token(2, 8, 8.0, at_most_all=True) == 1.0 == room_of_token(2, 8, None)
