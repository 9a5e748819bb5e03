"""Four real ranks measure: every operation runs in every element size and shape, and more work takes longer."""

from collections.abc import Iterator
from dataclasses import replace
from statistics import fmean

import pytest

from zbench.calibrate.subject import AttentionCall, Subject, layer_shapes, others
from zbench.describe.model import Model
from zbench.runtime.processes.launch import LocalFleet

MODEL = Model(
    "small",
    num_layers=2,
    hidden=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=16,
    ffn_hidden=192,
    vocab=256,
    num_experts=3,
    experts_per_token=2,
    element_bytes=4,
)
WINDOW = 0.02


def fleet_of(subject: Subject) -> LocalFleet:
    return LocalFleet(subject.num_ranks, "zbench.calibrate.measure:Measure", subject)


@pytest.fixture(scope="module")
def fleet() -> Iterator[LocalFleet]:
    with fleet_of(Subject(MODEL, 2, 2, 1, 64, "auto")) as made:
        yield made


def rate(fleet: LocalFleet, method: str, *arguments: object) -> float:
    rates = fleet.call(method, *arguments, WINDOW)
    assert all(rate > 0 for rate in rates)
    return fmean(rates)


def test_ranks_say_who_they_are(fleet: LocalFleet) -> None:
    abouts = fleet.call("about")
    assert len({about.host for about in abouts}) == 1
    for about in abouts:
        assert (about.backend, about.kernel) == ("gloo", "torch-flash-cpu")
        assert about.device
        assert about.cores >= 1
        assert 2**20 < 4 * about.memory_bytes < 2**50


def test_ranks_say_what_their_processors_do(fleet: LocalFleet) -> None:
    before = fleet.call("used")
    fleet.call("matmul", [(256, 256, 256)], False, 0.3)
    after = fleet.call("used")
    for b, a in zip(before, after, strict=True):
        assert 0.3 < a.now - b.now < 30
        assert 0 < a.own - b.own < 2 * (a.now - b.now)  # gloo has a thread too
        assert 0 < a.busy - b.busy < (b.cores + 0.1) * (a.now - b.now)
    assert 0 <= others(before, after) < 1


def test_more_work_takes_longer(fleet: LocalFleet) -> None:
    shapes = layer_shapes(MODEL, 64)
    assert rate(fleet, "matmul", shapes, False) > 0
    assert rate(fleet, "matmul", [(32, 32, 32)], False) > 2 * rate(fleet, "matmul", [(512, 512, 512)], True)
    for backward in (False, True):
        assert rate(fleet, "attention", AttentionCall.whole(16), backward) > 2 * rate(
            fleet, "attention", AttentionCall.whole(1024), backward
        )
    assert rate(fleet, "multiply", 4, 8) > 2 * rate(fleet, "multiply", 4096, 512)
    assert rate(fleet, "permute", 4) > 2 * rate(fleet, "permute", 1 << 16)
    assert rate(fleet, "smallest") > 100


@pytest.mark.parametrize("across", [True, False])
def test_large_messages_take_longer(fleet: LocalFleet, across: bool) -> None:
    for method, more in (("exchange", (False,)), ("exchange", (True,)), ("together", ())):
        fleet.call(method, across, *more, 8, 2)
        calls = [fleet.call(method, across, *more, size, 5) for size in (8, 1 << 24)]
        small, large = (fmean(one for one in call if one is not None) for call in calls)
        assert 0 < 2 * small < large


def test_a_message_through_all_nics_is_timed_where_it_starts() -> None:
    """Of 3 GPUs on 2 NICs the second NIC's first one is the third."""
    subject = Subject(MODEL, 2, 3, 2, 64, "auto")
    assert [subject.proxies(node) for node in range(2)] == [[0, 2], [3, 5]]
    with fleet_of(subject) as fleet:
        for size in (8, 1 << 22):
            found = fleet.call("routed", size, 2)
            assert [rank for rank, seconds in enumerate(found) if seconds is not None] == [0, 3]
            assert all(seconds > 0 for seconds in found if seconds is not None)
        alone = fleet.call("exchange", True, True, 1 << 16, 2)
        assert [rank for rank, seconds in enumerate(alone) if seconds is not None] == [0, 2, 3, 5]


@pytest.mark.parametrize("element_bytes", [2, 8])
def test_other_element_sizes(element_bytes: int) -> None:
    with fleet_of(Subject(replace(MODEL, element_bytes=element_bytes), 1, 1, 1, 64, "auto")) as fleet:
        for backward in (False, True):
            assert rate(fleet, "attention", AttentionCall.whole(64), backward) > 0
            assert rate(fleet, "matmul", [(8, 8, 8)], backward) > 0
