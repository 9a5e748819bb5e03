"""Messages that are passed on once they are here, by a thread."""

import threading
from time import sleep

import pytest

from zbench.runtime.transport.passing import PassedOn, PassingThread


class Sent:
    """A send that is under way; waiting for it ends it."""

    waited = False

    def wait(self) -> None:
        self.waited = True


def test_a_message_is_sent_when_it_is_here_and_nobody_waits_for_it_before() -> None:
    here, sent, order = threading.Event(), Sent(), list[str]()

    def send() -> Sent:
        assert here.is_set()
        order.append("sent")
        return sent

    thread, one = PassingThread(), PassedOn(here.wait, send)
    thread.give(one)
    after = PassedOn(lambda: order.append("came"), Sent)
    thread.give(after)
    assert order == []
    assert thread.is_busy
    here.set()
    one.wait()
    after.wait()
    for _ in range(1000):  # it says so when it is done with the last one
        if not thread.is_busy:
            break
        sleep(0.01)
    assert not thread.is_busy
    assert sent.waited
    assert order == ["sent", "came"]


def test_what_fails_is_raised_where_it_is_waited_for() -> None:
    def lost() -> None:
        raise ConnectionError("closed by peer")

    thread, one, other = PassingThread(), PassedOn(lost, Sent), PassedOn(lambda: None, Sent)
    thread.give(one)
    thread.give(other)
    other.wait()
    with pytest.raises(ConnectionError, match="closed by peer"):
        one.wait()


def test_a_thread_ends_with_what_has_it() -> None:
    before = set(threading.enumerate())
    thread, one = PassingThread(), PassedOn(lambda: None, Sent)
    thread.give(one)
    one.wait()
    (mine,) = set(threading.enumerate()) - before
    del thread
    mine.join(60)
    assert not mine.is_alive()
