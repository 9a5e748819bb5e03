"""A whole step's trace beside the record of the step, as a run with trace=FILE writes it by default."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.report.test_report import made
from zbench.record.record import read


def traced(folder: Path, *settings: str) -> tuple[dict[str, Any], list[dict[str, Any]], dict[tuple[int, int], str]]:
    """Returns a recorded step, the events of its trace, and the names of their tracks by (node, thread)."""
    path = folder / "t.json"
    fixed = ["workload=wikipedia", "baseline=null", "steps=1", f"trace={path}"]
    (run,) = read(made(folder, *settings, *fixed))[0]
    written = json.loads(path.read_text())["traceEvents"]
    names = {(one["pid"], one["tid"]): one["args"]["name"] for one in written if one["name"] == "thread_name"}
    return run.steps[0], [one for one in written if one["ph"] == "X"], names


@pytest.mark.parametrize(
    "settings",
    [
        ["system=ring"],
        ["system=zeppelin", "recompute=full", "sharding=zero1"],
        ["system=flexsp", "cluster.device.memory_bytes=1.4 GB", "tokens_per_gpu=2048"],
        ["system=bytescale", "cluster.device.memory_bytes=2.4 GB", "tokens_per_gpu=2048", "sharding=zero2"],
        ["system=ring", "recompute=selective"],
        ["system=hydraulis", "sharding=none"],
        ["system=bytescale", "cluster.num_nodes=4", "parallel.pipeline_parallel=2", "sharding=zero1"],
        ["system=ring", "parallel.tensor_parallel=2"],
    ],
    ids=" ".join,
)
def test_a_trace_ends_when_the_step_does(settings: list[str], tmp_path: Path) -> None:
    """Of two layers, which are all played: the trace's end is the record's, and so are every NIC's bytes."""
    step, found, names = traced(tmp_path, *settings)
    assert max(one["ts"] + one["dur"] for one in found) == pytest.approx(1e6 * step["seconds"], abs=0.01)
    assert min(one["ts"] for one in found) >= 0
    path = [one["dur"] for one in found if names[one["pid"], one["tid"]] == "critical path"]
    assert sum(path) == pytest.approx(1e6 * step["seconds"], abs=0.01)  # one after another from begin to end
    sent = dict.fromkeys(range(len(step["nic_tx_bytes"])), 0)
    for one in found:
        title = names[one["pid"], one["tid"]]
        if title.startswith("NIC") and "sends" in title:
            sent[int(title.split()[1])] += one["args"]["bytes"]
    assert list(sent.values()) == step["nic_tx_bytes"]


def test_tracks_of_a_tensor_parallel_model_are_of_each_of_its_gpus_and_nics(tmp_path: Path) -> None:
    sizes = ["cluster.nics_per_node=4", "cluster.gpus_per_node=4"]
    _, found, names = traced(tmp_path, "system=ring", "parallel.tensor_parallel=2", *sizes)
    tracks = [title for (node, _), title in names.items() if node == 1]
    assert tracks[:4] == [f"GPU {gpu}" for gpu in range(4, 8)]
    assert tracks[4:12] == [f"NIC {nic} {way}" for nic in range(4, 8) for way in ("sends", "receives")]
    computing = {names[one["pid"], one["tid"]] for one in found if one["name"] == "attend o"} - {"critical path"}
    assert computing == {f"GPU {gpu}" for gpu in range(8)}
