"""A record is data: nothing that it names runs but zbench's own parts, and its text stays text."""

import copy
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from zbench import CONF
from zbench.record.record import Run, read
from zbench.run.known import Unknown, from_record, known
from zbench.run.parts import resolved
from zbench.run.replay import Replay

GROUPS = ("system", "workload", "cluster", "model")
RECORDS = sorted((CONF.resolve().parent / "results").glob("*/*.jsonl"))
Config = dict[str, Any]


@pytest.fixture(scope="module")
def config() -> Config:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        words = ["system=zeppelin", "workload=prolong64k", "model=llama_3b", "cluster=a800_2x8", "tokens_per_gpu=1024"]
        return resolved(compose("config", words))


def recorded(config: Config, change: Callable[[Config], object] = lambda config: None) -> Run:
    own = copy.deepcopy(config)
    change(own)
    return Run({"kind": "start", "run": "r1", "config": json.loads(json.dumps(own)), "facts": {"simulated": True}})


def put(*path: str | int) -> Callable[[Config, Any], None]:
    """Returns a function that puts a value at this place of a configuration."""

    def change(config: Any, value: Any) -> None:
        for key in path[:-1]:
            config = config[key]
        config[path[-1]] = value

    return change


PLACES = [
    ("system",),
    ("workload",),
    ("cluster",),
    ("model",),
    ("system", "partition"),
    ("system", "a key of no class"),
    ("workload", "components"),
    ("workload", "components", "short"),
    ("workload", "components", "short", "lengths"),
    ("workload", "components", "short", "lengths", "bins", 0),
    ("cluster", "device"),
    ("cluster", "name"),
    ("model", "num_layers"),
]


@pytest.mark.parametrize("place", PLACES, ids=lambda place: ".".join(map(str, place)))
def test_a_call_anywhere_in_a_record_is_not_made(config: Config, place: tuple[str | int, ...], tmp_path: Path) -> None:
    marker = tmp_path / "PWNED"
    call = {"_target_": "pathlib.Path.touch", "_args_": [{"_target_": "pathlib.Path", "_args_": [str(marker)]}]}
    for attack in (call, [call], {"deep": [[call]]}) if len(place) > 1 else (call,):
        run = recorded(config, lambda config, attack=attack: put(*place)(config, attack))  # type: ignore[misc]
        with pytest.raises(Unknown, match=r"^run r1 names pathlib.Path.touch, which is not part of zbench; --trust"):
            Replay.of(run)
        assert not marker.exists()
    if place == ("system", "partition"):
        with suppress(ValueError):  # the system has no use for what it gets
            Replay.of(run, trust=True)
        assert marker.exists()  # so the attack is one, where it is trusted


TARGETS = [
    "os.system",
    "builtins.eval",
    "zbench.record.writer.RecordWriter.open",  # of zbench, but no part
    "zbench.runtime.checkpoints.folder.remove",
    "zbench.run.known.resolve_name",
    "zbench.systems.ring.Ring.plan",
    "zbench.systems.ring.dataclass",
    "zbench.workloads.corpus.open_documents",
    "zbench.track.TensorBoard",
    "zbench.workloads.fixed.Fixed",  # a part, but no system
    "zbench.systems.ring.Ring ",
    "zbench.systems.ring:Ring",
    "zbench..systems.ring.Ring",
    "systems.ring.Ring",  # which zbench.record.record reads as today's, so nothing that comes here
    "",
    "\x1b[2Jzbench.systems.ring.Ring",
    "x" * 10_000,
    None,
    7,
    True,
    ["zbench.systems.ring.Ring"],
    {"zbench.systems.ring.Ring": 1},
]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: repr(target)[:40])
def test_a_system_is_one_of_zbench_s_systems(config: Config, target: Any) -> None:
    with pytest.raises(Unknown, match="which is not part of zbench; --trust runs it") as told:
        Replay.of(recorded(config, lambda config: put("system", "_target_")(config, target)))
    assert str(told.value).isprintable()
    assert len(str(told.value)) < 200


@pytest.mark.parametrize("word", ["_args_", "_convert_", "_recursive_"])
@pytest.mark.parametrize("place", [("system",), ("workload", "components", "short", "lengths"), ("cluster", "device")])
def test_words_of_hydra_s_that_no_yaml_of_ours_has_are_refused(config: Config, place: Any, word: str) -> None:
    with pytest.raises(Unknown, match=rf"^run r1 has {word} in its {place[0]}, which no {place[0]} of zbench takes"):
        Replay.of(recorded(config, lambda config: put(*place, word)(config, [])))


@pytest.mark.parametrize("text", ["${oc.env:SECRET}", "${seed}", "${oc.create:{_target_: os.getcwd}}", "???", "\\${x}"])
def test_text_stays_text(config: Config, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET", "a token")
    replay = Replay.of(recorded(config, lambda config: put("cluster", "name")(config, text)))
    assert replay.parts.cluster.name == text
    with pytest.raises(ValueError, match="r1 cannot be made again") as told:
        Replay.of(recorded(config, lambda config: put("workload", "context_limit")(config, text)))
    assert "a token" not in str(told.value)


def test_a_part_where_another_belongs_is_a_sentence(config: Config) -> None:
    fixed = {"_target_": "zbench.workloads.fixed.Fixed", "length": 64}
    for place in (("workload", "components", "short", "weight"), ("workload", "context_limit")):
        with pytest.raises(ValueError, match=r"^run r1 cannot be made again from its record: "):
            Replay.of(recorded(config, lambda config, place=place: put(*place)(config, fixed)))  # type: ignore[misc]


@pytest.mark.parametrize("group", GROUPS)
def test_whatever_our_yaml_names_is_made_from_a_record_as_well(group: str) -> None:
    names = sorted(path.stem for path in (CONF / group).glob("*.yaml"))
    assert len(names) > 5
    with initialize_config_dir(str(CONF), version_base="1.3"):
        for name in names:
            whole = compose("config", [f"{group}={name}"])
            assert from_record({group: whole[group]}, group).func.__module__.startswith("zbench.")  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_committed_records_name_known_parts(path: Path) -> None:
    starts: list[Any] = []
    read(str(path), lambda start: bool(starts.append(start)))  # type: ignore[func-returns-value]
    assert starts
    for start in starts:
        for group in GROUPS:
            from_record(start["config"], group)


def test_some_of_them_are_of_older_versions() -> None:
    """They say systems.ring.Ring, and sysconfig.get_path for the standard library."""
    assert any(b'"systems.' in path.read_bytes() for path in RECORDS)


def test_known_parts_are_few_and_classes() -> None:
    assert {name for name in known("workload") if name.rpartition(".")[2].islower()} == {
        "zbench.workloads.stdlib.folder"
    }
    assert known("cluster") == {"zbench.describe.cluster.Cluster", "zbench.describe.device.Device"}
