"""A step's trace beside the record of the step, as executor=simulated_attention plays it."""

import json
from itertools import pairwise
from pathlib import Path

import pytest

from tests.report.test_report import made
from zbench.record.record import read
from zbench.run.replay import Replay
from zbench.runtime.clocks.events import REDUCE
from zbench.trace.step import events
from zbench.trace.tracks import GATHER, SHOWN, sharing_track, titles

ATTENTION = "executor=simulated_attention"


@pytest.mark.parametrize(
    "settings",
    [
        ["system=ring"],
        ["system=zeppelin", "recompute=full", "sharding=zero1"],
        ["system=flexsp", "cluster.device.memory_bytes=1.4 GB", "tokens_per_gpu=2048"],  # three micro-batches
        ["system=bytescale", "cluster.device.memory_bytes=2.4 GB", "tokens_per_gpu=2048", "sharding=zero2"],
        ["system=ring", "recompute=selective"],
        ["system=hydraulis", "sharding=none"],
        ["system=bytescale", "cluster.num_nodes=4", "parallel.pipeline_parallel=2", "sharding=zero1"],
    ],
    ids=lambda settings: settings[0],
)
def test_a_trace_ends_when_the_step_does(settings: list[str], tmp_path: Path) -> None:
    """With parameters, gradients and the optimizer, over micro-batches and pipelines; nothing reaches beyond it."""
    (run,) = read(made(tmp_path, ATTENTION, *settings, "workload=wikipedia", "baseline=null", "steps=1"))[0]
    replay = Replay.of(run)
    _, plans = replay.step(run.steps[0])
    found = list(events(plans, replay.cost))
    assert max(one["ts"] + one["dur"] for one in found) == pytest.approx(1e6 * run.steps[0]["seconds"], abs=0.01)
    assert min(one["ts"] for one in found) >= 0
    strategy = run.start["config"]["sharding"]["strategy"]
    each = len(plans) if strategy in ("zero2", "zero3") and plans[0].pipelines is None else 1
    assert (each > 1) == (settings[0] == "system=flexsp" or strategy == "zero2")
    assert sum(one["name"] == REDUCE for one in found) == replay.cost.whole.num_nodes * each
    sent = sum(one["args"]["bytes"] for one in found if one["name"] in (GATHER, REDUCE) and one["pid"] == 0)
    crossing = sum(one["args"]["bytes"] for one in found if (one["pid"], one["tid"]) == (0, 8))  # NIC 0 sends
    if plans[0].pipelines is None and replay.cost.pp == 1:  # whose layers' messages are not drawn
        assert sent + crossing == run.steps[0]["nic_tx_bytes"][0]


