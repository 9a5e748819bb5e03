"""Every optional package is in the extra that its sentence names, and the core of zbench needs none of them."""

import re
import sys
import tomllib
from pathlib import Path

import pytest

from zbench.console.extras import EXTRAS, need

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[<>=\[ ]", requirement)[0].removesuffix("-core") for requirement in requirements}


@pytest.mark.parametrize("package", sorted(EXTRAS))
def test_the_named_extra_has_the_package(package: str) -> None:
    assert package in names(PROJECT["optional-dependencies"][EXTRAS[package]])


def test_the_core_needs_no_optional_package() -> None:
    assert not names(PROJECT["dependencies"]) & set(EXTRAS)


def test_what_is_missing_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    need("numpy", "anything")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        ValueError, match=r"^executor=torch_attention needs the package torch, .* pip install 'zbench\[torch\]'$"
    ):
        need("torch", "executor=torch_attention")
