"""Traces of workers that train apart: each one's step on its own tracks of the whole cluster, then what the round ends
with, and per NIC the bytes of the record."""

import json
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.test_conformance import DEVICE, MODEL
from zbench.cost.job import make_cost, worker_cost, worker_gpus
from zbench.critical.drawn import TRACK
from zbench.describe.batch import Batch
from zbench.describe.cluster import Cluster
from zbench.describe.links import Domain
from zbench.describe.sync import CO2, LOCAL_SGD, STREAMING_DILOCO, RoundSync
from zbench.interfaces.dealt import WorkerPlans
from zbench.interfaces.result import StepResult
from zbench.simulated.executor import Simulated
from zbench.systems.ring import Ring
from zbench.trace.part import StepPart
from zbench.trace.whole_step import track_titles

Tracks = dict[str, list[dict[str, Any]]]
PAIR = Domain("pair", 2, 1e11, 1.0, 1e-6)
HOST = {"host_bandwidth": 1e10, "host_efficiency": 1.0, "host_latency": 0.0, "host_memory": 2.0**36}
CLUSTER = replace(
    Cluster("test", 2, 4, 2, 1e9, 0.9, 1e-5, 1e10, 0.9, 1e-6, DEVICE, nic_channels=2, domains=(PAIR,)),
    host_adam_bandwidth=1e11,
    **HOST,
)
BATCH = Batch(np.array([90, 70, 64, 50, 40, 33, 31, 20], np.int64), 1, 0)


def traced(sync: RoundSync, batch: Batch, path: Path, nodes: int = 2, **model: Any) -> tuple[StepResult, Tracks]:
    """Plays a step, and returns its result and the events of its trace by the titles of their tracks."""
    cluster = replace(CLUSTER, num_nodes=nodes)
    cost = make_cost(cluster, replace(MODEL, sharding="zero1", **model), pipelines=False)
    workers = cluster.num_ranks // worker_gpus(cost, sync)
    plans = WorkerPlans(Ring(worker_cost(cost, sync)), workers).plan(batch)
    executor = Simulated(cost, sync=sync)
    executor.start()
    result = executor.traced_step(batch, plans, str(path))
    events = json.loads(path.read_text())["traceEvents"]
    titles = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["name"] == "thread_name"}
    found: Tracks = defaultdict(list)
    for one in events:
        if one["ph"] == "X":
            found[titles[one["pid"], one["tid"]]].append(one)
    return result, found


def nic_bytes(tracks: Tracks, way: str, nics: int = CLUSTER.num_nics) -> list[int]:
    found = [0] * nics
    for title, events in tracks.items():
        if title.startswith("NIC") and way in title:
            found[int(title.split()[1])] += sum(one["args"]["bytes"] for one in events)
    return found


@pytest.mark.parametrize(
    ("sync", "averaged", "late"),
    [
        (RoundSync(LOCAL_SGD, 1, "node"), True, False),
        (RoundSync(LOCAL_SGD, 1, "rank"), True, False),
        (RoundSync(LOCAL_SGD, 2, "node"), False, False),
        (RoundSync(LOCAL_SGD, 2, "rank"), False, False),
        (RoundSync(CO2, 1, "node", penalty="constant"), True, True),
        (RoundSync(CO2, 1, "rank", penalty="constant"), True, True),
        (RoundSync(STREAMING_DILOCO, 2, "node", fragments=2, delay=1), True, True),
        (RoundSync(STREAMING_DILOCO, 2, "rank", fragments=2, delay=1), True, True),
    ],
)
def test_bytes_are_the_record_s_and_nothing_overlaps(
    sync: RoundSync, averaged: bool, late: bool, tmp_path: Path
) -> None:
    """averaged: something follows the first step. late: it is under way when the step ends."""
    result, tracks = traced(sync, BATCH, tmp_path / "t.json")
    assert nic_bytes(tracks, "sends") == result.nic_tx_bytes
    assert nic_bytes(tracks, "receives") == result.nic_rx_bytes
    assert (sum(result.nic_tx_bytes) > 0) == averaged
    for events in tracks.values():
        spans = sorted((one["ts"], one["ts"] + one["dur"]) for one in events)
        assert all(a[1] <= b[0] + 0.002 for a, b in pairwise(spans))  # events are rounded to a nanosecond
    for rank in range(CLUSTER.num_ranks):
        names = {one["name"] for one in tracks[f"GPU {rank}"]}
        assert "attend forward" in names
        assert any("averages" in one for one in names) == averaged
    end = max(one["ts"] + one["dur"] for events in tracks.values() for one in events)
    if late:
        assert end > 1.001e6 * result.seconds
    else:
        assert end == pytest.approx(1e6 * result.seconds, rel=1e-4)


