"""Figures: every table from a small record, pictures that are the same bytes twice, sentences for what is missing."""

import importlib
import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.examples import chequered
from tests.helpers.figure_records import CLUSTERS, OCTAVES, TRACES, run_of, samples
from zbench.figures import (
    ablation,
    costs,
    desk_nics,
    desk_parts,
    desk_systems,
    flexsp,
    headroom,
    lengths,
    memory,
    nics,
    planning,
    scaling,
    throughput,
    timeline,
)
from zbench.figures.__main__ import NAMES, main, module_name
from zbench.figures.records import Records, cost_of_run, is_current, load_records, make
from zbench.figures.rollouts import placement, resharding, rlhf, seesaw
from zbench.figures.stamp import simulated, stamp
from zbench.figures.strategies import contexts, experts, overlap, sharding, sync
from zbench.figures.style import spread_labels, tokens
from zbench.record.fingerprint import source_digest
from zbench.record.writer import RecordError, RecordWriter
from zbench.systems.zeppelin.zones import zones

ROOT = Path(__file__).parents[2]
SAMPLES = samples()
# One, a node: contexts are looked for in hundreds of steps. test_contexts has all numbers of GPUs.
FEW_GPUS = (1, 8)


# -- tables -----------------------------------------------------------------------------------------
def test_lengths_adds_batches_whose_longest_differ() -> None:
    run = run_of("lengths", "ring", "wikipedia")
    run.steps[1]["octaves"] = {"sequences": [4], "tokens": [4]}
    (found,) = lengths.table(Records([run]))
    assert (found.workload, found.sequences, found.tokens) == (
        "wikipedia",
        [4 / 8, 0, 3 / 8, 1 / 8],
        [4 / 28, 0, 15 / 28, 9 / 28],
    )
    assert found.mean == (sum(OCTAVES["tokens"]) + 4) / 8


def test_costs_has_the_curves_and_borders_of_the_recorded_constants() -> None:
    found = costs.table(SAMPLES["costs"])
    assert [one.cluster for one in found] == list(CLUSTERS)
    for one, run in zip(found, SAMPLES["costs"].runs, strict=True):
        cost = cost_of_run(run)
        assert (one.intra, one.routed) == zones(cost, 3, cost.cluster.nics_per_node)
        assert one.intra <= one.routed <= one.direct
        cross = np.interp(one.direct, one.lengths, one.curves.attention / one.curves.across)
        assert cross == pytest.approx(1, rel=0.1)


def test_throughput_is_over_ring_and_none_without_memory() -> None:
    found = {(one.cluster, one.system): one.speedup for one in throughput.table(SAMPLES["throughput"])}
    assert found["a800_4x8", "ring"] == 1
    assert (found["a800_4x8", "flexsp"], found["a800_4x8", "zeppelin"]) == (4, 2)
    assert found["h200_4x8", "flexsp"] is None


def test_scaling_counts_tokens_of_all_steps() -> None:
    found = scaling.table(SAMPLES["scaling"])
    assert [(one.system, one.gpus, one.tokens_per_second) for one in found[:2]] == [
        ("ring", 16, 12.5),
        ("zeppelin", 16, 50.0),
    ]


def test_ablation_puts_published_values_beside_every_size() -> None:
    found = ablation.table(SAMPLES["ablation"])
    for number, form in enumerate(ablation.FORMS, 1):
        bars = [bar for bar in found if bar.form == form]
        assert [bar.speedup for bar in bars if bar.gpus is None] == [1.6, 3.2, 3.51, 3.64]
        assert [bar.speedup for bar in bars if bar.gpus == 16] == [2 * number * turn for turn in (1, 2, 3, 4)]
        assert [bar.speedup for bar in bars if bar.gpus == 64] == [4 * number * turn for turn in (1, 2, 3, 4)]
    assert len(found) == 24


def test_an_ablation_without_one_of_its_parts_is_refused() -> None:
    with pytest.raises(ValueError, match="figure ablation has no speed-up of 'and remapping' on 64 GPUs"):
        ablation.table(Records(SAMPLES["ablation"].runs[:-1]))


