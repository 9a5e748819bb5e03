"""Old names in records are read as today's."""

from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf

from zbench import CONF
from zbench.record.old_names import CHOICES, GONE, GONE_TARGETS, KEYS, REGROUPED, RUN_KEYS
from zbench.record.renamed import (
    MOST_NESTED,
    gone_target,
    keys_of,
    old_choice,
    old_key,
    renamed,
    renamed_baseline,
    renamed_iteration,
    renamed_run,
)


def test_names_of_older_records_are_today_s() -> None:
    old = {
        "system": {"_target_": "systems.ring.Ring", "backward": "carry"},
        "workload": {
            "_target_": "workloads.corpus.Corpus",
            "path": {"_target_": "sysconfig.get_path", "name": "stdlib"},
            "parts": [{"lengths": {"_target_": "workloads.fixed.Fixed", "_partial_": True}}],
        },
        "cluster": {"_target_": "zbench.describe.cluster.Cluster", "name": "systems.old"},
    }
    assert renamed(old) == {
        "system": {"_target_": "zbench.systems.ring.Ring", "received_kv": "carry"},
        "workload": {
            "_target_": "zbench.workloads.corpus.Corpus",
            "path": {"_target_": "zbench.workloads.stdlib.folder"},
            "parts": [{"lengths": {"_target_": "zbench.workloads.fixed.Fixed", "_partial_": True}}],
        },
        "cluster": {"_target_": "zbench.describe.cluster.Cluster", "name": "systems.old"},
    }
    assert renamed(renamed(old)) == renamed(old)


@pytest.mark.parametrize("target", ["mine.systems.Mine", "systems_of_mine.Mine", "zbench.systems.ring.Ring", None, 3])
def test_other_names_stay(target: object) -> None:
    assert renamed({"_target_": target}) == {"_target_": target}


def test_other_paths_of_python_s_are_none_of_ours() -> None:
    other = {"_target_": "sysconfig.get_path", "name": "purelib"}
    assert renamed(other) == other


def test_a_bottomless_configuration_is_a_sentence() -> None:
    deep: list[object] = []
    for _ in range(MOST_NESTED + 2):
        deep = [deep]
    with pytest.raises(ValueError, match="nested more than 50 levels deep"):
        renamed(deep)


def yaml_of(path: Path) -> DictConfig:
    found = OmegaConf.load(path)
    assert isinstance(found, DictConfig)
    return found


def own_keys(path: Path) -> DictConfig:
    """Returns a choice's own keys, also where its yaml sets other groups beside them."""
    found = yaml_of(path)
    own = found.get(path.parent.name)
    return own if isinstance(own, DictConfig) else found


YAMLS = {str(own["_target_"]): own for path in CONF.glob("*/*.yaml") if "_target_" in (own := own_keys(path))}


@pytest.mark.parametrize("target", KEYS)
def test_the_table_of_keys_is_of_the_yamls(target: str) -> None:
    """What a key is called today is a key of its class's yaml, and what it was called before is none."""
    own, was, today = YAMLS[target], set(KEYS[target]), list(KEYS[target].values())
    assert set(today) <= own.keys()
    assert not was & own.keys()
    assert {key for key in today if today.count(key) > 1} <= {"free_groups"}  # which was renamed twice


def test_a_run_s_own_keys_are_of_the_configuration() -> None:
    own = yaml_of(CONF / "config.yaml").keys()
    assert set(RUN_KEYS.values()) <= own
    assert not RUN_KEYS.keys() & own


@pytest.mark.parametrize("path", sorted((CONF / "system").glob("*.yaml")), ids=lambda path: path.stem)
def test_a_baseline_s_keys_are_found_by_its_name(path: Path) -> None:
    keys = keys_of(yaml_of(path)["_target_"])
    before = {"baseline": path.stem, "baseline_system": dict.fromkeys(keys, 1)}
    assert renamed_run(before)["baseline_system"] == dict.fromkeys(keys.values(), 1)


