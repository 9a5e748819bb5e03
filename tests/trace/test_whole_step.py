"""A whole step's trace beside the record of the step, as a run with trace=FILE writes it by default."""

import json
from itertools import pairwise
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
    computing = {names[one["pid"], one["tid"]] for one in found if one["name"] == "attend forward"} - {"critical path"}
    assert computing == {f"GPU {gpu}" for gpu in range(8)}


@pytest.mark.parametrize("system", ["ring", "ulysses"])
@pytest.mark.parametrize("channels", [1, 2])
def test_no_two_events_of_a_track_overlap(system: str, channels: int, tmp_path: Path) -> None:
    """A NIC's messages are on a track a channel and direction; one that takes all channels says so."""
    settings = [f"system={system}", f"cluster.nic_channels={channels}", "model=desk", "tokens_per_gpu=256"]
    _, found, names = traced(tmp_path, *settings)
    tracks: dict[str, list[tuple[float, float]]] = {}
    for one in found:
        title = names[one["pid"], one["tid"]]
        tracks.setdefault(title, []).append((one["ts"], one["ts"] + one["dur"]))
        taken = one["args"].get("channels")
        assert taken in ((1, channels) if title.startswith("NIC") and channels > 1 else (None, 1, 2, 3)), title
    for spans in tracks.values():
        assert all(begin >= end - 0.002 for (_, end), (begin, _) in pairwise(sorted(spans)))  # rounded to 0.001
    used = {title.partition(", ")[2] for title in tracks if title.startswith("NIC 0 sends")}
    numbers = (1, 2) if system == "ulysses" else (1,)  # a ring has one peer a NIC, so one message at a time
    assert used == ({""} if channels == 1 else {f"channel {at} of 2" for at in numbers})


def test_links_inside_nodes_with_domains_have_tracks_with_all_of_their_bytes(tmp_path: Path) -> None:
    """Two nodes of two cards: three channels to the node, one inside a card, each in two directions."""
    sizes = ["cluster.num_nodes=2", "cluster.gpus_per_node=4", "cluster.nics_per_node=2", "tokens_per_gpu=256"]
    step, found, names = traced(tmp_path, "system=ring", "cluster=frontier_48x8", "model=desk", *sizes)
    inside = [title for (node, _), title in names.items() if node == 0 and title.startswith("GPU 0 ")]
    by_node = [f"GPU 0 NVLink {way}, channel {at} of 3" for way in ("sends", "receives") for at in (1, 2, 3)]
    others = [f"GPU 0 {link} link {way}" for link in ("card", "host") for way in ("sends", "receives")]
    assert inside == [*by_node, *others]
    of = [
        one
        for one in found
        if (title := names[one["pid"], one["tid"]]) and title.startswith("GPU") and "sends" in title
    ]
    assert step["nvlink_bytes"] == sum(one["args"]["bytes"] for one in of if one["args"]["for"] == "attention") > 0
