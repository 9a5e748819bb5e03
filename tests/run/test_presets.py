"""Choices as their yamls have them: composed once, and told apart from what was changed in them."""

from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from zbench import CONF
from zbench.record.rows import GROUPS
from zbench.run.presets import Presets

CHOICES = {
    "system": "ring",
    "workload": "github",
    "cluster": "h200_4x8",
    "model": "llama_3b",
    "executor": "torch",
    "world": "nic_3",
    "cluster/device": "h200_141g",
}


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_is_what_all_choices_together_compose(group: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        node, inner = Presets().plain("config", group, CHOICES)
        whole = compose("config", [f"{one}={CHOICES[one]}" for one in GROUPS])
        assert OmegaConf.to_container(node, resolve=True) == OmegaConf.to_container(whole[group], resolve=True)
        assert inner == {}


def test_another_choice_inside_a_group_is_told_and_composed() -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        node, inner = Presets().plain("config", "cluster", {**CHOICES, "cluster/device": "h100_80g"})
    assert inner == {"cluster/device": "h100_80g"}
    assert node.device.name.startswith("H100")
    assert node.name == "h200_4x8"


def test_a_workload_inside_a_workload_is_told_and_composed() -> None:
    key = "workload@workload.sequences"
    with initialize_config_dir(str(CONF), version_base="1.3"):
        usual, told = Presets().plain("config", "workload", {"workload": "responses", key: "longtail_32k"})
        node, inner = Presets().plain("config", "workload", {"workload": "responses", key: "wikipedia"})
    assert (told, inner) == ({}, {key: "wikipedia"})
    assert usual.sequences._target_ == "zbench.workloads.longtail.Longtail"
    assert node.sequences._target_ == "zbench.workloads.histogram.Histogram"
    assert node.prompt_share == usual.prompt_share


def test_a_yaml_that_refers_to_other_groups_sees_their_choices(tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "mine.yaml").write_text("_target_: mine.Mine\nnodes: ${cluster.name}\n")
    with initialize_config_dir(str(CONF), version_base="1.3"):
        presets = Presets()
        chosen = {**CHOICES, "system": "mine"}
        presets.composed["config", "system=mine"] = _searched(tmp_path, "system=mine")
        others = [f"{one}={chosen[one]}" for one in GROUPS]
        presets.composed["config", *others] = _searched(tmp_path, *others)
        node, _ = presets.plain("config", "system", chosen)
    assert OmegaConf.to_container(node, resolve=True)["nodes"] == "h200_4x8"


def _searched(folder: Path, *overrides: str) -> object:
    return compose("config", [f"hydra.searchpath=[{folder}]", *overrides], return_hydra_config=True)


def test_what_was_composed_is_not_composed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        presets = Presets()
        first, _ = presets.plain("config", "cluster", CHOICES)
        monkeypatch.setattr("zbench.run.presets.hydra", None)
        again, _ = presets.plain("config", "cluster", {**CHOICES, "system": "nodewise"})
    assert again is first


@pytest.mark.parametrize("executor", ["simulated", "torch", "desk"])
def test_choices_that_are_composed_together_are_as_each_alone(executor: str) -> None:
    """Also beside an executor's yaml, which chooses a cluster and a model where the command line does not."""
    chosen = {**CHOICES, "executor": executor, "cluster/device": "h100_80g"}
    with initialize_config_dir(str(CONF), version_base="1.3"):
        together, alone = Presets(), Presets()
        together.compose_together("config", chosen)
        assert len({id(config) for config in together.composed.values()}) == 1
        assert {words[1] for words in together.composed} == {f"{group}={chosen[group]}" for group in GROUPS}
        for group in GROUPS:
            (node, inner), (expected, told) = (one.plain("config", group, chosen) for one in (together, alone))
            assert OmegaConf.to_yaml(node) == OmegaConf.to_yaml(expected)
            assert inner == told


@pytest.mark.parametrize(
    ("model", "sharding", "degree"), [("llama_7b", "zero3", 1), ("tiny", "zero1", 1), ("llama_13b_tp2", "zero3", 2)]
)
def test_the_usual_strategy_is_the_one_that_a_model_s_yaml_chooses(model: str, sharding: str, degree: int) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        together, alone = Presets(), Presets()
        together.compose_together("config", {**CHOICES, "model": model})
        said = alone.strategy("config", model)
        assert together.strategy("config", model) == said
    assert (said["sharding"], said["tensor_parallel"]) == (sharding, degree)


def test_no_yaml_of_a_group_sets_what_another_group_has() -> None:
    """compose_together relies on it. An executor's may choose others' defaults, which every choice that is made wins
    over, and set what is no group's; a model's may choose those of its strategy."""
    outside = []
    for path in (path for group in GROUPS for path in (CONF / group).rglob("*.yaml")):
        if "@package" in path.read_text() or "override " in path.read_text():
            outside.append(path.relative_to(CONF).with_suffix("").as_posix())
            keys = OmegaConf.load(path).keys() - {"defaults", path.parent.name}
            assert not keys & {*GROUPS, "tracker"}, path
    models = ("desk", "llama_13b_tp2", "llama_30b_tp4", "llama_7b_pp4", "moe_8x550m", "tiny")
    assert sorted(outside) == [
        "executor/desk",
        "executor/desk_attention",
        "executor/torch",
        "executor/torch_attention",
        *(f"model/{name}" for name in models),
    ]


def test_choices_are_composed_alone_where_hydra_searches_a_users_folder(tmp_path: Path) -> None:
    """Whose yaml may change another group: a model's sizes, which is a change of the model then."""
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "mine.yaml").write_text(
        "# @package _global_\nsystem: {_target_: mine.Mine}\nmodel: {num_layers: 3}\n"
    )
    with initialize_config_dir(str(tmp_path), version_base="1.3"):
        presets = Presets()
        presets.compose_together("config", {**CHOICES, "system": "mine"})
    assert presets.composed == {}