def test_older_keys_are_today_s_wherever_a_run_says_them() -> None:
    target = "zbench.systems.zeppelin.planner.Zeppelin"
    old = {
        "system": {"_target_": "systems.zeppelin.Zeppelin", "legs": "serial", "tolerance": 0},
        "workload": {"_target_": "zbench.workloads.lengths_file.LengthsFile", "order": "file"},
        "changes": {"system": {"legs": "serial"}, "workload": {"order": "file"}},
        "baseline": "nodewise",
        "baseline_system": {"heads": False},
        "again": False,
        "free": ["sharding"],
    }
    today = {
        "system": {"_target_": target, "routed_transfers": "serial", "remap_tolerance": 0},
        "workload": old["workload"],
        "changes": {"system": {"routed_transfers": "serial"}, "workload": {"order": "file"}},
        "baseline": "nodewise",
        "baseline_system": {"share_heads": False},
        "rerun": False,
        "free_groups": ["sharding"],
    }
    between = {key: value for key, value in old.items() if key != "free"} | {"free_model_keys": ["sharding"]}
    assert renamed_run(between) == today
    assert renamed_run(old) == renamed_run(today) == today
    baseline = {"name": "zeppelin legs=serial order=false", "system": {"_target_": target, "order": False}}
    named = {"name": "zeppelin routed_transfers=serial list_schedule=false"}
    assert renamed_baseline(baseline) == {**named, "system": {"_target_": target, "list_schedule": False}}
    for plain in (None, 5, {}, {"name": "ring received_kv=keep", "system": {"received_kv": "keep"}}):
        assert renamed_baseline(plain) == plain


@pytest.mark.parametrize("key", ["remap_tolerance", "routed_transfers", "nope"])
def test_a_key_that_never_had_another_name_is_no_old_one(key: str) -> None:
    assert old_key(f"system.{key}", "zbench.systems.zeppelin.planner.Zeppelin") is None
    assert old_key("system.legs", "mine.Zeppelin") is None
    assert old_key("model.num_layers", "zbench.describe.model.Model") is None
    assert old_key("model.sharding", "mine.Model") is None
    assert old_key("rerun", None) is old_key("system.again", "mine.Zeppelin") is None


@pytest.mark.parametrize(
    ("given", "target", "value", "told"),
    [
        ("model.sharding", "zbench.describe.model.Model", "zero1", "sharding today, as in sharding=zero1"),
        ("model.recompute", "zbench.describe.model.Model", None, "recompute today, as in recompute=..."),
        (
            "executor.routing_skew",
            "zbench.simulated.executor.Simulated",
            1.5,
            "experts.skew today, as in experts.skew=1.5",
        ),
    ],
)
def test_a_key_of_another_group_today_is_told_with_its_value(given: str, target: str, value: object, told: str) -> None:
    assert old_key(given, target, value) == f"{given} is called {told}"


@pytest.mark.parametrize("group", CHOICES)
def test_an_earlier_name_of_a_choice_is_told_with_todays(group: str) -> None:
    for was, today in CHOICES[group].items():
        assert old_choice(group, was) == f"{group}={was} is called {group}={today} today"
        assert old_choice(group, today) is None
        assert (CONF / group / f"{today}.yaml").is_file()
        assert not (CONF / group / f"{was}.yaml").exists()


def test_what_is_no_choice_any_more_is_told_with_what_there_is() -> None:
    for group, names in GONE.items():
        for was, instead in names.items():
            assert old_choice(group, was) == f"{group}={was} is no more; {instead}"
            assert not (CONF / group / f"{was}.yaml").exists()
            assert (CONF / group / f"{instead.split()[0].removeprefix(f'{group}=')}.yaml").is_file()
    for target, choice in GONE_TARGETS.items():
        assert gone_target(target) == f"{choice[0]}._target_ is {target}; {old_choice(*choice)}"
        assert not [path for path in CONF.rglob("*.yaml") if target in path.read_text()]
    assert gone_target("zbench.simulated.executor.Simulated") is gone_target(None) is None


@pytest.mark.parametrize("target", REGROUPED)
def test_the_table_of_other_groups_is_of_the_yamls(target: str) -> None:
    """What is typed today is a group, or a key of a group's default; what it was called before is no key any more."""
    assert not REGROUPED[target].keys() & YAMLS[target].keys()
    for today in REGROUPED[target].values():
        group, dot, key = today.partition(".")
        (usual,) = [one[group] for one in yaml_of(CONF / "config.yaml")["defaults"] if group in one]
        assert not dot or key in yaml_of(CONF / group / f"{usual}.yaml")


def test_tokens_of_iterations_were_called_otherwise() -> None:
    then = {"responses": 6, "given_up": 2, "off_policy": 3, "policy_age": 1}
    now = {"response_tokens": 6, "given_up_tokens": 2, "off_policy_tokens": 3, "policy_age": 1}
    assert renamed_iteration(then) == renamed_iteration(now) == now
    assert renamed_iteration("text") == "text"
