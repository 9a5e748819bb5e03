"""The request of one job of the command line: its composed configuration, and how it came about. An edge: hydra."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf

from zbench.console.overrides import BASELINE_KEYS, check_choices
from zbench.console.sentence import no_key, not_among
from zbench.describe.strategies.strategy_keys import strategy_words
from zbench.describe.strategy import STRATEGY_GROUPS
from zbench.interfaces.published import VARIANT, check_variant, published_keys, told_changes, unpublished
from zbench.record.renamed import old_key
from zbench.record.rows import GROUPS
from zbench.run.checks.yaml_units import check_units
from zbench.run.notes.strategy import replaced_degrees
from zbench.run.presets import Presets, plain_strategy
from zbench.run.settings import Settings
from zbench.run.target import keys_and_published
from zbench.track.default import installed_choice


@dataclass(frozen=True, slots=True)
class Request:
    """A job as the command line asks for it, composed.

    settings: the top-level keys, checked. choices: chosen option of every group.
    changes: per group the keys that differ from that option's yaml.
    unchosen: groups that the executor's yaml chose, and neither the command line nor an experiment.
    baseline: the configuration with the baseline's system in place of the run's; None for no baseline.
    baseline_changes: keys of the baseline's system that differ from its yaml.
    group: what trackers know all runs of the command by, or of the experiment.
    unpublished: why a variant was asked for that the system has not; "" where it has.
    replaced: sentences on what a model's yaml chooses and another choice has replaced.
    chooses_tracker: tracker=auto was asked for; the configuration and the choices have what it came to.
    """

    settings: Settings
    config: DictConfig
    choices: Mapping[str, str | None]
    changes: Mapping[str, Mapping[str, Any]]
    baseline: DictConfig | None
    command: str
    group: str = ""
    chooses_tracker: bool = False
    unchosen: Sequence[str] = ()
    baseline_changes: Mapping[str, Any] = field(default_factory=dict)
    unpublished: str = ""
    replaced: Sequence[str] = ()


def request(config: DictConfig, command: str, command_id: str, presets: Presets) -> Request:
    """Makes the request of a job's composed configuration; only while hydra runs that job.

    presets: what the command's jobs have composed so far.

    Raises:
        ValueError: a top-level key is unknown or has a bad value, a quantity no unit, a group no name, or the baseline
            is no system.
    """
    told = HydraConfig.get()
    given: Any = OmegaConf.to_container(told.overrides.task)  # as written: interpolations are not resolved
    check_choices(given, (*GROUPS, *STRATEGY_GROUPS, "tracker", "experiment"))
    settings = Settings.of(config)
    check_units(config.get("cluster"), config.get("world"), config.get("job"))
    choices = _chosen(told)
    _check_keys(config, given, choices)
    name = str(told.job.config_name)
    changes = {}
    presets.take(name, config, choices, given)
    presets.compose_together(name, choices)
    usual_system, _ = presets.plain(name, "system", choices)
    config, unpublished = _with_published(config, given, usual_system, str(choices.get("system")))
    for group in GROUPS:
        plain, inner = presets.plain(name, group, choices)
        # another cluster/device, or workload@workload.sequences: one word instead of all its constants
        words = {one.removeprefix(f"{group}/").removeprefix(f"{group}@{group}."): word for one, word in inner.items()}
        changes[group] = {**_differences(config.get(group), plain), **words}
    changes["system"] = _told(changes["system"], config["system"])
    usual = presets.strategy(name, choices.get("model"))
    changes["model"] = _with_strategy(changes["model"], config, usual)
    own = presets.chosen_by_model(name, choices.get("model"), "parallel")
    replaced = replaced_degrees(
        str(choices.get("model")), own, usual, str(choices.get("parallel")), plain_strategy(config)["parallel"]
    )
    chooses_tracker = choices.get("tracker") == "auto"
    if chooses_tracker:
        choices["tracker"] = installed_choice()
        config = _with_tracker(config, presets.choice(name, "tracker", choices["tracker"]))
    baseline, baseline_changes = _baseline(config, presets, name, settings.baseline)
    shared = str(choices.get("experiment") or command_id)
    unchosen = (
        ()
        if choices.get("experiment")
        else [group for group in ("cluster", "model") if not any(word.startswith(f"{group}=") for word in given)]
    )
    return Request(
        settings,
        config,
        choices,
        changes,
        baseline,
        command,
        shared,
        chooses_tracker,
        unchosen,
        baseline_changes,
        unpublished,
        replaced,
    )


def _check_keys(config: DictConfig, given: Sequence[str], chosen: Mapping[str, Any]) -> None:
    """Refuses a top-level key that nothing reads: one that the command line adds, as +foo=1, or one of an earlier
    version, which a user's experiment may have.

    An experiment may have keys of its own, which its other keys refer to. chosen: the groups.
    """
    for key in config:
        if told := old_key(str(key), None):
            raise ValueError(told)
    known = (*GROUPS, *STRATEGY_GROUPS, "tracker", *Settings.__dataclass_fields__, BASELINE_KEYS, VARIANT)
    for word in given:
        key = re.split(r"[=.@/]", word.lstrip("+"))[0]
        if word.startswith("+") and key not in known and key not in chosen:
            raise ValueError(f"{key} is not a key; there are {', '.join(known)}")


def _chosen(told: Any) -> dict[str, Any]:
    """Returns the chosen option of every group but hydra's own."""
    return {str(group): choice for group, choice in told.runtime.choices.items() if not str(group).startswith("hydra/")}


