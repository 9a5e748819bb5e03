"""Training on emulated nodes, where this machine allows it: exact, the plan's bytes, and nothing left."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from zbench.desk.namespaces import NoDesk, made

ROOT = Path(__file__).parents[2]
NET = Path("/sys/class/net")
SMALL = (
    "executor=desk", "cluster=desk_2x4_a800", "cluster.gpus_per_node=2", "cluster.nics_per_node=1",
    "workload=longtail_4k", "workload.context_limit=256", "tokens_per_gpu=64", "steps=2", "baseline=null",
    "tracker=none",
)  # fmt: skip


@pytest.fixture(autouse=True)
def possible() -> None:
    try:
        os.close(made())
    except NoDesk as error:
        pytest.skip(str(error))


def command(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    line = [sys.executable, "-m", "zbench", *words]
    return subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)


@pytest.mark.parametrize("system", ["ring", "zeppelin", "ulysses"])
def test_a_step_is_exact_and_sends_the_plan_s_bytes(tmp_path: Path, system: str) -> None:
    out, links = tmp_path / "runs.jsonl", sorted(NET.iterdir())
    done = command(*SMALL, f"system={system}", f"out={out}", "check=[exact,bytes]")
    assert done.returncode == 0, done.stderr
    assert "check=exact holds" in done.stdout
    assert "check=bytes holds" in done.stdout
    assert sorted(NET.iterdir()) == links
    steps = [line for line in map(json.loads, out.read_text().splitlines()) if line["kind"] == "step"]
    for step in steps:
        assert step["seconds"] > step["linear_seconds"][0] > 0
        assert min(step["nic_tx_bytes"]) > 0  # gradients at least, and acknowledgements
        assert step["phases"]["overrun"] >= 0


def test_a_device_that_this_machine_cannot_be_is_refused(tmp_path: Path) -> None:
    fast = ("cluster.device.matmul_flops='1 PFLOP/s'", "cluster.device.attention_forward_flops='1 PFLOP/s'",
            "cluster.device.attention_backward_flops='1 PFLOP/s'", "cluster.device.copy_bandwidth='1 PB/s'",
            "cluster.device.kernel_seconds=1e-12", "cluster.device.call_seconds=1e-12",
            "cluster.nic_bandwidth='10 Gbit/s'", "cluster.nvlink_bandwidth='10 Gbit/s'", "tokens_per_gpu=1024",
            "workload.context_limit=1024")  # fmt: skip
    done = command(*SMALL, *fast, f"out={tmp_path / 'runs.jsonl'}")
    assert done.returncode == 2, done.stdout
    assert "this machine cannot hold its rates for 4 ranks" in done.stderr


def test_the_nics_counters_are_not_a_choice() -> None:
    done = command(*SMALL, "executor.nic_counters=false")
    assert done.returncode == 2
    assert "executor.nic_counters is false" in done.stderr
