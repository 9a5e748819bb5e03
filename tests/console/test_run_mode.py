"""What hydra is told of a command's mode: one configuration less is composed, and yamls that may say it are asked."""

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hydra
import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from zbench import CONF
from zbench.console.run_mode import told_mode

SWEEP = "# @package _global_\nhydra: {mode: MULTIRUN, sweeper: {params: {a: '3,4'}}}\n"
YAMLS = {
    "conf/config.yaml": "defaults: [_self_, {experiment: null}, {override hydra/job_logging: none}]\na: 1\n"
    "hydra: {output_subdir: null, run: {dir: .}, sweep: {dir: .}}\n",
    "conf/experiment/sweep.yaml": SWEEP,
    "mine/own/sweep.yaml": SWEEP,
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name, text in YAMLS.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def jobs_of(
    here: Path, words: Sequence[str], told: Callable[[Sequence[str]], contextlib.AbstractContextManager[None]]
) -> tuple[list[tuple[int, RunMode | None]], int]:
    """(`a` and the mode of each job, how many configurations hydra composed)."""
    jobs: list[tuple[int, RunMode | None]] = []
    composed = []
    load = ConfigLoaderImpl.load_configuration

    def counted(*given: Any, **keys: Any) -> DictConfig:
        composed.append(given)
        return load(*given, **keys)

    def job(config: DictConfig) -> None:
        jobs.append((config.a, HydraConfig.get().mode))

    before = Hydra.get_mode
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["zbench", *words])
        patch.setattr(ConfigLoaderImpl, "load_configuration", counted)
        with told(words):
            hydra.main(version_base="1.3", config_path=str(here / "conf"), config_name="config")(job)()
    assert Hydra.get_mode is before
    return jobs, len(composed)


@pytest.mark.parametrize(
    ("words", "values", "saved"),
    [
        ((), [1], 1),
        (("a=2", "+b=3"), [2], 1),
        (("-m", "a=3,4"), [3, 4], 1),
        (("--multirun",), [1], 1),
        (("experiment=sweep",), [3, 4], 0),
        (("experiment=sweep", "a=2"), [2], 0),
        (("hydra.mode=MULTIRUN", "a=3,4"), [3, 4], 0),
        (("--config-dir", "mine", "+own=sweep"), [3, 4], 0),
    ],
    ids=str,
)
def test_modes_are_as_before(here: Path, words: Sequence[str], values: list[int], saved: int) -> None:
    jobs, composed = jobs_of(here, words, told_mode)
    wanted, before = jobs_of(here, words, lambda _: contextlib.nullcontext())
    assert [value for value, _ in jobs] == values
    assert jobs == wanted
    assert composed == before - saved


def test_a_hydra_without_the_method_is_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Hydra, "get_mode")
    with told_mode(["a=2"]):
        assert not hasattr(Hydra, "get_mode")


def test_hydra_is_as_it_was_after_an_error() -> None:
    before = Hydra.get_mode
    with pytest.raises(KeyError), told_mode(["a=2"]):
        raise KeyError(str(Hydra.get_mode is before))
    assert Hydra.get_mode is before


def test_experiments_alone_ask_for_a_sweep() -> None:
    """Of zbench's yamls; one of another group that did would be run as no sweep."""
    asking = {path.parent.name for path in CONF.rglob("*.yaml") if "MULTIRUN" in path.read_text()}
    assert asking == {"experiment"}
