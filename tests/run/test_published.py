"""Systems as their authors published them: `variant=published`, and the word `published` for a key."""

import re
import sys
from pathlib import Path

import pytest
from hydra.utils import get_class
from omegaconf import OmegaConf

from tests.helpers.variants import SYSTEMS, Variant
from tests.run.test_main import SMALL
from zbench import CONF, __main__
from zbench.cost.cost import Cost
from zbench.interfaces.published import Published, PublishedValue, published_keys, published_of, told_changes
from zbench.record.record import Run, read
from zbench.record.rows import label, rows
from zbench.run.replay import Replay

HAVE = ("bytescale", "fcp", "flexsp", "flexsp_batch_ada", "hydraulis", "ring", "zeppelin")
VALUES: Published = {"a": PublishedValue(1, "there"), "b": PublishedValue(False, "here")}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["zbench", *SMALL, "out=r.jsonl", *arguments])
    return __main__.main()


def runs() -> list[Run]:
    return read("r.jsonl")[0]


def system_of(run: Run) -> dict[str, object]:
    return {key: value for key, value in run.start["config"]["system"].items() if key != "_target_"}


# -- keys ------------------------------------------------------------------------------------------


def test_which_keys_are_set() -> None:
    assert published_keys({"a": 5, "b": True}, VALUES) == {}
    assert published_keys({"a": "published", "b": True}, VALUES) == {"a": 1}
    assert published_keys({"a": 5, "b": True}, VALUES, ()) == {"a": 1, "b": False}
    assert published_keys({"a": 5, "b": True}, VALUES, {"a"}) == {"b": False}
    assert published_keys({"a": "published", "b": True}, VALUES, {"a", "b"}) == {"a": 1}


def test_what_tables_say() -> None:
    both = {"a": 1, "b": False, "c": 3}
    assert told_changes(both, both, VALUES) == both  # a=1 b=False is shorter than variant=published
    every = {"wait": "published", "run_ahead": "published", "c": 3}
    told = {key: PublishedValue("published", "a source") for key in ("wait", "run_ahead")}
    assert told_changes(every, every, told) == {"variant": "published", "c": 3}
    assert told_changes({"a": 1, "c": 3}, {"a": 1, "b": True, "c": 3}, VALUES) == {"a": 1, "c": 3}
    assert told_changes({"a": 1}, {"a": 1, "b": False}, VALUES) == {"a": 1}  # shorter than variant=published
    long = {"tokens_per_rank": PublishedValue("published", "a source")}
    assert told_changes({"tokens_per_rank": "published"}, {"tokens_per_rank": "published"}, long) == {
        "variant": "published"
    }
    assert told_changes({"c": 3}, {"c": 3}, {}) == {"c": 3}


def test_of_a_class_without_any() -> None:
    assert published_of(int) == published_of(None) == {}


@pytest.mark.parametrize("which", SYSTEMS, ids=str)
def test_published_values_are_of_keys_that_the_yaml_has_and_each_has_a_source(which: Variant, uneven: Cost) -> None:
    node = OmegaConf.load(which.path)
    found = published_of(get_class(node["_target_"]))
    assert bool(found) == (which.path.stem in HAVE)
    assert set(found) <= set(node)
    assert all(one.source for one in found.values())
    if found:
        values = {key: one.value for key, one in found.items()}
        assert values != {key: node[key] for key in found}
        Variant(which.path, tuple(values.items())).make(uneven)


def test_the_experiment_of_published_systems_has_all_that_have_such_values() -> None:
    params = OmegaConf.load(CONF / "experiment" / "nodewise_published.yaml").hydra.sweeper.params
    assert sorted(params.system.split(",")) == sorted(HAVE)


# -- the command -----------------------------------------------------------------------------------


def test_a_variant_sets_all_and_is_told_in_tables_and_records(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(monkeypatch, "system=ring", "variant=published") == 0
    (run,) = runs()
    wanted = {"wait": "published", "run_ahead": "published", "padding": "published", "received_kv": "carry"}
    assert system_of(run) == wanted
    assert label(run.start, "system") == rows([run])[0]["system"] == "ring variant=published"
    replay = Replay.of(run)
    (plan,) = replay.plans(run.steps[0])
    assert plan.in_rounds
    assert plan.until_sent
    assert plan.padding is not None


def test_zeppelin_and_the_keys_that_have_words_of_their_own(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call(monkeypatch, "system=zeppelin", "variant=published", "system.remap=false") == 0
    assert call(monkeypatch, "system=zeppelin", "system.routed_transfers=published") == 0
    whole, one = runs()
    of_whole = system_of(whole)
    keys = ("partitioner", "routed_transfers", "list_schedule", "remap")
    assert [of_whole[key] for key in keys] == ["published", "serial", False, False]
    assert label(whole.start, "system") == "zeppelin variant=published remap=False"
    assert label(one.start, "system") == "zeppelin routed_transfers=serial"


def test_a_key_beside_a_variant_stays_as_it_is_given(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is given as the yaml has it, and one that is given otherwise."""
    words = ("system=ring", "variant=published", "system.wait=overlapped", "system.received_kv=keep")
    assert call(monkeypatch, *words) == 0
    (run,) = runs()
    wanted = {"wait": "overlapped", "run_ahead": "published", "padding": "published", "received_kv": "keep"}
    assert system_of(run) == wanted
    assert label(run.start, "system") == "ring run_ahead=published padding=published received_kv=keep"


def test_a_baseline_s_keys_take_the_word_too(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("system=allgather", "baseline=ring", "baseline_system.wait=published")
    assert call(monkeypatch, *words, "baseline_system.received_kv=published") == 0
    baseline, _ = runs()
    assert label(baseline.start, "system") == "ring wait=published"
    assert system_of(baseline)["received_kv"] == "carry"


def test_a_sweep_leaves_out_systems_without_any_and_says_so(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "-m", "system=ring,usp", "variant=null,published") == 0
    assert [label(run.start, "system") for run in runs()] == ["ring", "ring variant=published", "usp"]
    told = " ".join(capsys.readouterr().out.split())
    assert "Left out: variant is published; usp has no published values" in told


def test_a_sweep_of_which_all_are_left_out_is_no_success(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "-m", "system=mesh,usp", "variant=published") == 2
    assert " ".join(capsys.readouterr().err.split()).endswith("no run was made, as all runs of the sweep were left out")


def test_a_single_run_of_such_a_system_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "system=usp", "variant=published") == 2
    told = " ".join(capsys.readouterr().err.split())
    assert told == (
        "zbench: variant is published; usp has no published values (docs/systems/index.md has who has): use "
        "variant=null"
    )
    assert not Path("r.jsonl").exists()


def test_padding_under_a_full_mask_is_refused(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, "system=ring", "system.padding=published", "mask=full") == 2
    assert "system.padding is published, which a full mask would have all tokens see" in capsys.readouterr().err


def test_the_page_of_systems_names_all_that_have_some() -> None:
    page = (CONF.parents[1] / "docs" / "systems" / "index.md").read_text(encoding="utf-8")
    (told,) = [part for part in page.split("\n\n") if part.startswith("**As published.**")]
    assert sorted(set(re.findall(r"^\| \[`(\w+)`\]", told + page.partition(told)[2].split("\n\n")[1], re.M))) == sorted(
        HAVE
    )
