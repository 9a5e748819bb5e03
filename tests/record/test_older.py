"""Records of tensor-parallel runs from before facts told GPUs, or groups of them, read as those of today."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from tests.record.test_record import end_line, start_line, step_line
from zbench import CONF
from zbench.describe.expert_schedule import Experts
from zbench.describe.model import Model
from zbench.describe.strategy import MODEL_FIELDS, STRATEGY_GROUPS, Parallel, Recompute, Sharding
from zbench.describe.worlds import World
from zbench.record.flops import Facts
from zbench.record.metrics import figures
from zbench.record.older import as_today, bytes_of_nics, with_all_keys
from zbench.record.record import Line, read
from zbench.record.renamed import renamed
from zbench.record.rows import rows

# Of a run of model=llama_30b_tp4 on cluster=a800_4x8, as it was recorded then.
FACTS = {
    "num_ranks": 8,
    "num_nodes": 4,
    "gpus_per_node": 2,
    "nics_per_node": 2,
    "num_nics": 8,
    "nic_bandwidth": 50e9,
    "peak_flops": 1248e12,
    "memory_bytes": 320e9,
    "device": "tp groups of 4 A800-80G",
    "tensor_parallel": 4,
}
CLUSTER = {"gpus_per_node": 8, "nics_per_node": 4, "nic_bandwidth": "200 Gbit/s", "device": {"name": "A800-80G"}}


def older(facts: dict[str, Any] = FACTS, cluster: Any = CLUSTER) -> tuple[Line, Line]:
    start = start_line(config={"steps": 1, "cluster": cluster})
    start["facts"] = {name: value for name, value in start["facts"].items() if name != "num_gpus"} | facts
    step = step_line(nic_tx_bytes=[10, 7] * 4, nic_rx_bytes=[0, 1] * 4, peak_bytes=[401, 8] * 4, capacity_bytes=320)
    return start, step


def test_facts_are_those_of_the_cluster_as_configured() -> None:
    start, step = older()
    now, (line,) = as_today(start, [step])
    assert {name: now["facts"][name] for name in (*FACTS, "num_gpus", "num_tensor_parallel_groups")} == {
        "num_ranks": 32,
        "num_nodes": 4,
        "gpus_per_node": 8,
        "nics_per_node": 4,
        "num_nics": 16,
        "nic_bandwidth": 25e9,
        "peak_flops": 312e12,
        "memory_bytes": 80e9,
        "device": "A800-80G",
        "tensor_parallel": 4,
        "num_gpus": 32,
        "num_tensor_parallel_groups": 8,
    }
    assert line["nic_tx_bytes"] == [5, 5, 3, 4] * 4
    assert (line["peak_bytes"], line["capacity_bytes"]) == ([101, 101, 101, 101, 2, 2, 2, 2] * 4, 80)
    assert (start, step) == older()  # what was read is not changed
    assert as_today(now, [line]) == (now, [line])


def test_what_was_recorded_before_there_were_worlds_is_nominal(tmp_path: Path) -> None:
    start = start_line(config={"steps": 1, "choices": {"system": "ring"}})
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (start, step_line(), end_line())))
    ((run,), problems) = read(str(path))
    assert problems == []
    config = run.start["config"]
    assert (config["world"], config["planners_see"]) == ({"_target_": "zbench.describe.worlds.World"}, "world")
    assert config["mask"] == "causal"
    assert config["choices"] == {"system": "ring", "world": "nominal"}
    assert instantiate(config["world"]) == World()
    assert with_all_keys(config) == config
    assert with_all_keys("text") == "text"


def test_without_tensor_parallelism_only_the_number_of_gpus_is_added() -> None:
    start, step = older({"num_ranks": 32, "tensor_parallel": 1})
    now, steps = as_today(start, [step])
    assert now["facts"] == {**start["facts"], "num_gpus": 32}
    assert steps == [step]


@pytest.mark.parametrize("tp", [1, 4])
def test_shares_of_a_rank_and_of_its_gpus_are_the_same(tp: int, tmp_path: Path) -> None:
    start, step = older({**FACTS, "tensor_parallel": tp})
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (start, step, end_line())))
    (run,), problems = read(str(path))
    (row,) = rows([run])
    assert problems == []
    assert row["num_gpus"] == 8 * tp
    assert row["mfu"] == pytest.approx(rows_by_rank(start, step)["mfu"])
    assert row["nic_utilization"] == pytest.approx(rows_by_rank(start, step)["nic_utilization"])
    assert row["peak_bytes"] == -(-401 // tp)


def test_what_was_told_of_a_group_is_read_of_each_of_its_gpus() -> None:
    start = start_line(config={"steps": 1})
    start["facts"] |= {"num_ranks": 2, "tensor_parallel": 2, "num_gpus": 4}
    step = step_line(
        attention_seconds=[1.0, 2.0],
        linear_seconds=[3.0, 3.0],
        communication_seconds=[2.0, 1.0],
        exposed_seconds=[0.5, 0.25],
        exposed_nic_seconds=None,
        peak_bytes=[7, 5],
        seconds_for={"attention": [1.0, 2.0], "linear": [3.0, 3.0], "end": [1.0, 0.0]},
    )
    now, (line,) = as_today(start, [step])
    assert (now["facts"]["num_ranks"], now["facts"]["num_tensor_parallel_groups"]) == (4, 2)
    assert line["attention_seconds"] == [1.0, 1.0, 2.0, 2.0]
    assert (line["communication_seconds"], line["exposed_seconds"]) == ([2.0, 2.0, 1.0, 1.0], [0.5, 0.5, 0.25, 0.25])
    assert (line["peak_bytes"], line["exposed_nic_seconds"]) == ([7, 7, 5, 5], None)
    assert line["seconds_for"]["end"] == [1.0, 1.0, 0.0, 0.0]
    assert (line["nic_tx_bytes"], line["capacity_bytes"]) == (step["nic_tx_bytes"], step["capacity_bytes"])
    same = ("imbalance", "exposed_communication", "time_attention", "time_linear", "time_end", "peak_bytes")
    before, after = (figures(Facts.of(one["facts"]), [of]) for one, of in ((start, step), (now, line)))
    for name in same:
        assert getattr(after, name) == pytest.approx(getattr(before, name), rel=1e-12)
    assert as_today(now, [line]) == (now, [line])


def rows_by_rank(start: Line, step: Line) -> dict[str, float]:
    """MFU and NIC utilisation by the groups' own rates."""
    from zbench.record.flops import Facts, mfu
    from zbench.record.metrics import nic_utilization

    facts = Facts.of({**start["facts"], "num_gpus": start["facts"]["num_ranks"]})
    nics = nic_utilization(facts, [step])
    return {"mfu": mfu(facts, [step]), "nic_utilization": sum(nics) / len(nics)}