@pytest.mark.parametrize("name", ["static_best", "mesh", "nodewise"])
def test_a_yaml_that_sets_nothing_but_keys_is_read_as_it_composes(name: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        presets = Presets()
        node = presets.choice("config", "system", name)
        assert presets.composed == {}
        assert OmegaConf.to_yaml(node) == OmegaConf.to_yaml(compose("config", [f"system={name}"])["system"])


def test_a_yaml_with_defaults_or_a_package_is_composed() -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        presets = Presets()
        for group, choice in (("cluster", "h200_4x8"), ("executor", "torch")):
            node = presets.choice("config", group, choice)
            assert ("config", f"{group}={choice}") in presets.composed
            assert OmegaConf.to_yaml(node) == OmegaConf.to_yaml(compose("config", [f"{group}={choice}"])[group])


@pytest.mark.parametrize("given", [[], ["system=ring", "workload=github", "steps=3", "seed=2"], ["executor=torch"]])
def test_a_job_that_chooses_nothing_but_groups_is_what_they_compose_together(given: list[str]) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        whole = compose("config", given, return_hydra_config=True)
        choices = dict(whole.hydra.runtime.choices)
        taken, together = Presets(), Presets()
        taken.take("config", compose("config", given), choices, given)
        together.compose_together("config", choices)
        assert taken.composed.keys() == together.composed.keys()
        for group in GROUPS:
            (node, inner), (expected, told) = (one.plain("config", group, choices) for one in (taken, together))
            assert OmegaConf.to_yaml(node) == OmegaConf.to_yaml(expected)
            assert inner == told == {}
        assert taken.strategy("config", choices["model"]) == together.strategy("config", choices["model"])


@pytest.mark.parametrize("given", ["system.window=3", "+cluster.nodes=2", "sharding=zero1", "cluster/device=h100_80g"])
def test_a_job_that_changes_a_choice_is_not_taken_for_it(given: str) -> None:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        presets = Presets()
        presets.take("config", compose("config", []), CHOICES, ["workload=github", given])
    assert presets.composed == {}


def test_all_keys_of_executors_are_theirs() -> None:
    """A key that slips out of `executor` cannot be set, and nothing reads it."""
    own = set(OmegaConf.load(CONF / "config.yaml")) | {"defaults", "executor"}
    found = {path.name: set(OmegaConf.load(path)) for path in (CONF / "executor").glob("*.yaml")}
    apart = {name: keys - own for name, keys in found.items() if "executor" in keys}  # others are a group's own
    assert len(apart) >= 3
    assert not any(apart.values()), apart
