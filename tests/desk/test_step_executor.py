"""Whole steps on emulated nodes, where this machine allows it: exact, the step's bytes, and an account that closes.

Whatever else the machine does, a paced device takes as long as the clock has it, and longer by what is told as overrun.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.test_conformance import MODEL
from tests.runtime.test_measured_steps import nic_bytes, tracks_of
from tests.runtime.test_step_executor import WORKLOAD, trained
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost, worker_cost
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.exchanges import COMMFUSE, ExchangeOverlap
from zbench.describe.expert_schedule import Experts
from zbench.describe.sync import CO2, LOCAL_SGD, RoundSync
from zbench.desk.step_executor import Desk
from zbench.interfaces.dealt import WorkerPlans
from zbench.interfaces.result import COMPUTES, StepResult
from zbench.simulated.executor import Simulated
from zbench.systems.local_packing import LocalPacking
from zbench.systems.ring import Ring

pytestmark = pytest.mark.usefixtures("one_thread")

# Slow, so that what is to be computed has time on a machine that others use, too.
DEVICE = Device("slow", 4e7, 2e9, 4e6, 4e6, 4e6, 4e6, 1e9, 1e-5, 1e-5)


def cost_of(nodes: int, gpus: int, **model: Any) -> Cost:
    fields = {name: getattr(MODEL, name) for name in MODEL.__dataclass_fields__} | model
    return make_cost(
        Cluster("desk", nodes, gpus, 1, 2e6, 1.0, 0.0, 2e6, 1.0, 0.0, DEVICE), type(MODEL)(**fields), False
    )


def computed(step: StepResult) -> float:
    return sum(sum(step.seconds_for.get(name, [])) for name in COMPUTES if name != "interpreter")


def assert_paced(found: Sequence[StepResult], played: Sequence[StepResult], ranks: int) -> None:
    for one, other in zip(found, played, strict=True):
        more = computed(one) - computed(other)
        assert -1e-6 < more < ranks * one.phases["overrun"] + 1e-6
        assert one.linear_seconds[0] > 0.9 * other.linear_seconds[0]
        assert one.attention_seconds[0] > 0.9 * other.attention_seconds[0]


@pytest.mark.usefixtures("namespaces")
def test_a_group_s_exchanges_are_exact_and_take_as_long_as_devices_and_links_do() -> None:
    cost, exchanges = cost_of(1, 2, tensor_parallel=2), ExchangeOverlap(COMMFUSE)
    desk = Desk(cost, WORKLOAD, warmup=0, check=("exact", "bytes"), exchanges=exchanges)
    (found,) = trained(desk, Ring(cost), 1)
    (played,) = trained(Simulated(cost, exchanges=exchanges), Ring(cost), 1)
    assert found.checks["exact"] < 1e-12
    assert found.checks["bytes"] > 0
    assert_paced([found], [played], cost.tp)
    assert np.sum(list(found.seconds_for.values()), axis=0) == pytest.approx([found.seconds] * 2)
    assert sum(found.seconds_for["waiting_link"]) > 0
    assert "waiting_messages" not in found.seconds_for
    assert found.nic_tx_bytes[0] < 10_000  # of one node, whose ranks' messages stay in it


@pytest.mark.usefixtures("namespaces")
def test_a_trace_has_the_device_s_seconds_and_the_payload_of_nics(tmp_path: Path) -> None:
    """Attends take as long as the record says, and so do waits; NICs' counters have headers besides."""
    cost, batch = cost_of(2, 1, sharding="zero3"), WORKLOAD.batch(0)
    desk = Desk(cost, WORKLOAD, warmup=0)
    try:
        desk.start()
        found = desk.traced_step(batch, Ring(cost).plan(batch), str(tmp_path / "t.json"))
    finally:
        desk.stop()
    tracks = tracks_of(tmp_path / "t.json")
    for rank in (0, 1):
        mine = [(one["name"].partition(" ")[0], 1e-6 * one["dur"]) for one in tracks[f"GPU {rank}"]]
        attends, waits = (sum(took for name, took in mine if name == kind) for kind in ("attend", "waiting"))
        assert attends == pytest.approx(found.attention_seconds[rank], abs=1e-6 * len(mine))
        assert waits == pytest.approx(found.exposed_seconds[rank], abs=1e-6 * len(mine))
    sent = nic_bytes(tracks, "sends", 2)
    assert [dict(one) for one in sent] == [{name: of[nic] for name, of in found.nic_tx_for.items()} for nic in (0, 1)]
    assert all(one.total() < counted for one, counted in zip(sent, found.nic_tx_bytes, strict=True))
    curves = [one for one in json.loads((tmp_path / "t.json").read_text())["traceEvents"] if one["ph"] == "C"]
    assert {one["name"] for one in curves} == {f"NIC {nic} {way}" for nic in (0, 1) for way in ("sends", "receives")}


@pytest.mark.usefixtures("namespaces")
def test_workers_wait_for_each_other_at_the_end_of_a_round_alone() -> None:
    """One of two workers has three sequences of five; rounds of two steps. A round's seconds are those of the slower
    worker and of the end, and what both went to sums to them."""
    cost, sync = cost_of(2, 1, sharding="none"), RoundSync(LOCAL_SGD, 2, "node")
    system = WorkerPlans(LocalPacking(worker_cost(cost, sync)), 2)
    found = trained(Desk(cost, WORKLOAD, warmup=0, check=("bytes",), sync=sync), system, 2)
    played = trained(Simulated(cost, sync=sync), system, 2)
    assert_paced(found, played, 2)
    own = [sum(sum(values[rank] for values in one.seconds_for.values()) for one in found) for rank in (0, 1)]
    assert own == pytest.approx([sum(one.seconds for one in found)] * 2)
    assert "wait" not in found[0].phases
    assert found[1].phases["wait"] > 0
    assert found[1].phases["round_end"] > 0
    sent = [sum(sizes) for sizes in (found[1].nic_tx_bytes, found[1].nic_tx_for["gradients"])]
    assert sent[0] > 0.8 * sent[1] > 0  # the counters', with headers; what is in a socket's buffer has not left yet
    assert len(found[1].nic_series["tx"]) == 2


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"device": "cuda"}, "^executor.device is 'cuda'; emulated nodes compute on the CPU"),
        ({"nic_counters": False}, "^executor.nic_counters is false; on emulated nodes the NICs' counters"),
        ({"nic_interval": 1e-6}, "^executor.nic_interval is 1e-06; it takes a number of at least 0.001"),
        ({"fault": {"nic": 4, "step": 0}}, "^executor.fault.nic is 4; it takes a number from 0 to 1"),
        ({"checkpoint_every": 1}, "^executor.checkpoint_every is 1; executor=desk measures rounds whole"),
        ({"resume": "x"}, "^resume is x; executor=desk measures rounds whole"),
        (
            {"experts": Experts(routing="token_choice")},
            "^experts.routing is token_choice; a paced device takes as long",
        ),
        ({"sync": RoundSync(CO2, 2, "rank", penalty="constant")}, "^sync is co2; on emulated nodes workers pause"),
    ],
)
def test_what_emulated_nodes_cannot_be(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Desk(cost_of(2, 1), WORKLOAD, **settings)


def test_host_memory_has_no_link() -> None:
    with pytest.raises(ValueError, match=r"^memory.offload is optimizer; emulated nodes have no link to host memory"):
        Desk(cost_of(2, 1, offload="optimizer"), WORKLOAD)
