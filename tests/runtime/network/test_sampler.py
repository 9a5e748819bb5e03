"""What NICs carry while a step runs, from counters that a test turns."""

from pathlib import Path
from time import perf_counter

from tests.helpers.processes import until
from zbench.runtime.network.nic import PhysicalCounters
from zbench.runtime.network.sampler import Read, Sampler


class Counters:
    """Two NICs; the first sends 1000 bytes a second, the second receives a byte whenever somebody looks."""

    def __init__(self) -> None:
        self.moments: list[float] = []
        self.sent: list[int] = []

    @property
    def looks(self) -> int:
        return len(self.moments)

    def read(self) -> Read:
        self.moments.append(perf_counter())
        self.sent.append(int(1000 * (self.moments[-1] - self.moments[0])))
        return {"a": (self.sent[-1], 0), "b": (0, self.looks)}


def test_a_series_adds_up_to_what_was_carried() -> None:
    counters = Counters()
    sampler = Sampler(counters, 0.02)
    for _ in range(2):  # nothing is left of a step in the next
        looks = counters.looks
        sampler.begin()
        assert until(lambda before=looks: counters.looks >= before + 10)  # type: ignore[misc]
        total, series = sampler.end(), sampler.series()
        sent, moments = counters.sent[looks:], sampler._moments
        assert total == {"a": (sent[-1] - sent[0], 0), "b": (0, len(sent) - 1)}
        assert series["interval"] == 0.02
        assert len(series["tx"]) == len(series["rx"]) == 2
        # The series ends with the last interval that is whole, less than one before the end.
        least = max(one for one, at in zip(sent, moments, strict=True) if at <= moments[-1] - 0.02)
        assert least - sent[0] <= sum(series["tx"][0]) <= total["a"][0]
        assert sum(series["tx"][1]) == sum(series["rx"][0]) == 0


def test_without_an_interval_only_the_ends_are_looked_at() -> None:
    counters = Counters()
    sampler = Sampler(counters, None)
    sampler.begin()
    assert sampler.end()["b"] == (0, 1)
    assert sampler.series() == {}


def test_the_first_rank_of_a_node_alone_looks_in_between() -> None:
    assert Sampler.of_node(True, None, 0.02)._interval == 0.02
    assert Sampler.of_node(False, None, 0.02)._interval is None


def written(counter: Path, value: int) -> None:
    counter.parent.mkdir(parents=True, exist_ok=True)
    counter.write_text(f"{value}\n")


def test_physical_nics_count_infiniband_in_words_and_others_in_bytes(tmp_path: Path) -> None:
    """An interface without a device behind it is none; where a port of InfiniBand is, the others are left out."""
    infiniband, net = tmp_path / "infiniband", tmp_path / "net"
    for name in ("eth0", "lo"):
        written(net / name / "statistics" / "tx_bytes", 7)
        written(net / name / "statistics" / "rx_bytes", 9)
    (net / "eth0" / "device").mkdir()
    assert PhysicalCounters.of(infiniband, net).read() == {"eth0": (7, 9)}
    written(infiniband / "mlx5_0" / "ports" / "1" / "counters" / "port_xmit_data", 5)
    written(infiniband / "mlx5_0" / "ports" / "1" / "counters" / "port_rcv_data", 6)
    assert PhysicalCounters.of(infiniband, net).read() == {"mlx5_0:1": (20, 24)}