@pytest.mark.parametrize("cluster", [None, {}, {"nics_per_node": "4"}])
def test_a_run_that_does_not_tell_its_nics_is_named_and_left_out(cluster: Any, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (*older(cluster=cluster), start_line("r2"))))
    runs, problems = read(str(path))
    assert [run.start["run"] for run in runs] == ["r2"]
    (told,) = problems
    assert told.startswith(f"{path}:1: facts of the start line are not those of groups of 4 GPUs")


def test_ports_served_messages_as_the_plan_has_them() -> None:
    cluster = {"_target_": "zbench.describe.cluster.Cluster", "name": "c"}
    assert with_all_keys({"cluster": cluster})["cluster"] == {**cluster, "port_order": "plan"}
    other = {**cluster, "port_order": "longest_waiting"}
    assert with_all_keys({"cluster": other})["cluster"] == other
    assert with_all_keys({"cluster": {"name": "c"}})["cluster"] == {"name": "c"}


def test_computes_beside_messages_were_not_slowed() -> None:
    device = {"_target_": "zbench.describe.device.Device", "name": "d"}
    cluster = {"_target_": "zbench.describe.cluster.Cluster", "name": "c", "port_order": "plan"}
    found = with_all_keys({"cluster": {**cluster, "device": device}})["cluster"]
    assert found == {**cluster, "device": {**device, "compute_slowdown": 1.0}}
    slowed = {**device, "compute_slowdown": 1.2}
    assert with_all_keys({"cluster": {**cluster, "device": slowed}})["cluster"]["device"] == slowed
    assert with_all_keys({"cluster": {**cluster, "device": "d"}})["cluster"]["device"] == "d"


