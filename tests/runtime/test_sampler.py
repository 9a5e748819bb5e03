"""What NICs carry while a step runs, from counters that a test turns."""

import time

import pytest

from zbench.runtime.sampler import Read, Sampler


class Counters:
    """Two NICs; the first sends 1000 bytes a second, the second receives a byte whenever somebody looks."""

    def __init__(self) -> None:
        self.began, self.looks = time.perf_counter(), 0

    def read(self) -> Read:
        self.looks += 1
        return {"a": (int(1000 * (time.perf_counter() - self.began)), 0), "b": (0, self.looks)}


def test_a_series_adds_up_to_what_was_carried() -> None:
    counters = Counters()
    sampler = Sampler(counters, 0.02)
    for _ in range(2):  # nothing is left of a step in the next
        looks = counters.looks
        sampler.begin()
        time.sleep(0.2)
        total, series = sampler.end(), sampler.series()
        assert total["a"][0] == pytest.approx(200, rel=0.5)
        assert total["b"] == (0, counters.looks - looks - 1)
        assert counters.looks - looks >= 5  # a busy machine is late
        assert series["interval"] == 0.02
        assert len(series["tx"]) == len(series["rx"]) == 2
        assert total["a"][0] - 25 <= sum(series["tx"][0]) <= total["a"][0]
        assert sum(series["tx"][1]) == sum(series["rx"][0]) == 0


def test_without_an_interval_only_the_ends_are_looked_at() -> None:
    counters = Counters()
    sampler = Sampler(counters, None)
    sampler.begin()
    assert sampler.end()["b"] == (0, 1)
    assert sampler.series() == {}
