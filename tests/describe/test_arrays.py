"""zbench.describe.arrays: numbers once, ascending."""

import numpy as np
import pytest

from zbench.describe.arrays import distinct


@pytest.mark.parametrize("size", [0, 1, 2, 1000])
def test_distinct_is_what_numpy_says(size: int) -> None:
    values = np.random.default_rng(size).integers(-50, 50, size)
    before = values.copy()
    found = distinct(values)
    assert np.array_equal(found, np.unique(values))
    assert found.dtype == values.dtype
    assert np.array_equal(values, before)