@pytest.mark.parametrize("worker", ["node", "rank"])
def test_groups_of_a_worker_are_on_its_gpus(worker: str, tmp_path: Path) -> None:
    """A group's exchanges are between its two GPUs, on their own links; NICs have the average alone."""
    result, tracks = traced(RoundSync(LOCAL_SGD, 1, worker), BATCH, tmp_path / "t.json", tensor_parallel=2)
    for way, sizes in (("sends", result.nic_tx_bytes), ("receives", result.nic_rx_bytes)):
        assert nic_bytes(tracks, way) == sizes
    for title, events in tracks.items():
        if any(one["args"].get("for") == "tensor_parallel" and "bytes" in one["args"] for one in events):
            assert title.startswith("GPU")
            assert "pair link" in title
    busy = [
        any(one["args"].get("for") == "tensor_parallel" for one in events)
        for title, events in tracks.items()
        if title.startswith("GPU") and "pair link" in title and title.endswith("sends")
    ]
    assert busy == [True] * CLUSTER.num_ranks


def test_stages_of_a_worker_are_on_its_nodes(tmp_path: Path) -> None:
    """Two workers of two nodes: what one stage sends goes to the other's node, inputs of layers wait in the part of its
    node's memory that each GPU has, and layers have the model's numbers."""
    sync = RoundSync(STREAMING_DILOCO, 2, "node", fragments=2, delay=1)
    more = {"pipeline_parallel": 2, "recompute": "full", "offload": "inputs", "num_layers": 5, "stage_layers": (2, 3)}
    result, tracks = traced(sync, BATCH, tmp_path / "t.json", 4, **more)
    for way, sizes in (("sends", result.nic_tx_bytes), ("receives", result.nic_rx_bytes)):
        assert nic_bytes(tracks, way, 4 * CLUSTER.nics_per_node) == sizes
    each, gpus = CLUSTER.gpus_per_node, 4 * CLUSTER.gpus_per_node
    between = {
        (one["args"]["from"] // each, one["args"]["to"] // each)
        for title, events in tracks.items()
        if title.startswith("NIC") and "sends" in title
        for one in events
        if one["args"]["for"] == "stages"
    }
    assert between == {(0, 1), (1, 0), (2, 3), (3, 2)}
    for rank in range(gpus):
        (title,) = [one for one in tracks if one.startswith(f"GPU {rank} ") and one.endswith("host link sends")]
        assert {(one["args"]["from"], one["args"]["to"]) for one in tracks[title]} == {(rank, gpus + rank)}
    averages = [one for rank in range(gpus) for one in tracks[f"GPU {rank}"] if "averages" in one["name"]]
    assert {one["args"]["layer"] for one in averages} == {1, 3}


@pytest.mark.parametrize(("worker", "stages"), [("rank", 1), ("node", 2)])
def test_cpus_are_those_of_a_worker_s_node(worker: str, stages: int, tmp_path: Path) -> None:
    """Whether a worker is a part of a node or several of them: each node's CPUs update what its GPUs have."""
    more: dict[str, Any] = {"pipeline_parallel": 2, "num_layers": 5, "stage_layers": (2, 3)} if stages > 1 else {}
    more["offload"] = "optimizer"
    traced(RoundSync(LOCAL_SGD, 1, worker), BATCH, tmp_path / "t.json", 4, **more)
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    titles = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["name"] == "thread_name"}
    found = defaultdict(set)
    for one in (one for one in events if one["ph"] == "X" and titles[one["pid"], one["tid"]] == "CPUs"):
        found[one["pid"]].add(one["name"].split()[0])
    assert sorted(found) == [0, 1, 2, 3]
    assert all(words == {"optimizer", "elementwise"} for words in found.values())  # updates, and what is averaged


