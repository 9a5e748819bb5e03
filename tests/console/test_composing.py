"""What tests keep of hydra's composing (tests/helpers/composing.py) is what hydra composes anew."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import OmegaConf

from zbench import CONF


def composed(folder: Path, *words: str) -> Any:
    """Returns the configuration of a command of these words, but for where it was found."""
    with initialize_config_dir(str(folder), version_base="1.3"):
        config = compose("config", list(words), return_hydra_config=True)
    OmegaConf.set_struct(config, False)
    del config.hydra.runtime.config_sources
    return config


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy, of which nothing is kept."""
    return Path(shutil.copytree(CONF, tmp_path_factory.mktemp("conf") / "conf"))


@pytest.mark.parametrize(
    "words",
    [
        (),
        ("steps=3", "+model.mask=causal", "~tracker"),
        ("system=ulysses", "cluster.num_nodes=3", "model=tiny"),
        ("model=tiny", "system=ulysses", "seed=5", "model.hidden=64"),
        ("cluster=h100_4x8", "cluster/device=a10_24g", "++own.key=1", "system={remap: false}"),
    ],
    ids=" ".join,
)
def test_what_is_kept_is_what_is_composed_anew(other: Path, words: tuple[str, ...]) -> None:
    anew = composed(other, *words)
    for _ in range(2):
        assert composed(CONF, *words) == anew


def test_what_a_command_changes_is_its_own() -> None:
    before = composed(CONF, "model=tiny")
    before.model.hidden = 1
    assert composed(CONF, "model=tiny").model.hidden > 1
    assert composed(CONF, "model=tiny", "model.hidden=2").model.hidden == 2
    assert composed(CONF, "model=tiny").model.hidden > 2


@pytest.mark.parametrize("words", [("system=nonesuch",), ("nonesuch=1",), ("model@other=tiny",)], ids=" ".join)
def test_what_cannot_be_composed_is_told_as_hydra_tells_it(other: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(HydraException) as anew:
        composed(other, *words)
    for _ in range(2):
        with pytest.raises(HydraException) as kept:
            composed(CONF, *words)
        assert str(kept.value).replace(str(CONF), "") == str(anew.value).replace(str(other), "")


def test_a_changed_yaml_of_another_folder_is_read_anew(other: Path) -> None:
    path = other / "model" / "tiny.yaml"
    composed(other, "model=tiny")
    path.write_text(path.read_text().replace("hidden:", "hidden: 7 #"))
    assert composed(other, "model=tiny").model.hidden == 7
