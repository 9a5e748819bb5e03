"""Replaces names that older records give to parts and to their keys by today's names (old_names). Pure.

The folders of systems and workloads were packages of their own once, workload=pystdlib found the standard library by a
function of Python's, and modules lay in zbench/ itself. Keys of yamls and choices get other names, too: `old_key` and
`old_choice` tell a user of them. Records are read under today's names, so that old and new runs of the same thing
compare as equal.
"""

from collections.abc import Mapping
from typing import Any

from zbench.record.old_names import (
    CHOICES,
    GONE,
    GONE_TARGETS,
    ITERATION_KEYS,
    KEYS,
    MOVED,
    REGROUPED,
    RUN_KEYS,
    VALUES,
)

MOST_NESTED = 50  # levels of a configuration; those of our yaml have five
_PACKAGES = ("systems.", "workloads.")
_STDLIB_WAS = {"_target_": "sysconfig.get_path", "name": "stdlib"}
_STDLIB = {"_target_": "zbench.workloads.stdlib.folder"}


def renamed(config: Any, level: int = 0) -> Any:
    """Returns the configuration with today's names of what zbench itself once called otherwise.

    Raises:
        ValueError: it is nested more deeply than any configuration is.
    """
    if level > MOST_NESTED:
        raise ValueError(f"a configuration nested more than {MOST_NESTED} levels deep")
    if isinstance(config, list):
        return [renamed(value, level + 1) for value in config]
    if not isinstance(config, dict):
        return config
    if config == _STDLIB_WAS:
        return dict(_STDLIB)
    made = {key: renamed(value, level + 1) for key, value in config.items()}
    target = made.get("_target_")
    if isinstance(target, str):
        name = f"zbench.{target}" if target.startswith(_PACKAGES) else target
        made["_target_"] = MOVED.get(name, name)
    return _with_todays(made, keys_of(made.get("_target_")))


def renamed_run(config: Any) -> Any:
    """Returns the configuration of a run with today's names, also of its own keys and of those that it says were
    changed: `changes` by group, and `baseline_system`, which are the baseline's.

    Raises:
        ValueError: it is nested more deeply than any configuration is.
    """
    config = renamed(config)
    if not isinstance(config, dict):
        return config
    config = _with_todays(config, RUN_KEYS)
    changes, own = config.get("changes"), config.get("baseline_system")
    if isinstance(changes, dict):
        parts = {group: config.get(group) for group in changes}
        targets = {group: part.get("_target_") for group, part in parts.items() if isinstance(part, dict)}
        made = {group: _with_todays(keys, keys_of(targets.get(group))) for group, keys in changes.items()}
        config = {**config, "changes": made}
    if isinstance(own, dict):
        config = {**config, "baseline_system": _with_todays(own, _keys_of_system(config.get("baseline")))}
    return config


def renamed_baseline(baseline: Any) -> Any:
    """Returns what a run says of its baseline with today's names: of its system, and of the keys in its label.

    Raises:
        ValueError: it is nested more deeply than any configuration is.
    """
    baseline = renamed(baseline)
    system = baseline.get("system") if isinstance(baseline, dict) else None
    keys = keys_of(system.get("_target_")) if isinstance(system, dict) else {}
    if not (keys and isinstance(baseline.get("name"), str)):
        return baseline
    words = [word.partition("=") for word in baseline["name"].split(" ")]
    return {**baseline, "name": " ".join(keys.get(key, key) + equals + value for key, equals, value in words)}


def renamed_iteration(told: Any) -> Any:
    """Returns what a step says of its rollouts with today's names."""
    return _with_todays(told, ITERATION_KEYS)


def keys_of(target: object) -> Mapping[str, str]:
    """Returns the earlier names of the keys of a `_target_`, and today's."""
    return KEYS.get(target, {}) if isinstance(target, str) else {}


def _keys_of_system(name: object) -> Mapping[str, str]:
    """Returns the earlier names of the keys of one of zbench's systems, whose module or package is called as it is."""
    return next((keys for target, keys in KEYS.items() if target.split(".")[1:3] == ["systems", name]), {})


def old_key(given: str, target: object, value: object = None) -> str | None:
    """Returns a sentence that says what a key is called today, None where it has no earlier name.

    given: the key as the user wrote it, dotted, as in system.legs; one of a run itself has no dot. target: the
    `_target_` of what it is a key of. value: what it was given, where that is known.
    """
    parent, dot, key = given.rpartition(".")
    elsewhere = REGROUPED.get(target, {}).get(key) if dot and isinstance(target, str) else None
    if elsewhere is not None:
        shown = "..." if value is None else VALUES.get(elsewhere, {}).get(value, value)
        return f"{given} is called {elsewhere} today, as in {elsewhere}={shown}"
    today = (keys_of(target) if dot else RUN_KEYS).get(key)
    return None if today is None else f"{given} is called {parent}{dot}{today} today"


def old_choice(group: str, name: str) -> str | None:
    """Returns a sentence that says what a choice of a group is called today, or what there is instead of one that is
    no more; None where there was none of that name."""
    if instead := GONE.get(group, {}).get(name):
        return f"{group}={name} is no more; {instead}"
    today = CHOICES.get(group, {}).get(name)
    return None if today is None else f"{group}={name} is called {group}={today} today"


def gone_target(target: object) -> str | None:
    """Returns a sentence that says what there is instead of a `_target_` that yamls may name no more; None where it is
    not of those."""
    choice = GONE_TARGETS.get(target) if isinstance(target, str) else None
    return None if choice is None else f"{choice[0]}._target_ is {target}; {old_choice(*choice)}"


def old_keys(target: object) -> frozenset[str]:
    """Returns the keys that a `_target_` had in earlier versions and has under another name, or nowhere, today."""
    return frozenset(keys_of(target)) | frozenset(REGROUPED.get(target, ()) if isinstance(target, str) else ())


def _with_todays(config: Any, keys: Mapping[str, str]) -> Any:
    """Returns the mapping with keys by their names of today; where both names are there, as they are."""
    if not (isinstance(config, dict) and keys):
        return config
    return {keys[key] if key in keys and keys[key] not in config else key: value for key, value in config.items()}
