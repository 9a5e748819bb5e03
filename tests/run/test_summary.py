"""Sentences below a run's table."""

from types import SimpleNamespace
from typing import Any

import pytest

from zbench.run.summary import about_words

PUBLISHED = {"wait": "published", "run_ahead": "published", "padding": "published"}


@pytest.mark.parametrize(
    ("system", "simulated", "told"),
    [
        (PUBLISHED, False, "system.wait and system.run_ahead: no rank waits for more than data here; only clocks play"),
        ({"routed_transfers": "serial"}, False, "system.routed_transfers: no rank waits for more than data here"),
        (PUBLISHED, True, ""),
        ({"wait": "overlapped"}, False, ""),
    ],
)
def test_measured_runs_say_which_waits_of_plans_nobody_did(system: dict[str, Any], simulated: bool, told: str) -> None:
    facts = {
        "cluster": "c",
        "num_nodes": 1,
        "gpus_per_node": 2,
        "device": "d",
        "nics_per_node": 1,
        "nic_bandwidth": 1e9,
    }
    start = {"config": {"system": system, "choices": {"executor": "torch"}}, "facts": facts}
    own: Any = SimpleNamespace(start=start)
    parts: Any = SimpleNamespace(simulated=simulated, executor=None)
    found = [line for line in about_words(own, parts, []) if "no rank waits" in line]
    assert [line.startswith(told) for line in found] == ([True] if told else [])
