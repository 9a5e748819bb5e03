"""Processes that train in rounds have as many bytes at their fullest as the account of the same run simulated says
(the table of docs/memory/measured.md: python -m tests.bench.held_rounds)."""

import pytest

from tests.bench.held_rounds import MEMORIES, SYNCS, held_rounds

pytestmark = pytest.mark.usefixtures("one_thread")

CASES = [
    ("zeppelin", "slowmo", "ZeRO-2"),
    ("ring", "co2", "as alst, 8 tokens, ZeRO-3"),
    ("zeppelin", "streaming_diloco", "chunked, 8 tokens, ZeRO-3"),
    ("ulysses", "streaming_diloco, ranks", "state on hosts, ZeRO-2"),
]


@pytest.mark.parametrize(("system", "sync", "memory"), CASES)
def test_rounds_hold_what_is_accounted(system: str, sync: str, memory: str) -> None:
    """Every process has what is accounted to 3 %: parameters, outer ones and averages under way."""
    of = held_rounds(system, SYNCS[sync], MEMORIES[memory])
    assert of.measured == pytest.approx(of.accounted, rel=0.03)


def test_rounds_of_few_tokens_beside_wide_feed_forwards_hold_what_is_accounted() -> None:
    """Nearly all there is are parameters: every worker's, their sum and the outer ones, together when a round ends."""
    memory = {"sharding": "zero3", "ffn_hidden": 512, "recompute": "full"}
    of = held_rounds("ring", SYNCS["slowmo"], memory)
    assert of.measured == pytest.approx(of.accounted, rel=0.01)
