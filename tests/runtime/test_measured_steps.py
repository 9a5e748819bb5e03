"""The trace of a measured whole step: the names of a simulated one, and the bytes of the record."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.test_step_executor import EXPERTS, WORKLOAD, cost_of, systems
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.expert_schedule import Experts
from zbench.describe.sync import RoundSync
from zbench.interfaces.result import StepResult
from zbench.runtime.job.step_job import StepReport
from zbench.runtime.step_executor import Torch
from zbench.runtime.step_measured import whole_step_result
from zbench.simulated.executor import Simulated
from zbench.systems.ring import Ring

pytestmark = pytest.mark.usefixtures("one_thread")

Event = dict[str, Any]
SAID = ("micro_batch", "template", "layer", "pass", "for", "formula")


def tracks_of(path: Path) -> dict[str, list[Event]]:
    """The events of a trace by the titles of their tracks, without lanes and channels."""
    events = json.loads(path.read_text())["traceEvents"]
    names = {(one["pid"], one["tid"]): one["args"]["name"] for one in events if one["name"] == "thread_name"}
    found: dict[str, list[Event]] = {name.partition(",")[0]: [] for name in names.values()}
    for one in events:
        if one["ph"] == "X":
            found[names[one["pid"], one["tid"]].partition(",")[0]].append(one)
    return found


def measured(cost: Cost, path: Path, **settings: Any) -> StepResult:
    executor = Torch(cost, WORKLOAD, seed=3, warmup=0, check=("bytes",), **settings)
    try:
        executor.start()
        batch = WORKLOAD.batch(0)
        return executor.traced_step(batch, systems(cost).plan(batch), str(path))
    finally:
        executor.stop()


def operations(tracks: dict[str, list[Event]]) -> set[tuple[Any, ...]]:
    """Returns the operations of a trace, each with its name and what is said of it."""
    every = (one for title, events in tracks.items() if title != "critical path" for one in events)
    return {
        (one["name"], *(one["args"].get(key) for key in SAID)) for one in every if not one["name"].startswith("waiting")
    }


def nic_bytes(tracks: dict[str, list[Event]], way: str, num_nics: int) -> list[Counter[str]]:
    """The bytes of every NIC's events, by what they are for."""
    found = []
    for nic in range(num_nics):
        sizes = Counter[str]()
        for one in tracks.get(f"NIC {nic} {way}", []):
            sizes[one["args"]["for"]] += one["args"]["bytes"]
        found.append(sizes)
    return found


def assert_bytes_are_the_record_s(tracks: dict[str, list[Event]], result: StepResult) -> None:
    sent, got = (nic_bytes(tracks, way, len(result.nic_tx_bytes)) for way in ("sends", "receives"))
    assert [one.total() for one in sent] == result.nic_tx_bytes
    assert [one.total() for one in got] == result.nic_rx_bytes
    assert sum(result.nic_tx_bytes) > 0
    of_record = [
        {name: sizes[nic] for name, sizes in result.nic_tx_for.items() if sizes[nic]} for nic in range(len(sent))
    ]
    assert [dict(one) for one in sent] == of_record


CASES: dict[str, tuple[Cost, dict[str, Any]]] = {
    "replicated": (cost_of(), {}),
    "ZeRO-3, all again": (cost_of(2, 2, sharding="zero3", recompute="full"), {}),
    "ZeRO-1, groups": (cost_of(2, 2, sharding="zero1", tensor_parallel=2), {}),
    "ZeRO-1, stages": (cost_of(2, 2, sharding="zero1", pipeline_parallel=2, micro_batches=2), {}),
    "stages of a GPU, two a node": (
        cost_of(2, 2, sharding="zero3", num_layers=4, pipeline_parallel=4, micro_batches=2),
        {},
    ),
    "experts": (cost_of(model=EXPERTS, sharding="zero1"), {"expert_parallel": 2}),
    "experts that routers choose": (
        cost_of(model=EXPERTS, sharding="zero1"),
        {"expert_parallel": 2, "experts": Experts(capacity=4.0, padded=True, routing="token_choice")},
    ),
}


def test_gradients_between_experts_messages_are_told_as_gradients(tmp_path: Path) -> None:
    """In a trace as in the record, as many of experts as without pieces, and of gradients by what shards' ends say."""
    cost = cost_of(model=EXPERTS, sharding="zero1")
    settings = {"lina": {"gradients": "between"}, "pipemoe": {}}
    found = {}
    for name, more in settings.items():
        path = tmp_path / f"{name}.json"
        found[name] = measured(cost, path, expert_parallel=2, experts=Experts(name, 2, **more))
        assert_bytes_are_the_record_s(tracks_of(path), found[name])
    lina, other = (found[name].nic_tx_for for name in settings)
    assert lina["experts"] == other["experts"]
    assert sum(lina["gradients"]) == sum(other["gradients"]) > 0
    batch = WORKLOAD.batch(0)
    played = Simulated(cost, expert_parallel=2, experts=Experts("lina", 2, gradients="between"))
    told = played.step(batch, systems(cost).plan(batch)).nic_tx_for
    assert told["experts"] == lina["experts"]
    assert sum(told["gradients"]) == sum(lina["gradients"])  # processes send to homes, the clock plays rings


