"""The library's functions: what they take and return, what they refuse, and what docs/api.md says of them."""

import inspect
import json
import re
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from numba import njit
from omegaconf import OmegaConf

import zbench
from tests.cost.test_expert_memory import BASE, EIGHT
from tests.helpers import api_page
from zbench import __main__
from zbench.api import compiling, functions
from zbench.api.parts import cluster_named, model_named
from zbench.cost.cost import Cost
from zbench.cost.job import make_cost
from zbench.describe.batch import Batch
from zbench.describe.expert_schedule import Experts
from zbench.describe.strategies.step_strategy import StepStrategy
from zbench.describe.worlds import World
from zbench.planned.step import StepPlans
from zbench.proof.verify import OutOfMemory
from zbench.run.target import make_model
from zbench.simulated.executor import Simulated
from zbench.simulated.offloading import chosen_offload
from zbench.systems.local_packing import LocalPacking
from zbench.systems.ring import Ring

ROOT = Path(__file__).parents[2]
SMALL: Any = {"cluster": "local_2x2", "model": "tiny"}
FUNCTIONS = ("plan", "verify", "simulate", "bound", "load", "compare_runs")


def test_a_plan_is_made_saved_read_and_played(tmp_path: Path) -> None:
    step = zbench.plan([600, 50, 3], system="nodewise", played_placements=2, **SMALL)
    zbench.verify(step)
    step.save(tmp_path / "p.plan")
    found = zbench.load(tmp_path / "p.plan", **SMALL)
    result = zbench.simulate(tmp_path / "p.plan")
    assert result == zbench.simulate(found) == zbench.simulate(step)
    assert 0 < zbench.bound([600, 50, 3], **SMALL) == result.bound_seconds <= result.seconds
    assert "step of 3 sequences, 653 tokens of tiny on local_2x2, planned by nodewise" in str(step)


def test_names_yamls_and_objects_are_the_same() -> None:
    cluster, model = cluster_named("local_2x2"), model_named("tiny")
    by_name = zbench.plan([600, 50], system="ring", **SMALL)
    yamls = {group: ROOT / "conf" / group / f"{name}.yaml" for group, name in {**SMALL, "system": "ring"}.items()}
    by_yaml = zbench.plan(np.array([600, 50]), **yamls)  # type: ignore[arg-type]
    made = zbench.plan([600, 50], cluster=cluster, model=model, system=Ring(by_name.cost))
    assert zbench.simulate(by_name) == zbench.simulate(by_yaml) == zbench.simulate(made)
    assert str(zbench.plan([600], mask="window:8", **SMALL).model.mask) == "window:8"


