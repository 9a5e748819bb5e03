"""Training on emulated nodes, where this machine allows it: exact, the plan's bytes, what is measured, nothing left."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.desk.desks import command, steps
from zbench.cost.cost import Cost
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.model import Model
from zbench.desk.attention_executor import DeskAttention
from zbench.workloads.fixed import Fixed

NET = Path("/sys/class/net")
DEVICE = Device("slow", 1e9, 2e9, 1e9, 1e9, 1e9, 1e9, 1e9, 1e-5, 1e-5)
MODEL = Model("tiny", 2, 16, 2, 2, 8, 24, 64, element_bytes=4, sharding="none")
COST = Cost(Cluster("test", 2, 2, 2, 5e6, 1.0, 1e-4, 4e7, 1.0, 1e-4, DEVICE), MODEL)


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("system", ["ring", "zeppelin", "ulysses"])
def test_a_step_is_exact_and_sends_the_plan_s_bytes(tmp_path: Path, system: str) -> None:
    out, links = tmp_path / "runs.jsonl", sorted(NET.iterdir())
    done = command(out, "steps=2", f"system={system}", "check=[exact,bytes]")
    assert done.returncode == 0, done.stderr
    assert "check=exact holds" in done.stdout
    assert "check=bytes holds" in done.stdout
    assert sorted(NET.iterdir()) == links
    for step in steps(out):
        assert step["seconds"] > step["linear_seconds"][0] > 0
        assert min(step["nic_tx_bytes"]) > 0  # gradients at least, and acknowledgements
        overrun, late = (step["phases"][name] / step["seconds"] for name in ("overrun", "late"))
        assert step["phases"]["overrun"] >= 0
        assert step["phases"]["late"] > 0  # a message's thread never starts at once, some microseconds at least
        assert step["valid"] == (overrun <= 0.05 and late <= 0.1)


@pytest.mark.usefixtures("namespaces")
def test_nics_are_sampled_and_all_that_is_measured_can_be_drawn(tmp_path: Path) -> None:
    out, trace = tmp_path / "runs.jsonl", tmp_path / "trace.json"
    done = command(out, "steps=1", "system=ring", f"trace={trace}", "executor.nic_interval=0.02")
    assert done.returncode == 0, done.stderr
    (step,) = steps(out)
    series = step["nic_series"]
    for way in ("tx", "rx"):
        assert len(series[way]) == 4
        length = len(series[way][0])
        assert step["seconds"] - 0.1 <= length * series["interval"] <= step["seconds"] + 0.5
        for carried, total in zip(series[way], step[f"nic_{way}_bytes"], strict=True):
            assert len(carried) == length
            assert 0.8 * total <= sum(carried) <= total
    events = json.loads(trace.read_text())
    assert events["otherData"] == {"simulated": False, "cluster": "desk_2x4_a800"}
    names = {event["name"] for event in events["traceEvents"] if event["ph"] == "X"}
    assert {"attend forward", "attend backward", "waiting"} <= names
    sent = [event["args"]["bytes"] for event in events["traceEvents"] if event["ph"] == "b"]
    ended = {event["id"]: event["ts"] for event in events["traceEvents"] if event["ph"] == "e"}
    assert sum(sent) > 0
    assert all(ended[event["id"]] >= event["ts"] for event in events["traceEvents"] if event["ph"] == "b")
    curves = {event["name"] for event in events["traceEvents"] if event["ph"] == "C"}
    assert curves == {f"NIC {nic} {way}" for nic in range(4) for way in ("sends", "receives")}


@pytest.mark.usefixtures("namespaces")
def test_a_device_that_this_machine_cannot_be_is_refused_before_the_first_step(tmp_path: Path) -> None:
    out = tmp_path / "runs.jsonl"
    fast = (
        "cluster.device.matmul_flops='1 PFLOP/s'",
        "cluster.device.attention_forward_flops='1 PFLOP/s'",
        "cluster.device.attention_backward_flops='1 PFLOP/s'",
        "cluster.device.copy_bandwidth='1 PB/s'",
        "cluster.device.kernel_seconds='1e-12 s'",
        "cluster.device.call_seconds='1e-12 s'",
    )
    done = command(out, "steps=2", *fast)
    assert done.returncode == 2, done.stdout
    assert "this machine cannot hold its rates for 4 ranks" in done.stderr
    assert not steps(out)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"nic_counters": False}, "executor.nic_counters is false"),
        ({"recompute": "auto"}, "executor.recompute is 'auto'; paced devices do what the cost model knows"),
        ({"parameters": "sharded"}, "emulated nodes have sharding=none and executor.parameters=replicated only"),
        ({"nic_interval": 1e-6}, r"executor.nic_interval is 1e-06; it takes a number of at least 0.001"),
        ({"fault": {"nic": 4, "step": 0}}, r"executor.fault.nic is 4; it takes a number from 0 to 3"),
        ({"fault": {"nic": 1}}, r"executor.fault.step is missing"),
        ({"fault": {"nic": 1, "step": 0, "share": 2}}, r"executor.fault.share is 2; it takes a number from 0 to 1"),
        ({"fault": {"nic": 1, "step": 0, "rate": 2}}, r"executor.fault.rate is no key"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        DeskAttention(COST, Fixed(seed=0, tokens=64, length=64), **settings)


def test_zero_is_refused() -> None:
    for name in ("zero1", "zero2"):
        with pytest.raises(ValueError, match=rf"sharding is {name} .*; emulated nodes have sharding=none"):
            DeskAttention(replace(COST, model=replace(MODEL, sharding=name)), Fixed(seed=0, tokens=64, length=64))
