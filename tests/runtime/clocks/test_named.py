"""Which waits were for another rank and which for a link, by messages' names."""

import pytest

from zbench.runtime.clocks.named import NamedMessages, NamedMoments, Waited, machine, seconds_for_ranks


def test_a_wait_is_for_the_sender_until_it_posts_and_for_the_link_from_then_on() -> None:
    """Rank 1 waits from 10 to 14 for a message posted at 13, from 20 to 21 for one posted before, and from 30 to 31 for
    one whose sender's clock says later than it came: never for longer than it waited."""
    sent = {(1, 0): 13.0, (1, 1): 5.0, (1, 2): 40.0, (2, 0): 11.0}
    waited = [Waited((0, 0), 10.0, 14.0), Waited((0, 1), 20.0, 21.0), Waited((0, 2), 30.0, 31.0)]
    every = [NamedMessages("m", sent, ()), NamedMessages("m", {}, waited), NamedMessages("m", {}, ())]
    assert seconds_for_ranks(every) == [0, 3 + 0 + 1, 0]


@pytest.mark.parametrize("machines", [("a", "b"), ("", ""), ("a", "")])
def test_ranks_without_a_clock_in_common_are_not_told_apart(machines: tuple[str, str]) -> None:
    waited = [Waited((0, 0), 10.0, 14.0)]
    every = [NamedMessages(machines[0], {(1, 0): 13.0}, ()), NamedMessages(machines[1], {}, waited)]
    assert seconds_for_ranks(every) is None
    assert seconds_for_ranks([one._replace(machine="a") for one in every]) == [0, 3]


def test_nothing_is_told_where_no_message_has_a_name() -> None:
    assert seconds_for_ranks([NamedMessages("m"), NamedMessages("m")]) is None


def test_moments_are_noted_within_a_step_alone() -> None:
    moments = NamedMoments()
    moments.leaves((1, 0))
    moments.waited((1, 0), 0.0, 1.0)
    moments.begin()
    moments.leaves((1, 1))
    moments.waited((1, 1), 2.0, 3.0)
    moments.waited(None, 2.0, 3.0)
    found = moments.end()
    moments.leaves((1, 2))
    assert found.sent.keys() == {(1, 1)}
    assert found.waited == [Waited((1, 1), 2.0, 3.0)]
    assert found.machine == machine() != ""
    moments.begin()
    assert moments.end() == NamedMessages(machine(), {}, [])