def _with_published(config: DictConfig, given: Sequence[str], usual: Any, name: str) -> tuple[DictConfig, str]:
    """Returns (`config` with the system's keys as they were published, where it is asked for; why a variant cannot be,
    "" if it can).

    A key that the command line or an experiment gives stays as it is. usual: the system as its yaml has it.

    Raises:
        ValueError: there is no such variant.
    """
    variant = config.get(VARIANT)
    check_variant(variant)
    keys, published = keys_and_published(config["system"])
    if variant and not published:
        return config, unpublished(name)
    typed = {word.lstrip("+").partition("=")[0] for word in given}
    own = {*_differences(config["system"], usual), *(key for key in published if f"system.{key}" in typed)}
    found = published_keys(keys, published, own if variant else None)
    if not found:
        return config, ""
    config = config.copy()
    OmegaConf.set_struct(config, False)
    for key, value in found.items():
        config["system"][key] = value
    OmegaConf.set_struct(config, True)
    return config, ""


def _told(changes: Mapping[str, Any], system: Any) -> dict[str, Any]:
    """Returns what is changed of a system, as tables name it."""
    return told_changes(changes, *keys_and_published(system))


def _with_tracker(config: DictConfig, chosen: Any) -> DictConfig:
    """Returns `config` with that tracker, and those of its keys that tracker=auto has too."""
    own = {key: config["tracker"][key] for key in chosen if key != "_target_" and key in config["tracker"]}
    config = config.copy()
    OmegaConf.set_struct(config, False)
    config["tracker"] = OmegaConf.merge(chosen, own)
    OmegaConf.set_struct(config, True)
    return config


def _baseline(
    config: DictConfig, presets: Presets, config_name: str, name: str | None
) -> tuple[DictConfig | None, Mapping[str, Any]]:
    """Returns (the configuration with the baseline's system for a system, None without one; what is changed of its
    yaml).

    Raises:
        ValueError: there is no such system, or it has not the keys that are set.
    """
    keys = config.get(BASELINE_KEYS)
    if not (keys is None or OmegaConf.is_dict(keys)):
        raise ValueError(
            f"{BASELINE_KEYS} is {keys!r}; it takes keys of the baseline's yaml, as in {BASELINE_KEYS}.degree=8"
        )
    given = [str(key) for key in keys or ()]
    if name is None:
        for key in given:
            raise ValueError(f"{BASELINE_KEYS}.{key} is set and baseline is null; it takes a system with that key")
        return None, {}
    plain = _system(presets, config_name, name)
    for key in given:
        if key not in plain:
            target = plain.get("_target_")
            raise ValueError(no_key(f"{BASELINE_KEYS}.{key}", f"a key of {name}", map(str, plain), target=target))
    baseline, usual = config.copy(), config.copy()
    for one, system in ((baseline, OmegaConf.merge(plain, keys or {})), (usual, plain)):
        OmegaConf.set_struct(one, False)
        one["system"] = system
    for key, value in published_keys(*keys_and_published(baseline["system"])).items():
        baseline["system"][key] = value
    return baseline, _told(_differences(baseline["system"], usual["system"]), baseline["system"])


def _system(presets: Presets, config_name: str, name: str) -> Any:
    """Returns the system of that name as its yaml has it.

    Raises:
        ValueError: there is none.
    """
    try:
        return presets.choice(config_name, "system", name)
    except MissingConfigException as error:
        raise ValueError(not_among("baseline", name, [*(error.options or []), "null"])) from error
    except CompactHydraException as error:
        raise ValueError(f"baseline is {name!r}; it takes the name of a system or null") from error


def _differences(ours: Any, plain: Any) -> dict[str, Any]:
    """Returns the keys (dotted) of `ours` with other values than in `plain`, as the choice's yaml has them; what both
    take from the same place of another group is none, whatever that group has there."""
    flat, flat_plain = dict(_flat(ours)), dict(_flat(plain))
    written, written_plain = dict(_flat(ours, resolve=False)), dict(_flat(plain, resolve=False))
    taken = {
        key
        for key, value in written.items()
        if isinstance(value, str) and value.startswith("${") and written_plain.get(key) == value
    }
    return {
        key: value
        for key, value in flat.items()
        if key not in taken and (key not in flat_plain or flat_plain[key] != value)
    }


def _with_strategy(changes: dict[str, Any], config: DictConfig, usual: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the changes of a model's yaml with those of the strategy that it is trained by: that is what older
    records have there, which had it as keys of the model, after its sizes. usual: the strategy without any."""
    words = {key: value for key, value in strategy_words(plain_strategy(config)).items() if value != usual[key]}
    keys = list(changes)
    sizes = keys[: keys.index("micro_batches")] if "micro_batches" in keys else keys
    return {key: changes[key] for key in sizes} | words | changes


def _flat(node: Any, prefix: str = "", resolve: bool = True) -> Iterator[tuple[str, Any]]:
    plain: Any = OmegaConf.to_container(node, resolve=resolve) if OmegaConf.is_config(node) else node
    if not isinstance(plain, dict):
        if prefix:
            yield prefix, plain
        return
    for key, value in plain.items():
        yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))