@pytest.mark.parametrize("path", sorted((ROOT / "conf" / "model").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_model_by_name_is_the_one_that_the_command_line_composes(path: Path) -> None:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        expected = make_model(compose("config", [f"model={path.stem}"]))
    assert model_named(path.stem) == model_named(path) == expected


def test_a_strategy_is_of_a_model_by_name() -> None:
    strategy: Any = {"sharding": "none", "recompute": "full", "parallel": {"tensor_parallel": 2}}
    model = zbench.plan([600, 50, 3], strategy=strategy, **SMALL).model
    assert (model.sharding, model.recompute, model.tensor_parallel, model.pipeline_parallel) == ("none", "full", 2, 1)
    assert model_named("tiny").sharding == "zero1"
    assert zbench.bound([600, 50], strategy={"recompute": "full"}, **SMALL) > zbench.bound([600, 50], **SMALL)


@pytest.mark.parametrize(
    ("strategy", "model"),
    [
        ({"sharding": {"window": 2, "gradient_bucket": "end"}}, "tiny"),
        ({"parallel": "tp2", "overlap": "commfuse"}, "tiny"),
        ({"sharding": {"strategy": "zero3", "collectives": "hierarchical"}}, "tiny"),
        ({"sharding": "hsdp", "memory": {"mlp_chunk_tokens": 64}}, "tiny"),
        ({"parallel": {"expert_parallel": 4}, "experts": {"schedule": "pipemoe", "degree": 2}}, "experts.yaml"),
    ],
)
def test_a_step_keeps_its_strategy(
    strategy: Any, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the library, in its file, and by the words of the command."""
    monkeypatch.chdir(tmp_path)
    tiny = (ROOT / "conf" / "model" / "tiny.yaml").read_text()
    Path("experts.yaml").write_text(
        tiny.replace("num_experts: 1", "num_experts: 4").replace("experts_per_token: 1", "experts_per_token: 2")
    )
    Path("l.txt").write_text("600\n50\n3\n")
    usual: Any = {"cluster": "local_2x2", "model": model, "system": "ring"}
    step = zbench.plan([600, 50, 3], strategy=strategy, **usual)
    played = Simulated(make_cost(step.cluster, step.model), **step.strategy.arguments).step(step.batch, step.plans)
    step.save("p.plan")
    assert zbench.simulate(step) == zbench.simulate("p.plan") == played
    assert played.seconds != zbench.simulate(zbench.plan([600, 50, 3], **usual)).seconds
    words = [
        f"{group}={how}" if isinstance(how, str) else f"{group}.{key}={value}"
        for group, how in strategy.items()
        for key, value in ({"": how} if isinstance(how, str) else how).items()
    ]
    chosen = [f"{group}={name}" for group, name in usual.items()]
    monkeypatch.setattr(sys, "argv", ["zbench", "plan", "l.txt", *chosen, *words, "--out=q"])
    assert __main__.main() == 0
    assert json.loads(Path("q").read_text()) == json.loads(Path("p.plan").read_text())
    capsys.readouterr()


def test_as_few_layers_wait_on_hosts_as_planners_reckon_with_experts_over_gpus() -> None:
    """Not as many as where every GPU has all experts."""
    model = replace(EIGHT, num_layers=12, vocab=1000, sharding="zero1", offload="activations", offload_layers="auto")
    machine = replace(BASE.cluster, device=replace(BASE.cluster.device, memory_bytes=1e9))
    strategy = StepStrategy(expert_parallel=4, experts=Experts(skew=2.0))
    plans = LocalPacking(make_cost(machine, model), pack_tokens=2048).plan(Batch(np.full(8, 2048), 0, 0))
    step = StepPlans(plans, np.full(8, 2048), machine, model, strategy=strategy)
    (fewest, *_) = chosen_offload(plans, step.cost, 1, 1)
    assert 0 < fewest < chosen_offload(plans, make_cost(machine, model), 1, 1)[0]
    assert zbench.simulate(step).recompute["offloaded_layers"] == [fewest]


def test_a_strategy_says_where_tokens_live_that_go_to_experts(tmp_path: Path) -> None:
    tiny, path = (ROOT / "conf" / "model" / "tiny.yaml").read_text(), tmp_path / "experts.yaml"
    path.write_text(
        tiny.replace("num_experts: 1", "num_experts: 4").replace("experts_per_token: 1", "experts_per_token: 2")
    )
    found = {}
    for homes in ("planned", "even", "fastest"):
        strategy = {"parallel": {"expert_parallel": 4}, "experts": {"homes": homes}}
        step = zbench.plan([600, 50, 3], cluster="local_2x2", model=path, system="dp_balanced", strategy=strategy)
        found[homes] = step.plans[0]
    assert np.ptp(found["planned"].tokens_per_rank) > 500 > 1 >= np.ptp(found["even"].tokens_per_rank)
    assert found["fastest"].notes["homes"] in ("planned", "even", "even_in_node")


def test_a_system_is_planned_as_published(tmp_path: Path) -> None:
    """All of its published values, or the word for one key; a key that is given beside a variant stays."""
    lengths: Any = [600, 50, 3]
    own = zbench.plan(lengths, system="ring", **SMALL)
    published = zbench.plan(lengths, system="ring", variant="published", **SMALL)
    by_key = zbench.plan(
        lengths, system="ring", **dict.fromkeys(("wait", "run_ahead", "padding"), "published"), **SMALL
    )
    assert zbench.simulate(published) == zbench.simulate(by_key) != zbench.simulate(own)
    one = zbench.plan(lengths, system="ring", wait="published", **SMALL)
    kept = zbench.plan(lengths, system="ring", variant="published", run_ahead="overlapped", padding="none", **SMALL)
    assert zbench.simulate(one) == zbench.simulate(kept) != zbench.simulate(published)
    published.save(tmp_path / "p.plan")
    assert zbench.simulate(tmp_path / "p.plan") == zbench.simulate(published)


def test_pipelines_are_chosen_only_where_something_runs_them() -> None:
    """nodewise takes a rival's pipelines for a small batch; attention for a model of one's own has none."""
    machine: Any = {"cluster": "a800_2x8", "model": "llama_3b", "system": "nodewise"}
    chosen = zbench.plan([6000, 500, 33], **machine)
    without = zbench.plan([6000, 500, 33], pipelines=False, **machine)
    assert [step.plans[0].pipelines is None for step in (chosen, without)] == [False, True]


def test_a_world_is_a_name_keys_or_an_object() -> None:
    """A plan for a world is for its machine; one of the nominal machine may be played in it."""
    lengths: Any = [600, 50, 3]
    named = zbench.plan(lengths, world="latency_3", system="ring", **SMALL)
    nominal = zbench.plan(lengths, system="ring", **SMALL)
    assert named.cluster == World(latency=3).of_cluster(cluster_named("local_2x2")) != nominal.cluster
    for world in ("latency_3", ROOT / "conf" / "world" / "latency_3.yaml", {"latency": 3}, World(latency=3)):
        assert zbench.simulate(nominal, world=world) == zbench.simulate(named)
    assert zbench.simulate(named).seconds > zbench.simulate(nominal).seconds
    assert zbench.bound(lengths, world={"matmul_rate": 0.5}, **SMALL) > zbench.bound(lengths, **SMALL)
    assert zbench.bound(lengths, world="nominal", **SMALL) == zbench.bound(lengths, **SMALL)


def test_every_cluster_and_model_of_conf_has_a_name() -> None:
    for path in (ROOT / "conf" / "cluster").glob("*.yaml"):
        assert cluster_named(path.stem).name == path.stem or path.stem.startswith("desk")
    assert cluster_named("a800_4x8", {"num_nodes": 2}).num_nodes == 2


def test_plans_of_experts_on_gpus_are_the_faster_of_both_ways_where_steps_are_played() -> None:
    """With play_steps the library takes the faster plan as a run does; play_experts alone chooses one of both."""
    lengths = np.random.default_rng(3).integers(300, 6000, 40).tolist()
    given: Any = {"cluster": "h800_4x8", "model": "moe_8x550m", "system": "nodewise"}
    given["strategy"] = {"sharding": "zero2", "parallel": {"expert_parallel": 8}}
    found = zbench.simulate(zbench.plan(lengths, play_steps=True, **given)).seconds
    ways = [zbench.plan(lengths, play_experts=one, **given) for one in (True, False)]
    assert found == min(zbench.simulate(one).seconds for one in ways)


def test_a_model_by_name_takes_keys_that_its_yaml_leaves_out() -> None:
    experts = {"num_experts": 4, "experts_per_token": 2, "gate": "sigmoid"}
    for name in ("tiny", "llama_7b", "mixtral_8x7b"):
        model = model_named(name, experts)
        assert {key: getattr(model, key) for key in experts} == experts
    with pytest.raises(ValueError, match=r"^model\.num_exprts is not a key of .*; did you mean num_experts\?"):
        model_named("llama_7b", {"num_exprts": 4})


def test_defaults_are_those_of_the_command() -> None:
    config = OmegaConf.load(ROOT / "conf" / "config.yaml")
    chosen = {group: name for entry in config.defaults if OmegaConf.is_dict(entry) for group, name in entry.items()}
    for name in ("cluster", "model", "system"):
        assert inspect.signature(zbench.plan).parameters[name].default == chosen[name]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"lengths": []}, "lengths is empty"),
        ({"lengths": [5, 0]}, "lengths[1] is 0; it takes a whole number from 1"),
        ({"lengths": [5, 1.5]}, "lengths[1] is 1.5"),
        ({"lengths": [True]}, "lengths[0] is True"),
        ({"lengths": "12"}, "lengths is of type str"),
        ({"lengths": np.ones((2, 2), np.int64)}, "lengths[0] is [1, 1]"),
        ({"lengths": [2**40]}, "lengths[0] is 1099511627776"),
        ({"cluster": "a800"}, "cluster is 'a800'; it takes one of"),
        ({"cluster": 5}, "cluster is of type int; it takes a name of conf/cluster"),
        ({"cluster": "no.yaml"}, "cluster is 'no.yaml'; it cannot be read"),
        ({"model": "llama"}, "model is 'llama'; it takes one of"),
        (
            {"strategy": {"sharding": "zero4"}},
            "sharding is 'zero4'; it takes one of ddp, deepspeed_zero3, fsdp2, fsdp2_reshard, fsdp_in_order, hpz, hsdp",
        ),
        (
            {"strategy": {"sharding": 3}},
            "strategy has sharding of type int; it takes a name of",
        ),
        (
            {"strategy": {"shards": "zero1"}},
            "strategy has 'shards'; it takes sharding, recompute, memory, parallel, overlap, experts, sync, job",
        ),
        ({"strategy": {"parallel": {"tensor": 2}}}, "parallel.tensor is not a key of parallel=none"),
        ({"strategy": {"parallel": {"tensor_parallel": 3}}}, "parallel.tensor_parallel is 3; it has to divide"),
        ({"strategy": {"sharding": "zero1"}, "model": model_named("tiny")}, "sharding is zero1; that is of a model by"),
        ({"strategy": "zero1"}, "strategy is of type str; it takes choices by group, as in {'sharding': 'zero1'}"),
        ({"system": "rign"}, "did you mean ring?"),
        ({"system": "static_best"}, "chooses from a workload's batches"),
        ({"system": object()}, "system is of type object; it takes a name"),
        ({"system": "ring", "degre": 2}, "system.degre is not a key of system=ring"),
        ({"sharding": "zero1"}, "no key of a system; it is given as strategy={'sharding': 'zero1'}"),
        ({"system": "zeppelin", "legs": "serial"}, "system.legs is called system.routed_transfers today"),
        ({"mask": "odd"}, "mask is 'odd'"),
        ({"world": "latency"}, "world is 'latency'; it takes one of"),
        ({"world": {"latencies": 3}}, "world.latencies is not a key of world; did you mean latency?"),
        ({"world": {"latency": 0}}, "world.latency is 0; it takes how many times"),
        ({"world": {"nics_above": 400}}, "world.nics_above is 400, which has no unit"),
        ({"world": 3}, "world is of type int; it takes a name of conf/world, a yaml's path, its keys or a World"),
        ({"pipelines": "no"}, "pipelines is 'no'; it takes true or false"),
        ({"variant": "odd"}, "variant is 'odd'; it takes published or null"),
        ({"variant": "published", "system": "nodewise"}, "nodewise has no published values"),
        (
            {"variant": "published", "system": Ring(Cost(cluster_named("local_2x2"), model_named("tiny")))},
            "systems by name",
        ),
        ({"world": "nvlink_1"}, "world is nvlink_1; it changes nothing on local_2x2"),
        ({"world": {"nvlink_channels": 1}}, "world is NVLink channels 1; it changes nothing on local_2x2"),
    ],
)
def test_what_cannot_be_is_one_sentence(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)) as caught:
        zbench.plan(**{"lengths": [600, 50], **SMALL, **changes})
    assert "\n" not in str(caught.value)


def test_a_step_is_played_on_its_own_machine() -> None:
    step = zbench.plan([60], system="ring", **SMALL)
    assert zbench.simulate(step, **SMALL).seconds == zbench.simulate(step).seconds
    with pytest.raises(ValueError, match=r"^the plans are for another cluster: cluster\.name is 'local_2x2' in theirs"):
        zbench.simulate(step, cluster="a800_4x8")


def test_what_is_no_path_is_one_sentence() -> None:
    step = zbench.plan([60], system="ring", **SMALL)
    for call in (zbench.load, zbench.load_plan, zbench.compare_runs, step.save):
        with pytest.raises(ValueError, match=r" (is|has) 5; it takes (the path of one|paths of records)"):
            call(5)  # type: ignore[operator]


def test_what_does_not_fit_is_told() -> None:
    cluster = cluster_named("local_2x2")
    small = replace(cluster, device=replace(cluster.device, memory_bytes=1e6))
    step = zbench.plan([60], cluster=small, model="tiny", system="ring")
    with pytest.raises(OutOfMemory, match="GiB"):
        zbench.verify(step)


def test_importing_zbench_imports_nothing_of_weight() -> None:
    program = "import sys, zbench; assert not {'numpy', 'numba', 'hydra', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True)
    subprocess.run([sys.executable, "-c", "import zbench; zbench.torch.Runtime"], cwd=ROOT, check=True)
    assert set(FUNCTIONS) <= set(dir(zbench))
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        zbench.nope  # type: ignore[attr-defined]  # noqa: B018


def test_the_page_is_made_of_the_docstrings() -> None:
    page = api_page.PAGE.read_text()
    assert api_page.with_functions(page) == page, "python -m tests.helpers.api_page writes it anew"
    assert set(api_page.NAMES) == {*FUNCTIONS, "plan_schedule"}


def test_what_zbench_compiles_is_told_once(capsys: pytest.CaptureFixture[str]) -> None:
    compiling.tell_of_compiling.cache_clear()
    with compiling.compiling_told():
        assert not compiling.has_compiled()
        for _ in range(2):
            njit(lambda x: x + 1)(1)
    assert compiling.has_compiled()
    said = capsys.readouterr().err
    assert said.count("zbench: compiling numerical functions, once after an install") == 1
    compiling.tell_of_compiling.cache_clear()


@pytest.mark.parametrize("name", ["plan", "verify", "simulate", "bound"])
def test_the_examples_run(name: str) -> None:
    found = re.search(r"\n\n((?:    .*\n)+)", inspect.getdoc(getattr(functions, name)) or "")
    assert found
    example = textwrap.dedent(found[1])
    assert "zbench." in example
    names = {"zbench": zbench, "print": lambda *_: None}
    if name in ("plan", "simulate"):
        names["print"] = lambda *told: heard.extend(told)
    heard: list[object] = []
    exec(example, names)
    assert bool(heard) == (name in ("plan", "simulate"))


def test_the_commands_plan_and_simulate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "l.txt").write_text("600\n50\n3\n")
    words = [
        "cluster=local_2x2",
        "--model",
        "tiny",
        "system=nodewise",
        "system.played_placements=2",
        "--out",
        str(tmp_path / "p"),
    ]
    monkeypatch.setattr(sys, "argv", ["zbench", "plan", str(tmp_path / "l.txt"), *words])
    assert __main__.main() == 0
    for world in ([], ["world=latency_3", "world.matmul_rate=0.5"]):
        monkeypatch.setattr(sys, "argv", ["zbench", "simulate", str(tmp_path / "p"), *world])
        assert __main__.main() == 0
    seconds = zbench.simulate(zbench.plan([600, 50, 3], system="nodewise", played_placements=2, **SMALL)).seconds
    told = capsys.readouterr().out
    assert f"simulated: {seconds:.4g} s a step" in told
    assert "played with latencies x 3, matmul rate x 0.5" in told
