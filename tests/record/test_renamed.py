"""Old names in records are read as today's."""

import pytest
from omegaconf import DictConfig, OmegaConf

from zbench import CONF
from zbench.record.renamed import KEYS, MOST_NESTED, keys_of, old_key, renamed, renamed_baseline, renamed_run


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
        "system": {"_target_": "zbench.systems.ring.Ring", "backward": "carry"},
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


@pytest.mark.parametrize(("group", "choice"), [(group, choice) for group in KEYS for choice in KEYS[group]])
def test_the_table_of_keys_is_of_the_yamls(group: str, choice: str) -> None:
    """What a key is called today is a key of the choice's yaml, and what it was called before is none."""
    own = OmegaConf.load(CONF / group / f"{choice}.yaml")
    assert isinstance(own, DictConfig)
    was, today = set(KEYS[group][choice]), list(KEYS[group][choice].values())
    assert set(today) <= own.keys()
    assert not was & own.keys()
    assert len(set(today)) == len(today)
    assert keys_of(own["_target_"]) == KEYS[group][choice]


def test_older_keys_are_today_s_wherever_a_run_says_them() -> None:
    target = "zbench.systems.zeppelin.planner.Zeppelin"
    old = {
        "system": {"_target_": "systems.zeppelin.Zeppelin", "legs": "serial", "tolerance": 0},
        "workload": {"_target_": "zbench.workloads.lengths_file.LengthsFile", "order": "file"},
        "changes": {"system": {"legs": "serial"}, "workload": {"order": "file"}},
        "baseline": "nodewise",
        "baseline_system": {"heads": False},
    }
    today = {
        "system": {"_target_": target, "routed_transfers": "serial", "tolerance": 0},
        "workload": old["workload"],
        "changes": {"system": {"routed_transfers": "serial"}, "workload": {"order": "file"}},
        "baseline": "nodewise",
        "baseline_system": {"share_heads": False},
    }
    assert renamed_run(old) == renamed_run(today) == today
    baseline = {"name": "zeppelin legs=serial order=false", "system": {"_target_": target, "order": False}}
    named = {"name": "zeppelin routed_transfers=serial list_schedule=false"}
    assert renamed_baseline(baseline) == {**named, "system": {"_target_": target, "list_schedule": False}}
    for plain in (None, 5, {}, {"name": "ring backward=keep", "system": {"backward": "keep"}}):
        assert renamed_baseline(plain) == plain


@pytest.mark.parametrize("key", ["tolerance", "routed_transfers", "nope"])
def test_a_key_that_never_had_another_name_is_no_old_one(key: str) -> None:
    assert old_key(f"system.{key}", "zbench.systems.zeppelin.planner.Zeppelin") is None
    assert old_key("system.legs", "mine.Zeppelin") is None
