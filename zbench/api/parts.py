"""Clusters, models and systems by name, by yaml or as objects. An edge: yaml is read here, without hydra's state.

A program of the user's own may itself be one of hydra's, so nothing here composes a configuration: a yaml of conf/ is
read with the device, or the model and the groups of a strategy, that its `defaults` name.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from zbench import CONF
from zbench.console.sentence import no_key, not_among, sentence
from zbench.cost.cost import Cost
from zbench.describe.cluster import Cluster
from zbench.describe.mask import Mask
from zbench.describe.model import Model
from zbench.describe.strategy import STRATEGY_GROUPS
from zbench.interfaces.abilities import Chooses
from zbench.interfaces.protocols import System
from zbench.run.choices import CHOOSES, missing_package
from zbench.run.parts import make_system
from zbench.run.target import from_yaml, make_model, make_part, make_strategy, of_whole_step
from zbench.run.yaml_units import check_units

Named = str | os.PathLike[str]
Strategies = Mapping[str, tuple[str | None, Mapping[str, Any]]]  # by group of a strategy: its choice, changed keys


@contextmanager
def told() -> Iterator[None]:
    """Turns errors of yaml, omegaconf and hydra into a ValueError of one sentence; all others pass."""
    try:
        yield
    except ValueError as error:
        if type(error).__module__.split(".")[0] in ("builtins", "zbench"):
            raise
        raise ValueError(_sentence(error)) from error
    except Exception as error:
        if type(error).__module__.split(".")[0] not in ("omegaconf", "hydra", "yaml"):
            raise
        raise ValueError(_sentence(error)) from error


def _sentence(error: Exception) -> str:
    found = sentence(error)
    return " ".join(str(error).split()) if found is None else found[0]


def cluster_named(given: Named | Cluster, keys: Mapping[str, Any] | None = None) -> Cluster:
    """Returns a cluster. given: a name of conf/cluster, the path of a yaml, or a cluster. keys: changed, dotted.

    Raises:
        ValueError: there is none of that name, or it cannot be.
    """
    if isinstance(given, Cluster) and not keys:
        return given
    _check_named("cluster", given, keys or {})
    assert not isinstance(given, Cluster)
    node = _node("cluster", given, keys or {})
    check_units(node)
    made = make_part(from_yaml, OmegaConf.create({"cluster": node}), "cluster")
    if not isinstance(made, Cluster):
        raise ValueError(f"cluster is of type {type(made).__name__}; it takes a zbench.describe.cluster.Cluster")
    return made


def model_named(
    given: Named | Model,
    keys: Mapping[str, Any] | None = None,
    mask: str | None = None,
    strategy: Strategies | None = None,
) -> Model:
    """Returns a model. given: name of conf/model, the path of a yaml, or a model. keys: changed, dotted. mask: causal,
    full or window:N; None: the model's own. strategy: choices and keys of the groups sharding, recompute, parallel and
    experts; what it lacks is as the model's yaml chooses, or conf/config.yaml.

    Raises:
        ValueError: there is none of that name, or it cannot be.
    """
    changed = {group: how for group, how in (strategy or {}).items() if how != (None, {})}
    if isinstance(given, Model) and changed:
        group, (choice, inner) = next(iter(changed.items()))
        raise ValueError(
            f"{group} is {choice or dict(inner)}; that is of a model by name or by yaml, and one that is made already "
            "has its own"
        )
    made: Any = given
    if keys or not isinstance(given, Model):
        _check_named("model", given, keys or {})
        assert not isinstance(given, Model)
        nodes = _model_nodes(given, keys or {}, changed)
        strategy_of_model = make_strategy(nodes)
        of_whole_step(strategy_of_model, False)  # refuses what one layer's attention does not depend on
        made = make_model(nodes, strategy=strategy_of_model)
    if not isinstance(made, Model):
        raise ValueError(f"model is of type {type(made).__name__}; it takes a zbench.describe.model.Model")
    return made if mask is None else replace(made, mask=Mask.of(mask))


def strategy_choices(given: Mapping[str, str | Mapping[str, Any]]) -> Strategies:
    """Returns choices and keys of groups, of a name or keys for each.

    Raises:
        ValueError: there is no such group, or one has neither.
    """
    for group, how in given.items():
        if group not in STRATEGY_GROUPS:
            raise ValueError(f"strategy has {group!r}; it takes {', '.join(STRATEGY_GROUPS)}")
        if not isinstance(how, str | Mapping):
            kind = type(how).__name__
            raise ValueError(f"strategy has {group} of type {kind}; it takes a name of conf/{group}, or its keys")
    return {group: (how, {}) if isinstance(how, str) else (None, how) for group, how in given.items()}


def system_named(given: Named | System, cost: Cost, keys: Mapping[str, Any]) -> tuple[System, str]:
    """Returns (a system that plans for `cost`, its name). given: a name of conf/system, the path of a yaml, or a
    system, which is taken as it is.

    Raises:
        ValueError: there is none of that name, a key is none of its, or it does not plan a batch by itself.
    """
    if not isinstance(given, str | os.PathLike):
        if keys:
            raise ValueError(f"{', '.join(keys)}: keys are of systems by name; one that is made already has its own")
        if not callable(getattr(given, "plan", None)):
            raise ValueError(
                f"system is of type {type(given).__name__}; it takes a name, a yaml, or an object with plan()"
            )
        return given, type(given).__name__
    name = str(given)
    if package := missing_package(name):
        raise ValueError(f"system is {name!r}, which needs the package {package}; it is in zbench's extra peers")
    node = _node("system", given, keys)
    found = make_system(OmegaConf.create({"system": node}), cost, from_yaml)
    if isinstance(found, Chooses):
        raise ValueError(
            f"system is {name!r}, which chooses from a workload's batches before a run; it takes one that plans a "
            "batch by itself, as mesh or nodewise"
        )
    return found, Path(name).stem


def _check_named(group: str, given: object, keys: Mapping[str, Any]) -> None:
    """Refuses what is neither a name nor a path."""
    if not isinstance(given, str | os.PathLike):
        kind = type(given).__name__
        if keys:
            raise ValueError(f"{group} is of type {kind}; keys are changed of a name or a yaml alone")
        raise ValueError(f"{group} is of type {kind}; it takes a name of conf/{group}, a yaml's path or a {group}")


def _model_nodes(given: Named, keys: Mapping[str, Any], strategy: Strategies) -> DictConfig:
    """Returns what a model's yaml says, with its keys changed, and the groups of its strategy.

    strategy: of those that are to be otherwise.
    """
    model, chosen = _loaded_model(given)
    usual = {group: choice for entry in _defaults(CONF / "config.yaml") for group, choice in entry.items()}
    nodes: dict[str, DictConfig] = {"model": _changed("model", given, model, keys)}
    for group in STRATEGY_GROUPS:
        choice, inner = strategy.get(group, (None, {}))
        nodes[group] = _node(group, str(chosen.get(group, usual[group])) if choice is None else choice, inner)
    return OmegaConf.create(nodes)


def _loaded_model(given: Named) -> tuple[DictConfig, dict[str, str]]:
    """Returns what a model's yaml says, with the model that it begins with, and the groups that it chooses."""
    node, path = _read("model", given)
    choices: dict[str, str] = {}
    base = OmegaConf.create()
    for entry in node.pop("defaults", []):
        if isinstance(entry, str):
            base, choices = (base, choices) if entry == "_self_" else _loaded_model(path.with_name(f"{entry}.yaml"))
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


def _defaults(path: Path) -> list[Mapping[str, Any]]:
    """Returns the choices that a yaml's defaults list has."""
    node, _ = _read("config", path)
    return [entry for entry in node["defaults"] if OmegaConf.is_dict(entry)]


def _node(group: str, given: Named, keys: Mapping[str, Any]) -> DictConfig:
    """Returns what a yaml says, with its keys changed, every reference resolved."""
    return _changed(group, given, _loaded(group, given), keys)


def _changed(group: str, given: Named, node: DictConfig, keys: Mapping[str, Any]) -> DictConfig:
    """Returns what the yaml of a choice says with its keys changed, every reference resolved."""
    for key, value in keys.items():
        parent = OmegaConf.select(node, key.rpartition(".")[0]) if "." in key else node
        if not OmegaConf.is_dict(parent) or key.rpartition(".")[2] not in parent:
            known = parent if OmegaConf.is_dict(parent) else node
            target = OmegaConf.to_container(known).get("_target_")  # type: ignore[union-attr]
            raise ValueError(
                no_key(f"{group}.{key}", f"a key of {group}={given}", map(str, known), target=target, value=value)
            )
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