def test_tracks_of_a_tensor_parallel_model_name_all_of_its_gpus_and_nics(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    settings = ["system=ring", "parallel.tensor_parallel=2", "cluster.nics_per_node=4", "cluster.gpus_per_node=4"]
    made(tmp_path, ATTENTION, *settings, "workload=wikipedia", "baseline=null", "steps=1", f"trace={path}")
    named = [one for one in json.loads(path.read_text())["traceEvents"] if one["name"] == "thread_name"]
    tracks = [one["args"]["name"] for one in named if one["pid"] == 1]
    assert tracks[:2] == ["GPUs 4-5", "GPUs 6-7"]
    assert tracks[2:] == [f"NICs {nics} {way}" for nics in ("4-5", "6-7") for way in ("sends", "receives")] + [
        "parameters, gradients"
    ]


@pytest.mark.parametrize("system", ["ring", "ulysses", "usp", "allgather"])
@pytest.mark.parametrize("channels", [1, 2, 3])
def test_no_two_events_of_a_track_overlap(system: str, channels: int, tmp_path: Path) -> None:
    """A NIC's messages are on a track a channel and direction, and all of its bytes are on them."""
    settings = [f"system={system}", f"cluster.nic_channels={channels}", "model=desk", "tokens_per_gpu=256"]
    (run,) = read(made(tmp_path, ATTENTION, *settings, "workload=prolong64k_2k", "baseline=null", "steps=1"))[0]
    replay = Replay.of(run)
    _, plans = replay.step(run.steps[0])
    cluster = replay.cost.cluster
    found = list(events(plans, replay.cost))
    tracks: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for one in found:
        if one["name"] not in (GATHER, REDUCE, *SHOWN.values()):  # which are drawn from the beginning of a pass
            tracks.setdefault((one["pid"], one["tid"]), []).append((one["ts"], one["ts"] + one["dur"]))
    for spans in tracks.values():
        assert all(begin >= end - 0.002 for (_, end), (begin, _) in pairwise(sorted(spans)))  # rounded to 0.001
    first, last = cluster.gpus_per_node, sharing_track(cluster)
    assert last - first == 2 * cluster.nics_per_node * channels
    used = {titles(cluster, 0)[tid].partition(", ")[2] for node, tid in tracks if node == 0 and first <= tid < last}
    if channels == 1:
        assert used == {""}
    elif system in ("ring", "allgather"):  # one peer a NIC, or collectives: one message at a time
        assert used == {f"channel 1 of {channels}"}
    elif system == "ulysses":
        assert used >= {f"channel {at} of {channels}" for at in (1, 2)}
    crossing = sum(one["args"]["bytes"] for one in found if first <= one["tid"] < last)
    shared = sum(one["args"]["bytes"] for one in found if one["name"] in (GATHER, REDUCE))
    assert crossing + 2 * shared * cluster.nics_per_node == 2 * sum(run.steps[0]["nic_tx_bytes"])


@pytest.mark.parametrize("system", ["ring", "ulysses", "zeppelin"])
def test_links_inside_nodes_with_domains_have_tracks_with_all_of_their_bytes(system: str, tmp_path: Path) -> None:
    """Two nodes of two cards: three channels to the node, one inside a card, each in two directions."""
    settings = [
        f"system={system}",
        "cluster=frontier_48x8",
        "cluster.num_nodes=2",
        "cluster.gpus_per_node=4",
        "cluster.nics_per_node=2",
        "model=desk",
        "tokens_per_gpu=256",
    ]
    (run,) = read(made(tmp_path, ATTENTION, *settings, "workload=prolong64k_2k", "baseline=null", "steps=1"))[0]
    replay = Replay.of(run)
    _, plans = replay.step(run.steps[0])
    named = titles(replay.cost.cluster, 0)
    assert named[4:8] == ["NIC 0 sends", "NIC 0 receives", "NIC 1 sends", "NIC 1 receives"]
    one_gpu = [f"GPU 0 {way} by node, channel {at} of 3" for way in ("sends", "receives") for at in (1, 2, 3)]
    assert named[8:16] == [*one_gpu, "GPU 0 sends by card", "GPU 0 receives by card"]
    assert named[16] == "GPU 1 sends by node, channel 1 of 3"
    assert named.index("parameters, gradients") == len(named) - 1 == sharing_track(replay.cost.cluster) == 40
    tracks: dict[str, list[tuple[float, float]]] = {}
    sent = 0
    for one in events(plans, replay.cost):
        title = titles(replay.cost.cluster, one["pid"])[one["tid"]]
        if "sends by" in title:
            sent += one["args"]["bytes"]
            assert one["args"]["from"] // 2 == one["args"]["to"] // 2 or "by node" in title or system == "zeppelin"
        if one["name"] not in (GATHER, REDUCE, *SHOWN.values()):
            tracks.setdefault(title, []).append((one["ts"], one["ts"] + one["dur"]))
    assert sent == run.steps[0]["nvlink_bytes"]
    for spans in tracks.values():
        assert all(begin >= end - 0.002 for (_, end), (begin, _) in pairwise(sorted(spans)))
