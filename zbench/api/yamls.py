"""The yamls of conf/ as they are read without hydra's state. An edge.

A program of the user's own may itself be one of hydra's, so nothing here composes a configuration: a yaml of conf/ is
read with the device, or the model and the groups of a strategy, that its `defaults` name.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from zbench import CONF
from zbench.console.sentence import no_key, not_among
from zbench.describe.strategies.strategy_keys import MODEL_KEYS
from zbench.describe.strategy import STRATEGY_GROUPS
from zbench.run.choices import CHOOSES

Named = str | os.PathLike[str]


def loaded_model(given: Named) -> tuple[DictConfig, dict[str, str]]:
    """Returns what a model's yaml says, with the model that it begins with, and the groups that it chooses."""
    node, path = _read("model", given)
    choices: dict[str, str] = {}
    base = OmegaConf.create()
    for entry in node.pop("defaults", []):
        if isinstance(entry, str):
            base, choices = (base, choices) if entry == "_self_" else loaded_model(path.with_name(f"{entry}.yaml"))
            continue
        ((key, choice),) = entry.items()
        group = str(key).rpartition(".")[2]
        if group not in STRATEGY_GROUPS or key != f"override /{group}@_global_.{group}":
            raise ValueError(
                f"model is {str(given)!r}, whose defaults have {key}; here they take a model's name, and choices as in "
                "override /sharding@_global_.sharding: zero1"
            )
        choices[group] = str(choice)
    merged = OmegaConf.merge(base, node)
    assert isinstance(merged, DictConfig)
    return merged, choices


def defaults_of(path: Path) -> list[Mapping[str, Any]]:
    """Returns the choices that a yaml's defaults list has."""
    node, _ = _read("config", path)
    return [entry for entry in node["defaults"] if OmegaConf.is_dict(entry)]


def node_of(group: str, given: Named, keys: Mapping[str, Any]) -> DictConfig:
    """Returns what a yaml says, with its keys changed, every reference resolved."""
    return changed_node(group, given, _loaded(group, given), keys)


def changed_node(group: str, given: Named, node: DictConfig, keys: Mapping[str, Any]) -> DictConfig:
    """Returns what the yaml of a choice says with its keys changed, every reference resolved."""
    for key, value in keys.items():
        parent = OmegaConf.select(node, key.rpartition(".")[0]) if "." in key else node
        usual = group == "model" and key in MODEL_KEYS  # which any model has, said by its yaml or not
        if not usual and (not OmegaConf.is_dict(parent) or key.rpartition(".")[2] not in parent):
            known = parent if OmegaConf.is_dict(parent) else node
            names = dict.fromkeys((*map(str, known), *(sorted(MODEL_KEYS) if group == "model" else ())))
            target = OmegaConf.to_container(known).get("_target_")  # type: ignore[union-attr]
            raise ValueError(no_key(f"{group}.{key}", f"a key of {group}={given}", names, target=target, value=value))
        OmegaConf.update(node, key, value)
    whole = OmegaConf.create({group: node})
    OmegaConf.resolve(whole)
    resolved = whole[group]
    assert isinstance(resolved, DictConfig)
    return resolved


def _read(group: str, given: Named) -> tuple[DictConfig, Path]:
    """Returns what a choice's own yaml says, and where that is."""
    path = Path(given)
    if path.suffix not in (".yaml", ".yml"):
        names = [one.stem for one in (CONF / group).glob("*.yaml") if one.stem not in CHOOSES]
        if str(given) not in names and str(given) not in CHOOSES:
            raise ValueError(not_among(group, str(given), names))
        path = CONF / group / f"{given}.yaml"
    try:
        node = OmegaConf.load(path)
    except OSError as error:
        raise ValueError(f"{group} is {str(given)!r}; it cannot be read: {error.strerror}") from error
    if not isinstance(node, DictConfig):
        raise ValueError(f"{group} is {str(given)!r}, whose yaml has no keys; it takes those of one of conf/{group}")
    return node, path


def _loaded(group: str, given: Named) -> DictConfig:
    """Returns what a choice's yaml says, a cluster's with its device."""
    node, path = _read(group, given)
    for entry in node.pop("defaults", []):
        if entry == "_self_":
            continue
        if group != "cluster" or not OmegaConf.is_dict(entry) or list(entry) != ["device"]:
            raise ValueError(f"{group} is {str(given)!r}, whose defaults have {entry}; here they take a device alone")
        own = path.parent / "device" / f"{entry['device']}.yaml"
        device = _loaded("cluster/device", own if own.is_file() else str(entry["device"]))
        node["device"] = OmegaConf.merge(device, node.get("device") or {})
    return node