def test_messages_are_between_the_cluster_s_gpus(tmp_path: Path) -> None:
    """A worker's messages stay on its node, under its GPUs' own numbers."""
    sync = RoundSync(LOCAL_SGD, 2, "node")
    _, tracks = traced(sync, BATCH, tmp_path / "t.json")
    nodes = set()
    for title, events in tracks.items():
        if title.startswith("GPU") and title.endswith("sends"):
            ends = {one["args"][end] for one in events for end in ("from", "to") if end in one["args"]}
            nodes |= {rank // CLUSTER.gpus_per_node for rank in ends}
            assert {rank // CLUSTER.gpus_per_node for rank in ends} <= {int(title.split()[1]) // CLUSTER.gpus_per_node}
    assert nodes == {0, 1}


@pytest.mark.parametrize("worker", ["node", "rank"])
def test_host_memory_is_that_of_a_worker_s_node(worker: str, tmp_path: Path) -> None:
    sync = RoundSync(LOCAL_SGD, 2, worker)
    _, tracks = traced(sync, BATCH, tmp_path / "t.json", recompute="full", offload="inputs")
    for rank in range(CLUSTER.num_ranks):
        (title,) = [one for one in tracks if one.startswith(f"GPU {rank} ") and one.endswith("host link sends")]
        ends = {(one["args"]["from"], one["args"]["to"]) for one in tracks[title]}
        assert ends == {(rank, CLUSTER.num_ranks + rank // CLUSTER.gpus_per_node)}


def test_the_critical_path_is_the_slowest_worker_s_and_then_the_round_s_end(tmp_path: Path) -> None:
    result, tracks = traced(RoundSync(LOCAL_SGD, 1, "rank"), BATCH, tmp_path / "t.json")
    path = tracks[TRACK]
    assert path[0]["ts"] == 0
    assert path[-1]["ts"] + path[-1]["dur"] == pytest.approx(1e6 * result.seconds, rel=1e-4)
    assert all(one["ts"] == pytest.approx(before["ts"] + before["dur"], abs=0.01) for before, one in pairwise(path))
    local = {one["args"]["GPUs"] for one in path if one["name"].startswith("attend")}
    attends = [[one for one in tracks[f"GPU {rank}"] if one["name"].startswith("attend")] for rank in range(8)]
    ends = [max(one["ts"] + one["dur"] for one in mine) for mine in attends]
    assert local == {str(int(np.argmax(ends)))}


def test_a_worker_without_tokens_is_idle(tmp_path: Path) -> None:
    result, tracks = traced(RoundSync(LOCAL_SGD, 1, "node"), replace(BATCH, lengths=BATCH.lengths[:1]), tmp_path / "t")
    ranks = range(CLUSTER.num_ranks)
    attending = [rank for rank in ranks if any("attend" in one["name"] for one in tracks[f"GPU {rank}"])]
    assert attending in ([0, 1, 2, 3], [4, 5, 6, 7])
    assert nic_bytes(tracks, "sends") == result.nic_tx_bytes


def test_layers_of_a_fragment_have_the_model_s_numbers(tmp_path: Path) -> None:
    """After the first of two steps the second fragment leaves: every other layer, from the second one on."""
    sync = RoundSync(STREAMING_DILOCO, 2, "node", fragments=2, delay=1)
    _, tracks = traced(sync, BATCH, tmp_path / "t.json")
    averages = [one for rank in range(8) for one in tracks[f"GPU {rank}"] if "averages" in one["name"]]
    assert {one["args"]["layer"] for one in averages} == set(range(1, MODEL.num_layers, 2))


@pytest.mark.parametrize("worker", ["node", "rank"])
def test_tracks_of_a_worker_are_those_of_its_gpus(worker: str) -> None:
    sync = RoundSync(LOCAL_SGD, 1, worker)
    own, titles = sync.worker_cluster(CLUSTER), track_titles(CLUSTER)
    for first in range(0, CLUSTER.num_ranks, sync.worker_gpus(CLUSTER.gpus_per_node)):
        part = StepPart(own, CLUSTER, first)
        for tid, title in enumerate(track_titles(own)[0]):
            event = {"ts": 1.0, "pid": 0, "tid": tid, "args": {"layer": 0, "from": 0, "to": own.num_ranks}}
            moved = part.moved(event)
            words, found = title.split(" "), titles[moved["pid"]][moved["tid"]].split(" ")
            if words[0] == "GPU":
                assert int(found[1]) == first + int(words[1])
            elif words[0] == "NIC":
                assert int(found[1]) == CLUSTER.nic_of[first] + int(words[1])
            assert found[:1] + found[2:] == words[:1] + words[2:]
            assert moved["args"] == {"layer": 0, "from": first, "to": CLUSTER.num_ranks + first // 4}
            assert event["args"]["from"] == 0  # what was given is as it was
