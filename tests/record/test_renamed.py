"""Old names in records are read as today's."""

import pytest

from zbench.record.renamed import MOST_NESTED, renamed


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
