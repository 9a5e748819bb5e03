"""The arithmetic of a round's end against each method's recurrence, written out; the same for numpy and torch."""

import numpy as np
import pytest
import torch

from zbench.describe.sync import CO2, DILOCO, LOCAL_SGD, SLOWMO, STREAMING_DILOCO, RoundSync
from zbench.step.outer_update import outer_update, taken

ROUNDS = 5
MEANS = np.random.default_rng(0).normal(size=(ROUNDS, 6))


def outer(sync: RoundSync) -> list[np.ndarray]:
    x, m, found = np.ones(6), np.zeros(6), []
    for mean in MEANS:
        x, m = outer_update(sync, x, m, mean)
        found.append(x)
    return found


def test_local_sgd_goes_on_from_the_average() -> None:
    np.testing.assert_allclose(outer(RoundSync(LOCAL_SGD)), MEANS, rtol=1e-15)


def test_slowmo_is_its_recurrence() -> None:
    """Of momentum and differences of all rounds so far: m_t = sum of 0.6^(t-s) difference_s."""
    found = np.array([np.ones(6), *outer(RoundSync(SLOWMO, lr=0.5, momentum=0.6))])
    differences = found[:-1] - MEANS
    for at in range(ROUNDS):
        momentum = sum(0.6 ** (at - before) * differences[before] for before in range(at + 1))
        np.testing.assert_allclose(found[at + 1], found[at] - 0.5 * momentum, rtol=1e-13)


def test_diloco_is_sgd_with_nesterov_s_momentum_as_torch_writes_it() -> None:
    """torch.optim.SGD(nesterov=True): b <- momentum b + g, x <- x - lr (g + momentum b)."""
    x, b, found = np.ones(6), np.zeros(6), []
    for mean in MEANS:
        g = x - mean
        b = 0.9 * b + g
        x = x - 0.7 * (g + 0.9 * b)
        found.append(x)
    np.testing.assert_allclose(outer(RoundSync(DILOCO, lr=0.7, momentum=0.9)), found, rtol=1e-13)


def test_streaming_diloco_is_diloco_that_takes_up_what_workers_have() -> None:
    sync = RoundSync(STREAMING_DILOCO, 4, lr=0.7, momentum=0.9, delay=1, mixing=0.25)
    np.testing.assert_array_equal(outer(sync), outer(RoundSync(DILOCO, lr=0.7, momentum=0.9)))
    own, x = np.array([1.0, 2.0]), np.array([5.0, -2.0])
    np.testing.assert_array_equal(taken(sync, own, x), [4.0, -1.0])
    assert taken(RoundSync(DILOCO), own, x) is x


@pytest.mark.parametrize("clip", [None, 0.3])
def test_co2_is_slowmo_s_recurrence_with_the_difference_of_the_round_before(clip: float | None) -> None:
    """The average of round t - 1 is taken from where round t - 1 began."""
    sync = RoundSync(CO2, lr=0.5, momentum=0.6, penalty="constant", penalty_constant=2.0, clip=clip)
    began, m = [np.ones(6), np.ones(6)], np.zeros(6)  # the first round changes nothing
    for at, mean in enumerate(MEANS):
        m = 0.6 * m + (began[at] - mean) / 2.0
        began.append(began[-1] - 0.5 * (m if clip is None else np.clip(m, -clip, clip)))
    np.testing.assert_allclose(outer(sync), began[2:], rtol=1e-13)


def test_the_gap_aware_penalty_is_one_where_nothing_moved_and_grows_with_the_move() -> None:
    sync = RoundSync(CO2, lr=1.0, momentum=0.5, penalty="gap_aware")
    plain = RoundSync(CO2, lr=1.0, momentum=0.5, penalty="constant")
    x, mean = np.ones(3), np.array([0.0, 1.0, 3.0])
    for one in (sync, plain):
        np.testing.assert_allclose(outer_update(one, x, np.zeros(3), mean)[1], x - mean)
    momentum = np.full(3, 0.25)  # the last move
    difference = x + 0.25 - mean
    penalty = 1 + 0.25 / abs(difference)
    np.testing.assert_allclose(outer_update(sync, x, momentum, mean)[1], 0.125 + difference / penalty, rtol=1e-13)
    still = outer_update(sync, x, momentum, x + 0.25)[1]
    np.testing.assert_allclose(still, 0.125)  # no difference: nothing to divide, and no NaN


def test_numpy_and_torch_come_to_the_same() -> None:
    for sync in (RoundSync(DILOCO, momentum=0.9), RoundSync(CO2, momentum=0.5, penalty="gap_aware", clip=0.2)):
        arrays = np.ones(6), np.full(6, 0.1), MEANS[0]
        ours, theirs = outer_update(sync, *arrays), outer_update(sync, *(torch.from_numpy(one) for one in arrays))
        for one, other in zip(ours, theirs, strict=True):
            np.testing.assert_array_equal(one, other.numpy())


def test_a_late_average_needs_the_penalty_that_no_delay_needs() -> None:
    """A round takes a quadratic's error kappa of the way to 0. Stable is momentum + kappa / penalty < 1 where averages
    are late, and any kappa up to 1 where they are not (docs/sync.md)."""
    kappa, beta = 0.9, 0.5

    def error(sync: RoundSync, late: int) -> float:
        x, m, began = np.ones(1), np.zeros(1), [np.ones(1), np.ones(1)]
        for _ in range(400):
            x, m = outer_update(sync, x, m, (1 - kappa) * (began[-2] if late else x))
            began.append(x)
        return float(np.abs(began[-20:]).max())  # it swings

    assert error(RoundSync(SLOWMO, momentum=beta), 0) < 1e-3
    for penalty, stable in ((1.0, False), (1.7, False), (1.9, True), (3.0, True)):  # kappa / (1 - beta) is 1.8
        late = RoundSync(CO2, momentum=beta, penalty="constant", penalty_constant=penalty)
        assert (error(late, 1) < 1) == stable, penalty
