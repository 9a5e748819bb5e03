"""Sentences below a run's table."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from zbench import CONF, __main__
from zbench.record.record import Run, read
from zbench.run.open_layers import check_pipelines, check_run_fits, open_words
from zbench.run.parts import Parts, resolved
from zbench.run.settings import Settings
from zbench.run.summary import about_words


def parts_of(*words: str) -> tuple[Parts, dict[str, Any]]:
    """The parts of a run, and its configuration."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", list(words))
    return Parts.of(config, Settings.of(config)), resolved(config)


def said(words: list[str], folder: Path, patch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Runs a small step and returns what it prints, its lines joined."""
    small = ["cluster=a800_2x8", "model=llama_3b", "steps=1", "tokens_per_gpu=512", "baseline=null", "tracker=none"]
    patch.chdir(folder)
    patch.setattr(sys, "argv", ["zbench", *words, *small, "out=r.jsonl"])
    assert __main__.main() == 0
    return " ".join(capsys.readouterr().out.split())


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
    config = {"system": system, "choices": {"executor": "torch"}, "experts": {"dispatch": "flat"}, "parallel": {}}
    start = {"config": config, "facts": facts}
    own: Any = SimpleNamespace(start=start, system=object(), parts=SimpleNamespace(pipelines=False))
    model = SimpleNamespace(num_experts=1)
    parts: Any = SimpleNamespace(simulated=simulated, executor=None, nothing_fits=False, open_layers=(), model=model)
    found = [line for line in about_words(own, parts, []) if "no rank waits" in line]
    assert [line.startswith(told) for line in found] == ([True] if told else [])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["system=hydraulis", "sharding=megatron_zero1"],
            "sharding.window is all, which takes 1 with them; sharding.gradient_bucket is end, which takes layer",
        ),
        (["system=nodewise", "sharding=zero3", "sharding.window=0"], "sharding.window is 0, which takes 1 with them."),
        (["system=hydraulis", "sharding=mics"], "sharding.degrees are the run's, which each pipeline would have"),
        (["system=hydraulis", "parallel=tp2"], "parallel.tensor_parallel is 2, which takes 1 with them."),
        (
            ["system=hydraulis", "+model.num_experts=4"],
            "llama_3b has experts, which pipelines of different shapes cannot share.",
        ),
        (
            ["system=hydraulis", "sync=local_sgd", "sync.steps=1"],
            "with sync=local_sgd workers train apart, each without.",
        ),
        (["system=hydraulis"], None),
        (["system=zeppelin", "sharding=megatron_zero1"], None),
    ],
)
def test_systems_that_plan_without_pipelines_of_their_own_say_why(
    words: list[str],
    told: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = [*words, "executor=simulated"]
    found = said(words, tmp_path, monkeypatch, capsys)
    if told is None:
        assert "plans without pipelines of its own" not in found
    else:
        assert f"plans without pipelines of its own: {told}" in found


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["system=hydraulis", "sharding=zero2"], True),
        (["system=hydraulis"], True),
        (["system=hydraulis", "sharding=zero1"], False),
        (["system=hydraulis", "sharding.collectives=hierarchical"], False),  # which has no pipelines of its own
        (["system=zeppelin"], False),
    ],
)
def test_pipelines_of_a_plan_s_own_say_what_they_keep(
    words: list[str], told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    sharding = "zero2" if "sharding=zero2" in words else "zero3"
    line = f"keep parameters and gradients for a step; sharding={sharding} is as zero1 with them."
    assert (line in said(words, tmp_path, monkeypatch, capsys)) == told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["experts.dispatch=two_level"], True),
        (["experts.dispatch=2dh"], True),
        (["experts.dispatch=two_level", "parallel.expert_parallel=4"], False),
        (["experts.dispatch=2dh", "parallel.expert_parallel=4"], False),
        (["experts.dispatch=flat"], False),
    ],
)
def test_two_levels_inside_a_node_are_told_as_one(words: list[str], told: bool) -> None:
    small = ["cluster=local_2x2", "model=tiny", "model.num_experts=4", "parallel.expert_parallel=2", *words]
    parts, config = parts_of(*small)
    start: Any = {"config": config | {"choices": {"executor": "simulated"}}, "facts": parts.facts()}
    own: Any = SimpleNamespace(start=start, system=object(), parts=SimpleNamespace(pipelines=False))
    line = f"{words[0]}: each group's 2 GPUs of experts are in one node of 2, so rows go as with flat."
    assert (line in about_words(own, parts, [])) == told


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["system=zeppelin"], "1 micro-batch for 2 stages: at any time 1 or more of them wait; "),
        (["system=zeppelin", "model.micro_batches=2"], ""),
        (["system=bytescale"], ""),  # which chooses a number
    ],
)
def test_a_pipeline_that_is_never_full_is_told(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = said([*words, "parallel.pipeline_parallel=2", "sharding=zero1"], tmp_path, monkeypatch, capsys)
    assert ("fill the pipeline" in found) == bool(told)
    assert told in found


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["model.experts_per_token=1"],
            "model.gate softmax: a token's share of its one expert is always 1, so routers",
        ),
        (["model.experts_per_token=2"], ""),
    ],
)
def test_a_router_that_learns_nothing_is_told(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = said(["system=ring", "model.num_experts=4", *words], tmp_path, monkeypatch, capsys)
    assert ("learn nothing" in found) == bool(told)
    assert told in found


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["parallel=tp8"],
            "parallel=tp8 takes its place: parallel.pipeline_parallel is 1; parallel.pipeline_parallel=4",
        ),
        ([], ""),
    ],
)
def test_degrees_of_a_model_s_yaml_that_a_choice_has_replaced_are_told(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["steps=1", "tokens_per_gpu=512", "baseline=null", "tracker=none", "system=ring", "model.num_layers=4"]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["zbench", "model=llama_7b_pp4", *small, *words, "out=r.jsonl"])
    assert __main__.main() == 0
    found = " ".join(capsys.readouterr().out.split())
    assert ("model=llama_7b_pp4 chooses parallel=pp4, and" in found) == bool(told)
    assert told in found


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["system=ring", "model.micro_batches=4"],
            "and without stages a system chooses a number by itself, which is 1",
        ),
        (
            ["system=bytescale", "parallel.pipeline_parallel=2", "model.micro_batches=64"],
            "and bytescale chooses a number",
        ),
        (["system=ring", "model.num_experts=4", "experts.skew=1.5"], "experts.skew is 1.5, and every GPU has all"),
        (["system=ring", "model.num_experts=4", "experts.skew=1.5", "experts.capacity=1.25"], ""),
    ],
)
def test_keys_without_an_effect_are_told(
    words: list[str], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = said([*words, "sharding=zero1"], tmp_path, monkeypatch, capsys)
    assert ("by itself" in found or "experts.skew is" in found) == bool(told)
    assert told in found


CHOSEN = {"model": {"tensor_parallel": 1, "pipeline_parallel": 4}, "words": "tensor parallelism 1, 4 stages"}


@pytest.mark.parametrize(
    ("parallel", "told"),
    [
        ({"tensor_parallel": 4, "pipeline_parallel": 1}, ["tensor_parallel itself, 1 in place of 4"]),
        ({"tensor_parallel": 2, "pipeline_parallel": 2}, ["tensor_parallel itself, 1", "pipeline_parallel itself, 4"]),
        ({"tensor_parallel": 1, "pipeline_parallel": 4}, []),
        ({"tensor_parallel": 1, "pipeline_parallel": 1}, []),
    ],
)
def test_a_system_that_chooses_other_degrees_than_the_run_s_says_so(parallel: dict[str, int], told: list[str]) -> None:
    parts, config = parts_of("cluster=local_2x2", "model=tiny")
    choices = {"choices": {"executor": "simulated", "system": "static_best"}, "changes": {}, "parallel": parallel}
    start: Any = {"config": config | choices, "facts": parts.facts(), "chosen": CHOSEN}
    own: Any = SimpleNamespace(start=start, system=object(), parts=parts)
    run: Any = SimpleNamespace(start=start, end=None, steps=[])
    lines = [line for line in about_words(own, parts, [run]) if "itself" in line]
    for line, words in zip(lines, told, strict=True):
        assert line.startswith(f"static_best chooses parallel.{words}")
        assert "system=mesh is a static configuration that takes parallel." in line


@pytest.mark.parametrize(("room", "told"), [("80GiB", False), ("2GiB", True)])
def test_a_run_says_what_its_open_numbers_came_to_and_where_none_fits(room: str, told: bool) -> None:
    words = ["cluster=h100_4x8", "model=llama3_8b", "recompute=full", "memory=zero_offload", "sharding=zero3"]
    words += ["memory.optimizer_layers=auto", "recompute.layers=auto", f"cluster.device.memory_bytes={room}"]
    parts, _ = parts_of(*words)
    assert parts.nothing_fits == told == ("chosen_layers_fit" in parts.facts())
    keys, state = "recompute.layers=auto and memory.optimizer_layers=auto", "has optimizer state of"
    if told:
        said = (
            f"{keys}: the first batch, even on all GPUs, fits with no number of layers, so the run recomputes "
            f"32 layers and {state} 32 layers on hosts"
        )
    else:
        found = parts.chosen_layers
        assert found["recomputed"] == 0
        assert 1 < found["optimizer"] < parts.model.num_layers
        on_hosts = f"{state} {found['optimizer']} layers on hosts"
        said = f"{keys}: by the first batch the run recomputes 0 layers and {on_hosts}."
    assert [line.partition(";")[0] for line in open_words(parts)] == [said]
    assert open_words(replace(parts, open_layers=())) == []
    if told:
        least = replace(parts, cost=parts.cost_of(parts.cluster, replace(parts.model, num_layers=10_000)))
        with pytest.raises(ValueError, match=r"^model is llama3_8b; .* or another model \(recompute\.layers=auto and"):
            check_run_fits(least)


def test_plans_with_pipelines_take_no_open_number_of_recomputed_layers() -> None:
    words = ["cluster=a800_4x8", "model=llama_7b", "sharding=zero1", "tokens_per_gpu=12288", "workload=github"]
    parts, _ = parts_of(*words, "recompute=full", "recompute.layers=auto")
    some: Any = parts.model.recompute_layers
    assert 0 < some < parts.model.num_layers
    pipelined: Any = SimpleNamespace(pipelines=object())
    told = (
        rf"^recompute\.layers is auto, which came to {some} of the 32 layers of llama_7b; hydraulis plans pipelines, "
    )
    with pytest.raises(ValueError, match=told):
        check_pipelines("hydraulis", parts, [pipelined])
    check_pipelines("zeppelin", parts, [SimpleNamespace(pipelines=None)])  # type: ignore[list-item]
    check_pipelines("hydraulis", replace(parts, open_layers=()), [pipelined])


@pytest.mark.parametrize("executor", ["simulated", "torch"])
def test_runs_whose_cpus_update_across_steps_say_what_they_begin_and_end_with(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the record's end line has it, which is read back; a step that is played is of the midst, also the first."""
    host = ["host_bandwidth='25 GB/s'", "host_efficiency=0.8", "host_latency='10 us'", "host_memory='64 GiB'"]
    words = [f"executor={executor}", "cluster=local_2x2", "model=tiny", "model.num_layers=3", "workload=pystdlib"]
    words += [f"cluster.{one}" for one in (*host, "host_adam_bandwidth='1 MB/s'")]
    words += ["tokens_per_gpu=64", "baseline=null", "steps=1", "memory=zero_offload", "sharding=zero1", "tracker=none"]
    monkeypatch.setattr(sys, "argv", ["zbench", *words, "memory.host_updates=across_steps", f"out={tmp_path}/r.jsonl"])
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert __main__.main() == 0
    told = " ".join(capsys.readouterr().out.split())
    (run,), problems = read(str(tmp_path / "r.jsonl"))
    assert not problems
    assert run.end is not None
    last = run.end["last_update"]
    assert last["bytes"]["host"] > 0
    if executor == "simulated":
        first = run.end["first_step"]["seconds"]
        assert first < run.steps[0]["seconds"] <= first + last["seconds"]
        assert f"a run's first step has none and takes {first:.4g} s, and the updates behind its last one" in told
    else:
        assert "step 0 had no gradients to begin with, and what the last step left to update took" in told
        assert "first_step" not in run.end


def test_a_window_that_is_too_wide_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the widest that fits, on GPUs that have room for two layers ahead and not for three."""

    def run(window: int, *words: str) -> tuple[Run, str]:
        out = f"{tmp_path}/{len(words)}_{window}.jsonl"
        common = ["cluster=local_2x2", "model=tiny", "model.num_layers=8", "workload=pystdlib", "tokens_per_gpu=256"]
        common += ["baseline=null", "steps=1", "sharding=zero3", "tracker=none", "recompute=full", "system=ring"]
        given = ["zbench", *common, f"sharding.window={window}", f"out={out}", *words]
        monkeypatch.setattr(sys, "argv", given)
        assert __main__.main() == 0
        (found,), problems = read(out)
        assert not problems
        return found, " ".join(capsys.readouterr().out.split())

    room = max(run(2)[0].steps[0]["peak_bytes"])
    found, told = run(3, f"cluster.device.memory_bytes='{room} B'")
    assert found.end is not None
    assert found.end["window"] == {"step": 0, "fits": 2}
    assert "ring: sharding.window is 3; the plans of step 0, the fullest that is out of memory," in told
    assert "fit with at most 2." in told
