"""What of gathers and reductions is beside a step's layers: what can be said, and what is refused."""

import re

import pytest

from zbench.describe.overlap import ALL, BACKWARD, END, LAYER, StepOverlap


def test_windows_and_buckets() -> None:
    assert StepOverlap.of(2) == StepOverlap(2, LAYER)
    assert StepOverlap.of(StepOverlap(0, END)) == StepOverlap(0, END)
    assert [(StepOverlap(one).layers_ahead, StepOverlap(one).gathers_first) for one in (0, 3, ALL)] == [
        (0, False),
        (3, False),
        (0, True),
    ]
    ahead = [(StepOverlap(one).forward_ahead, StepOverlap(one).layers_ahead) for one in (0, 2, ALL, BACKWARD)]
    assert ahead == [(0, 0), (2, 2), (0, 0), (0, 1)]
    assert StepOverlap(1, 5e8).gradient_bucket == 500_000_000


@pytest.mark.parametrize("value", [-1, 1.5, True, None])
def test_a_window_is_a_whole_number(value: object) -> None:
    with pytest.raises(
        ValueError, match=f"^sharding.window is {value}; it takes a whole number of at least 0, all or backward$"
    ):
        StepOverlap(value)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [0, -5, 0.5, True, None, "much", float("inf"), float("nan")])
def test_a_bucket_is_a_layer_the_end_or_a_number_of_parameters(value: object) -> None:
    told = f"sharding.gradient_bucket is {value!r}; it takes layer, end, or a whole number of a GPU's parameters"
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        StepOverlap(1, value)  # type: ignore[arg-type]


def test_a_window_by_name_is_all_or_of_the_backward() -> None:
    with pytest.raises(
        ValueError, match=r"^sharding\.window is 'most'; it takes a whole number of at least 0, all or backward$"
    ):
        StepOverlap("most")
