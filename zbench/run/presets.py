"""Configurations of groups' choices as their yamls have them, each composed once a command. An edge: hydra.

Composing takes a tenth of a second, and a sweep has a few choices of every group in hundreds of combinations.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import hydra
from hydra.core.global_hydra import GlobalHydra
from omegaconf import DictConfig, OmegaConf

from zbench import CONF
from zbench.describe.strategies.strategy_keys import strategy_words
from zbench.describe.strategy import STRATEGY_GROUPS
from zbench.record.rows import GROUPS
from zbench.run.settings import Settings

_ALL = (*GROUPS, *STRATEGY_GROUPS)
_OF_GROUPS = re.compile(rf"\$\{{\s*(?:oc\.select:\s*)?(?:{'|'.join(_ALL)})\b")  # an interpolation of what a group has


@dataclass(slots=True)
class Presets:
    """The configurations that a command has composed so far. composed: configurations, by what chose them."""

    composed: dict[tuple[str, ...], DictConfig] = field(default_factory=dict)

    def plain(self, name: str, group: str, choices: Mapping[str, str | None]) -> tuple[Any, dict[str, str | None]]:
        """Returns the configurations (a group's choice, with those inside of it; those of the latter that are not the
        yaml's own, by group).

        name: of the primary configuration. A yaml that refers to other groups is composed beside their choices.
        """
        overrides = [f"{group}={choices[group]}"] if choices.get(group) else []
        node = self._config(name, *overrides).get(group)
        if node is not None and _OF_GROUPS.search(OmegaConf.to_yaml(node)):
            overrides = [f"{one}={choices[one]}" for one in _ALL if choices.get(one)]
        usual = self._config(name, *overrides).hydra.runtime.choices
        inner = {
            one: choice
            for one, choice in choices.items()
            if one.startswith((f"{group}/", f"{group}@{group}.")) and usual.get(one, choice) != choice
        }
        return self._config(name, *overrides, *(f"{one}={choice}" for one, choice in inner.items())).get(group), inner

    def strategy(self, name: str, model: str | None) -> dict[str, Any]:
        """Returns what the groups of a strategy say where nothing but a model is chosen, whose yaml may choose some."""
        return strategy_words(plain_strategy(self._config(name, *([f"model={model}"] if model else []))))

    def chosen_by_model(self, name: str, model: str | None, group: str) -> str:
        """Returns which choice of a strategy's group there is where nothing but a model is chosen."""
        config = self._config(name, *([f"model={model}"] if model else []))
        return str(config.hydra.runtime.choices[group])

    def compose_together(self, name: str, choices: Mapping[str, str | None]) -> None:
        """Composes those of the groups' choices that have not been composed, all at once: `plain` finds them then.

        Only where hydra searches no folder but zbench's own, whose yamls set nothing in another group
        (tests/run/test_presets.py): what a user's yaml sets there has to be told as a change.
        """
        wanted = [f"{group}={choices[group]}" for group in GROUPS if choices.get(group)]
        missing = [word for word in wanted if (name, word) not in self.composed]
        if len(missing) > 1 and _searches_only_zbench():
            together = hydra.compose(name, missing, return_hydra_config=True)
            self.composed |= {(name, word): together for word in missing}

    def take(self, name: str, config: DictConfig, choices: Mapping[str, str | None], given: Sequence[str]) -> None:
        """Takes a job's own configuration for what `compose_together` would compose, where it is the same: where
        nothing but groups' choices and keys of no group was given.

        given: what the command line, or a sweep, sets.
        """
        plain = {word.partition("=")[0] for word in given} <= {*GROUPS, "tracker", *Settings.__dataclass_fields__}
        if not plain or choices.get("experiment") or not _searches_only_zbench():
            return
        own = config.copy()
        OmegaConf.set_struct(own, False)
        own["hydra"] = {"runtime": {"choices": dict(choices)}}
        self.composed |= {(name, f"{group}={choices[group]}"): own for group in GROUPS if choices.get(group)}

    def choice(self, name: str, group: str, choice: str) -> Any:
        """Returns a group's choice as its yaml has it, from any folder hydra searches: read, where the yaml does
        nothing but set keys, which takes a hundredth of composing it."""
        alone = _read(f"{group}/{choice}")
        return self._config(name, f"{group}={choice}")[group] if alone is None else alone

    def _config(self, *words: str) -> DictConfig:
        """Composes a configuration, once. words: the primary configuration's name, and overrides."""
        if words not in self.composed:
            self.composed[words] = hydra.compose(words[0], list(words[1:]), return_hydra_config=True)
        return self.composed[words]


def plain_strategy(config: DictConfig) -> dict[str, Any]:
    """Returns the groups of a configuration's strategy as plain values."""
    return {group: OmegaConf.to_container(config[group], resolve=True) for group in STRATEGY_GROUPS}


def _read(path: str) -> Any:
    """Returns what the first yaml of that path that hydra finds sets; None where there is none, or it has defaults or a
    package of its own."""
    sources = GlobalHydra.instance().config_loader().get_sources()
    found = next((one.load_config(path) for one in sources if one.is_config(path)), None)
    if found is None or not OmegaConf.is_dict(found.config) or "defaults" in found.config or found.header["package"]:
        return None
    return found.config


def _searches_only_zbench() -> bool:
    """Says whether hydra's search path has nothing but hydra's own configuration and conf/."""
    own = ("pkg://hydra.conf", f"file://{CONF}", str(CONF), "structured://")
    return all(element.path in own for element in GlobalHydra.instance().config_loader().get_search_path().get_path())