def test_timeline_has_tracks_in_order_and_ends_with_the_last_event() -> None:
    found = timeline.table(SAMPLES["timeline"])
    assert [(step.system, step.length, step.seconds) for step in found] == [
        ("ring", 65536, 5.0),
        ("zeppelin", 65536, 2.0),
        ("ring", 1024, 5.0),
        ("zeppelin", 1024, 2.0),
    ]
    names = [
        "GPU 0",
        "GPU 1",
        "NIC 0 sends",
        "NIC 0 receives",
        "NIC 1 sends",
        "NIC 1 receives",
    ]
    assert [track.name for track in found[0].tracks] == names
    assert [track.spans for track in found[0].tracks] == [
        [("matmul", 0, 0.5), ("matmul", 0.5, 0.5)],
        [("attend backward", 3, 1)],
        [("keys and values", 1, 2), ("reduce gradients", 3, 2)],
        [],
        [],
        [("keys and values", 1, 2)],
    ]
    assert found[1].tracks[0].spans == [("head", 0, 1), ("optimizer", 1, 1)]


def test_nics_are_half_busy_while_they_only_send() -> None:
    found = nics.table(SAMPLES["nics"])
    assert [(one.name, one.seconds) for one in found] == [("ring", 5), ("zeppelin", 5), ("zeppelin without routing", 2)]
    half = np.repeat([0.0, 0.5, 0.0], [nics.BINS // 5, 2 * nics.BINS // 5, 2 * nics.BINS // 5])
    assert found[0].share == pytest.approx(np.stack([half, half]))
    assert (found[0].mean, found[2].mean) == (pytest.approx(0.2), 0)  # of gradients nothing is drawn


def test_planning_has_times_where_memory_did_not_suffice() -> None:
    found = {(one.system, one.gpus): (one.plan_seconds, one.bound_ratio) for one in planning.table(SAMPLES["planning"])}
    assert found["nodewise", 32] == (0.032, 0.5)
    assert found["usp", 32] == (0.032, None)


def test_flexsp_is_over_one_degree() -> None:
    found = {(one.context, one.workload, one.system): one.speedup for one in flexsp.table(SAMPLES["flexsp"])}
    assert len(found) == 18
    assert (found[393216, "github", "flexsp"], found[393216, "github", "flexsp_batch_ada"]) == (2, 1.5)
    assert found[393216, "github", flexsp.AS_PUBLISHED] == 1.2


def test_flexsp_without_its_baseline_is_refused() -> None:
    runs = [run for run in SAMPLES["flexsp"].runs if run.start["config"]["system"]["degree"] != 64]
    with pytest.raises(ValueError, match="figure flexsp has no run of one degree on github"):
        flexsp.table(Records(runs))


def test_seesaw_is_beside_engines_of_one_layout_and_over_lengths() -> None:
    found = seesaw.table(SAMPLES["seesaw"])
    assert [(one.cluster, one.lengths) for one in found.gains] == [
        (seesaw.STUDIED[0], lengths) for lengths in seesaw.SETS
    ]
    for one in found.gains:
        assert one.best["seesaw"].prefill != one.best["seesaw"].decode
        assert one.over("continuous", "chunked") == min(one.over("continuous"), one.over("chunked"))
    (last,) = [one for one in found.points if (one.layouts, one.response) == ("8-1 to 2-4", 900)]
    assert len(found.points) == 5 * len(seesaw.RESPONSES)  # of one cluster
    assert 0 < last.per_second < found.points[4].per_second


def test_memory_has_steps_that_fit_the_smallest_gpus_first() -> None:
    found = samples()["memory"]
    found.runs[0].steps[1]["recompute"] = {"level": "selective"}
    assert memory.table(found) == [
        memory.MemoryPoint("zeppelin", 16.0, 3.0, "full"),
        memory.MemoryPoint("zeppelin", 48.0, 2.0, "selective"),
        memory.MemoryPoint("local_packing", 48.0, 6.0, "selective"),
    ]


def test_overlap_is_over_none_of_the_same_degree() -> None:
    found = {(one.degree, one.method): one.gain for one in overlap.table(SAMPLES["overlap"])}
    assert found == {(d, m): gain for d in (4, 8) for m, gain in (("sliced", 1.5), ("async_tp", 1.6), ("commfuse", 2))}


def test_experts_are_over_sequential_of_the_same_layout() -> None:
    found = {(one.model, one.gpus, one.schedule): one.gain for one in experts.table(SAMPLES["experts"])}
    assert len(found) == 9
    assert [found["mixtral_8x7b", 1, schedule] for schedule in ("tutel", "clock")] == [1.5, 3]
    assert found["moe_8x550m", 1, "fsmoe"] == 12 / 5.5
    assert found["moe_8x550m", 4, "fsmoe"] == 3


def test_experts_without_sequential_or_memory_are_refused() -> None:
    with pytest.raises(ValueError, match="no run of sequential with moe_8x550m, experts over 4 GPUs each"):
        experts.table(Records([*SAMPLES["experts"].runs[:8], *SAMPLES["experts"].runs[9:]]))
    full = run_of("experts", "zeppelin", out_of_memory=True, config={"parallel": {"expert_tensor_parallel": 1}})
    full.start["config"]["choices"] |= {"model": "mixtral_8x7b", "experts": "lina"}
    with pytest.raises(ValueError, match="no seconds of lina with mixtral_8x7b, which is out of memory"):
        experts.table(Records([full]))


def test_sharding_is_over_zero3_and_over_the_fewest_gpus() -> None:
    found = {(one.sharding, one.over, one.at): one.value for one in sharding.table(SAMPLES["sharding"])}
    assert (found["zero3", "micro-batches", 4], found["three_level", "micro-batches", 4]) == (1, 2)
    assert (found["hpz", "GCDs", 32], found["hpz", "GCDs", 64]) == (1, 0.25)  # twice the GPUs, half of the tokens/s
    assert found["hpz", "GCDs", 384] == pytest.approx(1 / 48 / 12)  # of the other experiment, as of a record of both
    assert ("zero3", "GCDs", 384) not in found  # as of no fewer
    assert ("three_level", "GCDs", 8) not in found  # it does not fit


def test_sync_counts_the_tokens_of_the_last_round() -> None:
    changed = samples()["sync"]
    changed.runs[1].steps[0]["seconds"] = 12.0  # of a round of two steps
    found = {(one.gpus, one.steps, one.is_fast): one.per_second for one in sync.table(changed)}
    tokens = changed.runs[0].steps[0]["tokens"]
    assert found[16, 1, False] == pytest.approx(tokens / 8 / 16)
    assert found[16, 2, False] == pytest.approx(2 * tokens / 16 / 16)
    assert found[128, 0, True] == pytest.approx(tokens / 4 / 128)


def test_headroom_sorts_and_puts_systems_without_memory_last() -> None:
    found = headroom.table(SAMPLES["headroom"])
    assert (found.systems, found.workloads) == (["nodewise", "ring", "zeppelin"], ["github", "arxiv"])
    assert found.ratio.tolist()[:2] == [[0.8, 0.8], [0.5, 0.5]]
    assert found.ratio[2, 0] == 1
    assert np.isnan(found.ratio[2, 1])


def test_the_desk_s_systems_are_measured_and_simulated() -> None:
    found = {(one.workload, one.system): one for one in desk_systems.table(SAMPLES["desk_systems"])}
    assert len(found) == 10
    zeppelin = found["longtail_4k", "zeppelin"]
    assert (zeppelin.measured, zeppelin.simulated, zeppelin.error) == (2, 3, 0.5)
    assert (zeppelin.gain, zeppelin.simulated_gain) == (2, pytest.approx(4 / 3))


def test_a_desk_s_run_that_was_not_simulated_is_refused() -> None:
    with pytest.raises(ValueError, match="desk_systems has nodewise on prolong64k_2k not both measured and simulated"):
        desk_systems.table(Records(SAMPLES["desk_systems"].runs[:-1]))


def test_a_desk_s_run_without_a_step_that_counts_has_no_gain() -> None:
    runs = list(SAMPLES["desk_systems"].runs)
    runs[4] = replace(runs[4], steps=[{**step, "valid": False} for step in runs[4].steps])
    none = next(one for one in desk_systems.table(Records(runs)) if one.measured is None)
    assert (none.system, none.gain, none.error, none.simulated_gain) == ("nodewise", None, None, 4)


def test_the_desk_s_nics_are_drawn_over_time() -> None:
    found = desk_nics.table(SAMPLES["desk_systems"])
    assert [one.name for one in found] == ["ring", "ulysses", "flexsp", "zeppelin", "nodewise"]
    half = np.repeat([0.5, 0.0], nics.BINS // 2)  # one direction of two
    assert found[0].share == pytest.approx(np.stack([half, half]))
    assert [one.mean for one in found] == pytest.approx([0.25] * 5)
    assert found[4].share[:, nics.BINS // 4 :] == pytest.approx(0)  # it ends after a quarter of the ring's step


def test_the_desk_s_parts_are_over_ring() -> None:
    found = desk_parts.table(SAMPLES["desk_parts"])
    assert [(one.parts, one.goal) for one in found[:2]] == [("2 NICs a node", 2), ("4 NICs a node", 4)]
    assert [one.speedup for one in found] == [4] * 2 + [2] * 8
    assert [one.panel for one in found[2::4]] == ["longtail_4k", "prolong64k_2k"]


def test_an_iterations_stages_are_by_system_and_schedules_over_the_synchronous_one() -> None:
    found = rlhf.table(SAMPLES["rlhf"])
    assert found.seconds == {"ring": {"reshard": 1.0, "generate": 6.0, "score": 1.0, "train": 2.0}}
    assert found.speedups == {"synchronous": 1.0, "one step off": 2.0, "synchronous, tail batching": 4.0}


def test_resharding_is_played_with_the_recorded_constants() -> None:
    found = {(one.model, one.engine): one for one in resharding.table(SAMPLES["resharding"])}
    assert set(found) == {(model, engine) for model in resharding.GENERATE for engine in ("hybridflow", "hybridflow_v")}
    for model in resharding.GENERATE:
        own, plain = (found[model, engine] for engine in ("hybridflow", "hybridflow_v"))
        assert own.received < plain.received
        assert 1 > own.saved > plain.saved > 0


def test_placements_are_by_all_gpus_of_a_run() -> None:
    found = placement.table(SAMPLES["placement"])
    assert [(one.placement, one.gpus, one.tokens_per_second) for one in found] == [
        ("colocate", 32, 16.0),
        ("colocate", 128, None),
        ("split", 32, 8.0),
        ("standalone", 32, 4.0),
    ]


# -- pictures ---------------------------------------------------------------------------------------
@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the samples' records and traces."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results" / "paper"
    folder.mkdir(parents=True)
    for name, events in TRACES.items():
        Path(name).write_text(json.dumps({"traceEvents": events}))
    for name, records in SAMPLES.items():
        writer = RecordWriter.open(str(folder / f"{name}.jsonl"))
        for run in records.runs:
            for line in (run.start, *run.steps, run.end):
                writer.append(line)
        writer.close()
    return folder


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["zbench.figures", *arguments])
    return main()


def test_drawing_twice_gives_the_same_bytes(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are drawn, and in the profile `ci` one in three of them again."""
    monkeypatch.setattr(contexts, "GPUS", FEW_GPUS)
    assert call(monkeypatch, "all") == 0
    first = {path: path.read_bytes() for path in (here / f"{name}.{kind}" for name in NAMES for kind in ("svg", "png"))}
    for path in first:
        path.unlink()
    again = [name for (name,) in chequered(NAMES, offset=0, one_in=3)]
    assert call(monkeypatch, *again) == 0
    for path in (here / f"{name}.{kind}" for name in again for kind in ("svg", "png")):
        assert path.read_bytes() == first[path], path


def test_names_and_where_they_come_from(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "ablation", "nics", "ablation") == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == ["results/paper/ablation.svg", "results/paper/nics.svg"]
    assert "the record of ablation was made by other sources; --run makes it anew" in err
    assert stamp(SAMPLES["planning"], planning.where(SAMPLES["planning"])).splitlines() == [
        "above: measured on CPU, 2 cores",
        "below: simulated on a800_4x8 (16, 32 GPUs)",
        "commit 0123456789",
        "python -m zbench experiment=planning",
    ]


def test_a_stamp_tells_what_was_changed_of_a_cluster() -> None:
    run = run_of("nics", "ring")

    def told(*changes: dict[str, object]) -> str:
        starts = [{**run.start, "config": {**run.start["config"], "changes": {"cluster": one}}} for one in changes]
        return simulated(Records([replace(run, start=start) for start in starts]))

    usual = told({})
    assert told({"num_nodes": 8}, {"num_nodes": 2}) == usual
    shape = {"num_nodes": 8, "gpus_per_node": 4, "nics_per_node": 2}
    assert told(shape, shape) == usual.replace(")", "; num_nodes 8; gpus_per_node 4; nics_per_node 2)")
    some = told({"nic_bandwidth": "20 Gbit/s"}, {})
    assert some == usual.replace(")", "; nic_bandwidth 20 Gbit/s in some runs)")
    sizes = [{"device.memory_bytes": f"{size} GiB"} for size in (14, 16, 24, 96)]
    assert told(*sizes) == usual.replace(")", "; device.memory_bytes 14 GiB to 96 GiB)")


def test_a_stamp_tells_of_changes_and_missing_commits() -> None:
    run = run_of("nics", "ring")
    told = []
    for changes in ({"dirty": True}, {"commit": None}):
        start = {**run.start, "fingerprint": {**run.start["fingerprint"], **changes}}
        told.append(stamp(Records([replace(run, start=start)]), "").splitlines()[1])
    assert told == ["commit 0123456789 and uncommitted changes", "commit unknown, sources s"]


@pytest.mark.parametrize("name", NAMES)
def test_the_projects_pictures_are_small_and_have_whole_records(name: str) -> None:
    folder = ROOT / "results" / "paper"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        figure = importlib.import_module(module_name(name))
        if name.startswith("desk_") and not (folder / f"{getattr(figure, 'RECORD', name)}.jsonl").is_file():
            pytest.skip("not measured on emulated nodes yet: make desk")
        patch.setattr(contexts, "GPUS", FEW_GPUS)
        figure.table(load_records(getattr(figure, "RECORD", name), folder))
    assert (folder / f"{name}.svg").stat().st_size < 300_000
    assert (folder / f"{name}.png").is_file()


# -- records ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["lenghts"], "NAME is 'lenghts'; it takes one of ablation, all, .* \\(did you mean lengths\\?\\)"),
        ([], "the following arguments are required: NAME"),
        (
            ["lengths"],
            "figure lengths has no record, results/paper/lengths.jsonl; python -m zbench.figures lengths --run",
        ),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(told, line)


def test_records_that_are_not_whole_are_refused(here: Path) -> None:
    path = here / "scaling.jsonl"
    whole = path.read_text()
    path.write_text(whole.rpartition('{"kind":"end"')[0])
    with pytest.raises(ValueError, match=r"no whole record, .*: the run of line 13 is interrupted; python -m"):
        load_records("scaling", here)
    path.write_text(whole[:-20])
    with pytest.raises(ValueError, match=r"scaling\.jsonl:16: not a line of JSON"):
        load_records("scaling", here)
    path.write_text("")
    with pytest.raises(ValueError, match="it holds no run"):
        load_records("scaling", here)
    Path("inside.json").write_text("[")
    with pytest.raises(ValueError, match=r"trace inside\.json cannot be read"):
        load_records("nics", here)


def test_a_record_of_another_world_is_refused(here: Path) -> None:
    path = here / "scaling.jsonl"
    path.write_text(re.sub(r'"facts": ?{', '"facts":{"world":"latencies x 3",', path.read_text()))
    with pytest.raises(ValueError, match=r"of nominal machines, .*: the run of line 1 is of the world latencies x 3"):
        load_records("scaling", here)


def test_a_record_is_made_once_and_kept_when_an_experiment_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    record = Path("results/paper/costs.jsonl")
    assert call(monkeypatch, "costs", "--run") == 0
    assert "record 1 of 1: costs" in capsys.readouterr().err
    assert {path.name for path in record.parent.iterdir()} == {"costs.jsonl", "costs.svg", "costs.png"}
    assert is_current(load_records("costs"))
    assert {run.start["fingerprint"]["sources"] for run in load_records("costs").runs} == {source_digest()}
    made = record.read_bytes()
    assert call(monkeypatch, "costs", "--run") == 0
    assert record.read_bytes() == made
    with pytest.raises(RecordError, match=r"experiment=nope .* failed: experiment is 'nope'; it takes one of"):
        make("costs", ["nope"])
    assert record.read_bytes() == made
    assert not record.with_name("costs.jsonl.part").exists()


def test_a_record_of_another_experiment_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "scaling.jsonl").write_bytes((here / "lengths.jsonl").read_bytes())
    assert call(monkeypatch, "scaling") == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert (
        "the record of figure scaling has runs of experiment lengths; it takes those of scaling, scaling_large" in told
    )


def test_what_other_sources_did_not_record_is_one_sentence(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = here / "lengths.jsonl"
    path.write_text(path.read_text().replace('"octaves"', '"eighths"'))
    assert call(monkeypatch, "lengths") == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.startswith(
        "zbench: figure lengths needs 'octaves' of every run, which these other sources did not record"
    )


def test_pictures_that_cannot_be_written_are_one_sentence(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "nics.svg").mkdir()
    assert call(monkeypatch, "nics") == 2
    told = capsys.readouterr().err.splitlines()[-1]
    assert told == "zbench: picture is 'results/paper/nics.svg'; that is a folder, and it takes a file"


# -- labels -----------------------------------------------------------------------------------------
@given(st.lists(st.floats(0, 1), min_size=1, max_size=9))
def test_labels_are_apart_and_in_order(values: list[float]) -> None:
    placed = spread_labels(values, 0.1)
    order = np.argsort(values, kind="stable")
    assert (np.diff(np.array(placed)[order]) >= 0.1 - 1e-9).all()
    assert np.mean(placed) == pytest.approx(np.mean(values))


def test_labels_that_are_apart_stay() -> None:
    assert spread_labels([0.9, 0.1, 0.5], 0.1) == [0.9, 0.1, 0.5]


def test_tokens() -> None:
    assert [tokens(value) for value in (512, 4096, 196608, 1 << 20)] == ["512", "4K", "192K", "1M"]
