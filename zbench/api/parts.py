"""Clusters, models, systems and worlds by name, by yaml (zbench.api.yamls) or as objects."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from zbench import CONF
from zbench.api.yamls import Named, changed_node, defaults_of, loaded_model, node_of
from zbench.console.sentence import no_key, sentence
from zbench.cost.cost import Cost
from zbench.describe.cluster import Cluster
from zbench.describe.mask import Mask
from zbench.describe.model import Model
from zbench.describe.strategies.step_strategy import USUAL_STRATEGY, StepStrategy
from zbench.describe.strategy import MODEL_FIELDS, STRATEGY_GROUPS
from zbench.describe.worlds import NOMINAL, Machine, World
from zbench.interfaces.abilities import Chooses
from zbench.interfaces.protocols import System
from zbench.interfaces.published import VARIANT, check_variant, published_keys, unpublished
from zbench.run.checks.yaml_units import check_units
from zbench.run.choices import missing_package
from zbench.run.system import make_system
from zbench.run.target import (
    check_steps_alone,
    from_yaml,
    keys_and_published,
    make_model,
    make_part,
    make_strategy,
)

Worlds = Named | World | Mapping[str, Any] | None
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
    node = node_of("cluster", given, keys or {})
    check_units(node)
    made = make_part(from_yaml, OmegaConf.create({"cluster": node}), "cluster")
    if not isinstance(made, Cluster):
        raise ValueError(f"cluster is of type {type(made).__name__}; it takes a zbench.describe.cluster.Cluster")
    return made


def model_named(given: Named | Model, keys: Mapping[str, Any] | None = None, mask: str | None = None) -> Model:
    """Returns a model whose attention is looked at alone. given, keys, mask: as of trained_named.

    Raises:
        ValueError: there is none of that name, it cannot be, or it is trained in a way that only whole steps have.
    """
    made, own = trained_named(given, keys, mask)
    own.check_attention_alone({name: getattr(made, name) for name in MODEL_FIELDS})
    return made


def trained_named(
    given: Named | Model,
    keys: Mapping[str, Any] | None = None,
    mask: str | None = None,
    strategy: Strategies | None = None,
) -> tuple[Model, StepStrategy]:
    """Returns a model, and what whole steps of it have beside its fields. given: name of conf/model, the path of a
    yaml, or a model. keys: changed, dotted. mask: causal, full or window:N; None: the model's own. strategy: choices
    and keys of the strategy's groups; what it lacks is as the model's yaml chooses, or conf/config.yaml.

    Raises:
        ValueError: there is none of that name, it cannot be, or is trained in rounds or on rollouts.
    """
    changed = {group: how for group, how in (strategy or {}).items() if how != (None, {})}
    if isinstance(given, Model) and changed:
        group, (choice, inner) = next(iter(changed.items()))
        raise ValueError(
            f"{group} is {choice or dict(inner)}; that is of a model by name or by yaml, and one that is made already "
            "has its own"
        )
    made: Any = given
    own = USUAL_STRATEGY
    if keys or not isinstance(given, Model):
        _check_named("model", given, keys or {})
        assert not isinstance(given, Model)
        nodes = _model_nodes(given, keys or {}, changed)
        chosen = make_strategy(nodes)
        check_steps_alone(chosen)
        made, own = make_model(nodes, strategy=chosen), StepStrategy.of(chosen)
    if not isinstance(made, Model):
        raise ValueError(f"model is of type {type(made).__name__}; it takes a zbench.describe.model.Model")
    return (made if mask is None else replace(made, mask=Mask.of(mask))), own


def strategy_choices(given: Mapping[str, str | Mapping[str, Any]]) -> Strategies:
    """Returns choices and keys of groups, of a name or keys for each.

    Raises:
        ValueError: there is no such group, or one has neither.
    """
    if not isinstance(given, Mapping):
        raise ValueError(
            f"strategy is of type {type(given).__name__}; it takes choices by group, as in {{'sharding': 'zero1'}}"
        )
    for group, how in given.items():
        if group not in STRATEGY_GROUPS:
            raise ValueError(f"strategy has {group!r}; it takes {', '.join(STRATEGY_GROUPS)}")
        if not isinstance(how, str | Mapping):
            kind = type(how).__name__
            raise ValueError(f"strategy has {group} of type {kind}; it takes a name of conf/{group}, or its keys")
    return {group: (how, {}) if isinstance(how, str) else (None, how) for group, how in given.items()}


def system_named(
    given: Named | System, cost: Cost, keys: Mapping[str, Any], variant: str | None = None
) -> tuple[System, str]:
    """Returns (a system that plans for `cost`, its name). given: a name of conf/system, the path of a yaml, or a
    system, which is taken as it is. variant: "published" for the values that its authors published where `keys` has
    none; None for its yaml's. A key may have the word "published", too.

    Raises:
        ValueError: there is none of that name, a key is none of its, it has no such variant, or it does not plan a
            batch by itself.
    """
    check_variant(variant)
    if not isinstance(given, str | os.PathLike):
        if variant:
            raise ValueError(
                f"{VARIANT} is {variant}; that is of systems by name, and one that is made has its own keys"
            )
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
    node = node_of("system", given, keys)
    own, published = keys_and_published(node)
    if variant and not published:
        raise ValueError(unpublished(Path(name).stem))
    for key, value in published_keys(own, published, keys if variant else None).items():
        node[key] = value
    found = make_system(OmegaConf.create({"system": node}), cost, from_yaml)
    if isinstance(found, Chooses):
        raise ValueError(
            f"system is {name!r}, which chooses from a workload's batches before a run; it takes one that plans a "
            "batch by itself, as mesh or nodewise"
        )
    return found, Path(name).stem


def world_named(given: Worlds, keys: Mapping[str, Any] | None = None) -> World:
    """Returns a world. given: a name of conf/world, the path of a yaml, what it changes by key, or a world; None: the
    nominal one. keys: changed or added.

    Raises:
        ValueError: there is none of that name, or it cannot be.
    """
    if isinstance(given, World) and not keys:
        return given
    if isinstance(given, Mapping):
        changes = dict(given)
    elif given is None or isinstance(given, str | os.PathLike):
        changes = {str(key): value for key, value in node_of("world", given or NOMINAL, {}).items()}
    else:
        kind = type(given).__name__
        raise ValueError(f"world is of type {kind}; it takes a name of conf/world, a yaml's path, its keys or a World")
    changes = {key: value for key, value in {**changes, **(keys or {})}.items() if key != "_target_"}
    known = [field.name for field in fields(World)]
    if wrong := [key for key in changes if key not in known]:
        raise ValueError(no_key(f"world.{wrong[0]}", "a key of world", known))
    check_units(None, changes)
    return World(**changes)


def machine_in(given: Worlds, cluster: Cluster, model: Model, keys: Mapping[str, Any] | None = None) -> Machine:
    """Returns a cluster and the model that is trained on it in a world. given, keys: as of world_named.

    Raises:
        ValueError: there is no such world, the machine has none such, or it changes nothing of it.
    """
    world, machine = world_named(given, keys), Machine(cluster, model)
    if reason := world.missing(machine):
        name = given if isinstance(given, str) and not keys else world.words
        raise ValueError(f"world is {name}; {reason}: use world=nominal")
    return world.of(machine)


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
    model, chosen = loaded_model(given)
    usual = {group: choice for entry in defaults_of(CONF / "config.yaml") for group, choice in entry.items()}
    nodes: dict[str, DictConfig] = {"model": changed_node("model", given, model, keys)}
    for group in STRATEGY_GROUPS:
        choice, inner = strategy.get(group, (None, {}))
        nodes[group] = node_of(group, str(chosen.get(group, usual[group])) if choice is None else choice, inner)
    return OmegaConf.create(nodes)
