"""Seconds by kind: on a CPU at once; of a GPU's events, only once they are read."""

import torch

from zbench.runtime.clocks.times import KINDS, HostClock, Times


class Ticks:
    """Every moment is a tick after the one before; ticks are 0.5 s apart, and that can be told only when `settled`."""

    def __init__(self) -> None:
        self.tick, self.settled = 0, False

    def now(self) -> int:
        self.tick += 1
        return self.tick

    def between(self, began: int, ended: int) -> float:
        assert self.settled
        return 0.5 * (ended - began)


def test_spans_of_a_kind_add_up_and_are_read_at_the_end() -> None:
    clock = Ticks()
    times = Times(clock)
    began = clock.now()
    times.add("kernel", began)
    times.add("kernel", began)
    times.add("repacking", began)
    times.add("waiting", clock.now(), clock.now())
    times.add("total", began)
    clock.settled = True
    assert (times.kernel, times.repacking, times.waiting) == (0.5 + 1.0, 1.5, 0.5)
    assert (times.total, times.under_way) == (3.0, 0.0)
    times.clear()
    assert [getattr(times, kind) for kind in KINDS] == [0.0] * len(KINDS)


def test_a_cpu_has_the_hosts_clock() -> None:
    times = Times.on(torch.device("cpu"))
    assert isinstance(times.clock, HostClock)
    times.add("total", 1.25, 3.5)
    assert times.total == 2.25
    began = times.clock.now()
    times.add("kernel", began)
    assert 0 <= times.kernel <= times.clock.now() - began
