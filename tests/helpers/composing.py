"""Configurations of zbench's own yamls, which one process of tests composes thousands of times."""

import pickle
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hydra._internal import config_loader_impl
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.defaults_list import DefaultsList
from hydra._internal.sources_registry import SourcesRegistry
from hydra.core.plugins import Plugins
from hydra.plugins.config_source import ConfigSource

from zbench import CONF

OWN = {"hydra.conf", str(CONF), ""}  # what hydra's sources call its own yamls, conf/, and none


@contextmanager
def composed_once() -> Iterator[None]:
    """Has hydra keep what it composes of the same choices of groups: two thirds of composing, a tenth of a second.

    What a command line sets besides (`key=value`) hydra still reads, checks and merges into a copy. Nothing is kept
    where it searches another folder than its own and conf/, which no test writes to, nor where composing fails.
    """
    listing, composing = config_loader_impl.create_defaults_list, ConfigLoaderImpl._compose_config_from_defaults_list
    searching = ConfigLoaderImpl._process_config_searchpath
    searched: set[str | None] = set()  # primary configurations that name no further folder
    listed: dict[tuple[object, ...], DefaultsList] = {}
    groups: dict[str, bool] = {}
    composed: dict[int, bytes | None] = {}  # by the identity of a list in `listed`

    def are_own(repo: Any) -> bool:
        return {source.path for source in repo.get_sources()} <= OWN

    def chooses(repo: Any, word: Any) -> bool:
        key = word.key_or_group
        if key not in groups:
            groups[key] = repo.group_exists(key)
        return groups[key] and not isinstance(word.value(), dict)

    def search_once(self: ConfigLoaderImpl, config_name: str | None, parsed_overrides: Any, repo: Any) -> None:
        own = are_own(repo) and not any(word.get_key_element() == "hydra.searchpath" for word in parsed_overrides)
        if not own or config_name not in searched:
            searching(self, config_name, parsed_overrides, repo)
        if own and are_own(repo):
            searched.add(config_name)

    def list_once(repo: Any, config_name: str | None, overrides_list: Sequence[Any], **given: Any) -> DefaultsList:
        if not are_own(repo):
            return listing(repo, config_name, overrides_list, **given)
        words = [word for word in overrides_list if not word.is_sweep_override()]
        choices = [word for word in words if chooses(repo, word)]
        key = (config_name, *given.items(), *(word.input_line for word in choices))
        if key not in listed:
            listed[key] = listing(repo, config_name, choices, **given)
            composed[id(listed[key].defaults)] = None
        return replace(listed[key], config_overrides=[word for word in words if word not in choices])

    def compose_once(self: ConfigLoaderImpl, defaults: Any, repo: Any) -> Any:
        if id(defaults) not in composed:
            return composing(self, defaults=defaults, repo=repo)
        found = composed[id(defaults)]
        if found is None:
            composed[id(defaults)] = found = pickle.dumps(composing(self, defaults=defaults, repo=repo))
        return pickle.loads(found)

    with pytest.MonkeyPatch.context() as patch:
        Plugins.instance()  # makes the sources known
        for scheme in ("file", "pkg"):
            kind = SourcesRegistry.instance().resolve(scheme)
            patch.setattr(kind, "load_config", _reading_once(kind))
        patch.setattr(config_loader_impl, "create_defaults_list", list_once)
        patch.setattr(ConfigLoaderImpl, "_compose_config_from_defaults_list", compose_once)
        patch.setattr(ConfigLoaderImpl, "_process_config_searchpath", search_once)
        yield


def _reading_once(kind: type[ConfigSource]) -> Any:
    """Returns a source's `load_config` that reads each of zbench's and hydra's own yamls once."""
    reading, read = kind.load_config, dict[str, bytes]()

    def read_once(self: ConfigSource, config_path: str) -> Any:
        if self.path not in OWN:
            return reading(self, config_path)
        if config_path not in read:
            read[config_path] = pickle.dumps(reading(self, config_path))
        return pickle.loads(read[config_path])

    return read_once