@pytest.mark.parametrize("case", CASES)
def test_operations_are_those_of_a_simulated_trace_and_bytes_those_of_the_record(case: str, tmp_path: Path) -> None:
    cost, settings = CASES[case]
    result = measured(cost, tmp_path / "m.json", **settings)
    tracks = tracks_of(tmp_path / "m.json")
    assert_bytes_are_the_record_s(tracks, result)
    batch = WORKLOAD.batch(0)
    Simulated(cost, **settings).traced_step(batch, systems(cost).plan(batch), str(tmp_path / "s.json"))
    played = operations(tracks_of(tmp_path / "s.json"))
    found = operations(tracks)
    assert found == played


def test_host_memory_is_that_of_a_worker_s_node(tmp_path: Path) -> None:
    cost = cost_of(2, 2, sharding="none", recompute="full", offload="inputs")
    host = {"host_bandwidth": 25e9, "host_efficiency": 0.8, "host_latency": 1e-5, "host_memory": 2.0**36}
    cost = make_cost(replace(cost.cluster, **host), cost.model)
    measured(cost, tmp_path / "m.json", sync=RoundSync("diloco", 1, "node"))
    found = {
        (int(title.split()[1]), one["args"]["from"], one["args"]["to"])
        for title, events in tracks_of(tmp_path / "m.json").items()
        for one in events
        if title.endswith("host link sends")
    }
    assert found == {(rank, rank, 4 + rank // 2) for rank, *_ in found}
    assert {node for *_, node in found} == {4, 5}


@pytest.mark.parametrize("method", ["diloco", "co2"])
def test_rounds_have_workers_steps_and_what_they_end_with(method: str, tmp_path: Path) -> None:
    """Of a round of one step: what is averaged is the record's as well, also what is under way when the step ends. The
    operations are those of a simulated trace."""
    cost = cost_of(2, 2, sharding="zero1")
    sync = RoundSync(method, 1, "node", penalty="constant" if method == "co2" else "none")
    result = measured(cost, tmp_path / "m.json", sync=sync)
    tracks = tracks_of(tmp_path / "m.json")
    assert_bytes_are_the_record_s(tracks, result)
    names = {one["name"] for events in tracks.values() for one in events}
    assert {"attend forward", "elementwise averages of query weights", "optimizer query weights"} <= names
    assert "reduce averages" in names
    assert {one["args"]["from"] for one in tracks["NIC 1 sends"]} == {2, 3}
    late = [one for one in tracks["NIC 1 sends"] if "under way when the step ended" in one["args"]]
    assert bool(late) == (method == "co2")
    batch = WORKLOAD.batch(0)
    Simulated(cost, sync=sync).traced_step(batch, systems(cost).plan(batch), str(tmp_path / "s.json"))
    assert operations(tracks) == operations(tracks_of(tmp_path / "s.json"))


def test_a_gpu_does_one_thing_at_a_time_and_a_message_ends_after_it_began(tmp_path: Path) -> None:
    result = measured(cost_of(2, 2, sharding="zero3"), tmp_path / "m.json")
    took = []
    for rank, seconds in enumerate(result.attention_seconds):  # which have what brings operands together as well
        mine = tracks_of(tmp_path / "m.json")[f"GPU {rank}"]
        took.append([1e-6 * one["dur"] for one in mine if one["name"].startswith("attend")])
        assert sum(took[rank]) <= seconds + 1e-6 * len(took[rank])
    assert sum(map(sum, took)) > 0.1 * sum(result.attention_seconds)
    written = json.loads((tmp_path / "m.json").read_text())["traceEvents"]
    by_track: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for one in written:
        if one["ph"] == "X":
            assert one["ts"] >= 0
            assert one["dur"] >= 0
            by_track.setdefault((one["pid"], one["tid"]), []).append((one["ts"], one["ts"] + one["dur"]))
    for spans in by_track.values():
        assert all(begin >= end - 0.002 for (_, end), (begin, _) in pairwise(sorted(spans)))  # rounded to 0.001
    named = {(one["pid"], one["tid"]): one["args"]["name"] for one in written if one["name"] == "thread_name"}
    assert named.keys() == by_track.keys()  # every GPU and link of this step has something
    assert len({*named.values()}) == len(named)  # a link has one track, whatever is posted for it at once


def test_a_message_is_drawn_from_when_it_can_first_move(tmp_path: Path) -> None:
    """From when both ends had posted it, or from when the message before it was there on one of its links."""
    measured(cost_of(2, 2, sharding="zero3"), tmp_path / "m.json")
    tracks = {
        name: sorted(every, key=lambda one: (one["ts"], one["dur"]))
        for name, every in tracks_of(tmp_path / "m.json").items()
        if name.endswith(("sends", "receives"))
    }
    ends = {round(one["ts"] + one["dur"], 3) for every in tracks.values() for one in every}
    for every in tracks.values():
        late = [one for one in every if one["ts"] > one["args"]["posted by both ends, us"]]
        assert 0 < len(late) < len(every)
        assert {one["ts"] for one in late} <= ends
        assert all(one["ts"] == one["args"]["posted by both ends, us"] for one in every if one not in late)


def test_nothing_is_noted_where_no_trace_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    executor, reports = Torch(cost_of(), WORKLOAD, warmup=0), list[StepReport]()

    def noting(batch: Batch, of: Sequence[StepReport], *rest: Any) -> StepResult:
        reports.extend(of)
        return whole_step_result(batch, executor.cost, of, {})

    monkeypatch.setattr(Torch, "result", lambda self, *given: noting(*given))
    try:
        executor.start()
        batch = WORKLOAD.batch(0)
        executor.step(batch, Ring(executor.cost).plan(batch))
    finally:
        executor.stop()
    assert [one.notes for one in reports] == [None, None]