OLDER = {
    "model": {
        "_target_": "zbench.describe.model.Model",
        "name": "m",
        "recompute": "full",
        "sharding": "zero1",
        "tensor_parallel": 2,
        "micro_batches": 4,
    },
    "executor": {
        "_target_": "zbench.simulated.executor.Simulated",
        "window": 2,
        "expert_parallel": 4,
        "routing_skew": 0.5,
    },
    "changes": {"model": {"sharding": "zero1"}, "executor": {"window": 2}},
}


def test_a_strategy_is_read_from_the_keys_that_the_model_and_the_executor_had() -> None:
    config = with_all_keys(OLDER)
    assert config["model"] == {"_target_": "zbench.describe.model.Model", "name": "m", "micro_batches": 4}
    assert config["executor"] == {"_target_": "zbench.simulated.executor.Simulated"}
    assert config["changes"] == OLDER["changes"]  # what its tables call it
    assert instantiate(config["sharding"]) == Sharding("zero1", 2)
    assert instantiate(config["recompute"]) == Recompute("full")
    assert instantiate(config["parallel"]) == Parallel(2, 1, 4)
    assert instantiate(config["experts"]) == Experts(skew=0.5)
    assert with_all_keys(config) == config


@pytest.mark.parametrize("name", ["llama_7b", "tiny", "desk", "moe_8x550m", "llama_30b_tp4", "llama_7b_pp4"])
def test_a_strategy_of_before_is_what_the_same_choices_compose_today(name: str) -> None:
    """So that runs of before and of today compare as equal."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [f"model={name}"])
    today = {group: OmegaConf.to_container(config[group], resolve=True) for group in ("model", *STRATEGY_GROUPS)}
    fields = {field: today[group][key] for field, (group, key) in MODEL_FIELDS.items()}  # type: ignore[call-overload,index]
    before = {"model": {**today["model"], **fields}, "executor": {}}  # type: ignore[dict-item]
    assert {group: with_all_keys(before)[group] for group in today} == today


def test_a_model_that_left_sharding_out_was_sharded_as_its_class_says() -> None:
    config = with_all_keys({"model": {"name": "m"}})
    fields = {field: config[group][key] for field, (group, key) in MODEL_FIELDS.items()}
    usual = Model("m", 1, 64, 1, 1, 64, 64, 64)
    assert fields == {field: getattr(usual, field) for field in fields}


@given(st.lists(st.integers(0, 10**15), min_size=1, max_size=9), st.integers(1, 8))
def test_nics_that_are_one_carry_all_of_its_bytes_evenly(sizes: list[int], bonded: int) -> None:
    found = np.array(bytes_of_nics(sizes, bonded)).reshape(len(sizes), bonded)
    assert found.sum(axis=1).tolist() == sizes
    assert (found.max(axis=1) - found.min(axis=1) <= 1).all()


@pytest.mark.parametrize(
    ("target", "was", "now"),
    [
        ("zbench.runtime.executor.Torch", "torch", "torch_attention"),
        ("zbench.runtime.step_executor.TorchWholeStep", "torch_whole_step", "torch"),
        ("zbench.desk.executor.Desk", "desk", "desk_attention"),
        ("zbench.desk.step_executor.DeskWholeStep", "desk_whole_step", "desk"),
    ],
)
def test_an_executor_of_an_older_record_has_the_name_of_its_class_today(target: str, was: str, now: str) -> None:
    """Names changed hands: torch of a record of before is not torch of today."""
    config = with_all_keys(renamed({"executor": {"_target_": target, "seed": 0}, "choices": {"executor": was}}))
    assert config["choices"]["executor"] == now
    yaml = OmegaConf.load(CONF / "executor" / f"{now}.yaml")
    assert config["executor"] == {"_target_": yaml["executor"]["_target_"], "seed": 0}
    assert with_all_keys(config) == config
