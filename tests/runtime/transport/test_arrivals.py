"""What is under way to a process, and what leaves when it has come."""

import threading

import torch

from zbench.runtime.transport.arrivals import Arrival, Later


class CountedWork:
    """A message that comes when it is let. waited: how often it was waited for."""

    def __init__(self) -> None:
        self.let, self.waited = threading.Event(), 0

    def wait(self) -> None:
        self.waited += 1
        assert self.let.wait(60)


def test_a_message_is_waited_for_once_whoever_asks() -> None:
    work, data = CountedWork(), torch.arange(3, dtype=torch.uint8)
    arrival = Arrival(data, [work])
    threads = [threading.Thread(target=arrival.wait) for _ in range(3)]
    for one in threads:
        one.start()
    assert not arrival.is_here
    work.let.set()
    for one in threads:
        one.join(60)
    assert arrival.wait() is data
    assert (arrival.is_here, arrival.size, work.waited) == (True, 3, 1)


def test_what_leaves_later_is_put_together_once_when_all_has_come() -> None:
    works, made = [CountedWork(), CountedWork()], list[int]()

    def put_together() -> torch.Tensor:
        assert all(one.let.is_set() for one in works)
        made.append(1)
        return torch.ones(4, dtype=torch.uint8)

    later = Later([Arrival(torch.empty(1), [one]) for one in works], put_together, 4)
    threads = [threading.Thread(target=later.wait) for _ in range(2)]  # of two shares of one message
    for thread in threads:
        thread.start()
    for work in works:
        assert not made
        work.let.set()
    for thread in threads:
        thread.join(60)
    assert made == [1]
    assert later.wait().sum() == later.size
