"""What is said of the systems' order, measured and simulated."""

import pytest

from zbench.fidelity.__main__ import Fidelity, order_in_words


def one(system: str, measured: float, simulated: float) -> Fidelity:
    return Fidelity({"system": system}, measured, simulated, [0.0], 0.0, 0.0, 0.0, None, 0)


def test_one_system_has_no_order() -> None:
    assert order_in_words([one("ring", 2.0, 3.0)]) == "only ring was measured, which has no order"
    assert (
        order_in_words([one("ring", 2.0, 3.0), one("ring", 4.0, 1.0)]) == "only ring was measured, which has no order"
    )


@pytest.mark.parametrize(("simulated", "said"), [(5.0, "simulated"), (1.0, "not simulated"), (3.0, "not simulated")])
def test_of_two_systems_it_is_kept_or_not(simulated: float, said: str) -> None:
    found = [one("ring", 2.0, 3.0), one("usp", 4.0, simulated)]
    assert order_in_words(found) == f"ring and usp are {said} in the measured order"


def test_of_more_it_is_a_correlation_of_ranks() -> None:
    """Order 1, 2, 3, 4 against 1, 2, 4, 3: 1 - 6 x 2 / (4 x 15) = 0.80."""
    found = [one(name, at, (1, 2, 4, 3)[at]) for at, name in enumerate("abcd")]
    assert order_in_words(found) == "rank correlation of the order of 4 systems (Spearman): 0.80"


def test_systems_that_are_as_fast_share_their_ranks() -> None:
    """Ranks 1, 2, 3, 4 against 1, 2.5, 2.5, 4: their covariance over their deviations, 4.5 / sqrt(5 x 4.5) = 0.949."""
    found = [one(name, at, (1, 2, 2, 4)[at]) for at, name in enumerate("abcd")]
    assert order_in_words(found) == "rank correlation of the order of 4 systems (Spearman): 0.95"


def test_several_runs_of_a_system_are_one_system() -> None:
    found = [one("a", 1.0, 1.0), one("b", 2.0, 2.0), one("a", 5.0, 5.0)]  # a's mean is 3
    assert order_in_words(found) == "a and b are simulated in the measured order"
    assert order_in_words([*found, one("c", 9.0, 0.5)]).endswith("of 3 systems (Spearman): -0.50")
