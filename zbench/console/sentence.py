"""Errors of the user's making, told in one sentence. Knows what hydra and omegaconf raise; an edge."""

import difflib
import errno
import inspect
import re
from collections.abc import Collection, Iterable
from dataclasses import fields
from typing import Any

from hydra.errors import (
    CompactHydraException,
    HydraException,
    InstantiationException,
    MissingConfigException,
    OverrideParseException,
)
from hydra.utils import get_object
from omegaconf import OmegaConf
from omegaconf.errors import (
    ConfigAttributeError,
    ConfigKeyError,
    InterpolationResolutionError,
    MissingMandatoryValue,
    OmegaConfBaseException,
)

from zbench import CONF
from zbench.console.overrides import several, unreadable
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.job import RolloutJob
from zbench.describe.links import Domain
from zbench.describe.model import Model
from zbench.describe.strategies.strategy_keys import MODEL_KEYS
from zbench.describe.worlds import World
from zbench.interfaces.published import PUBLISHED, VARIANT
from zbench.record.renamed import old_choice, old_key
from zbench.record.writer import RecordError

BAD_INPUT, FAILED = 2, 1
_MOST_CHOICES = 3  # that are named
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO)  # a file that is named rightly and cannot be written for all that
# Descriptions whose yamls leave out what is as usual, by their place in the configuration.
_DESCRIBED = {
    "cluster": Cluster,
    "cluster.device": Device,
    "cluster.domains": Domain,
    "model": Model,
    "world": World,
}
_ROLLOUT_KEYS = {one.name for one in fields(RolloutJob)}
_DEGREE = r"(etp|ep|tp|pp)([1-9][0-9]*)"  # as in names of choices, of these keys
_DEGREE_KEYS = {
    "etp": "expert_tensor_parallel", "ep": "expert_parallel", "tp": "tensor_parallel", "pp": "pipeline_parallel",
}  # fmt: skip
# whose errors are of what parts made, not of what was asked for
_OF_PLANS = ("zbench.run.checks.contract", "zbench.proof.verify")


def sentence(error: BaseException) -> tuple[str, int] | None:
    """Returns what to tell the user about an error, and the exit code; None for an error that is the program's own:
    show its traceback."""
    while isinstance(error, InstantiationException) and error.__cause__ is not None:
        if isinstance(error.__cause__, (ImportError, AttributeError, TypeError)):  # hydra says of which target and key
            return _target(error), BAD_INPUT
        error = error.__cause__
    if isinstance(error, RecordError) or type(error).__module__.startswith("zbench.runtime."):
        return _line(str(error)), FAILED
    if isinstance(error, MissingConfigException):
        return _missing(error), BAD_INPUT
    if isinstance(error, OverrideParseException):
        return unreadable(error.override), BAD_INPUT
    if isinstance(error, CompactHydraException) and isinstance(error.__cause__, OmegaConfBaseException):
        return _unknown_key(error, error.__cause__) or _omegaconf(error.__cause__), BAD_INPUT
    if isinstance(error, HydraException):
        return _hydra(str(error)), BAD_INPUT
    if isinstance(error, OmegaConfBaseException):
        return _omegaconf(error), BAD_INPUT
    if type(error).__module__.partition(".")[0] == "yaml":
        return f"a yaml cannot be read: {_line(str(error))}", BAD_INPUT
    if isinstance(error, ValueError) and str(error).startswith("Config group override must be"):
        return "a group is null or a list; it takes the name of one of its choices (see --help)", BAD_INPUT
    if isinstance(error, UnicodeDecodeError):
        return f"a file that has to be text (UTF-8) is not: {_line(str(error))}", BAD_INPUT
    if isinstance(error, ValueError):
        return _line(str(error)), FAILED if type(error).__module__ in _OF_PLANS else BAD_INPUT
    return _limit(error)


def _limit(error: BaseException) -> tuple[str, int] | None:
    """Tells of errors in which the machine, or Python, met a limit: of a file, of memory, of a number, of nesting."""
    if isinstance(error, OSError):
        named = error.filename is not None and error.errno not in _DISK_FULL
        told = f"{error.filename}: " if error.filename is not None else ""
        return f"{told}{error.strerror or _line(str(error))}", BAD_INPUT if named else FAILED
    if isinstance(error, MemoryError):
        return f"this machine has too little memory for that: {_line(str(error)) or 'none is left'}", FAILED
    if isinstance(error, OverflowError):
        return f"a number is too large: {_line(str(error))}", BAD_INPUT
    if isinstance(error, RecursionError):  # of readers of yaml, of JSON and of settings
        return "something is nested too deeply to be read", BAD_INPUT
    return None


def not_among(field: str, value: str, options: Iterable[str]) -> str:
    """Writes a sentence like 'system is 'rign'; it takes one of allgather, ring (did you mean ring?)'.

    A choice's name of an earlier version is told of as that. Degrees that no choice has, as parallel=pp2, are told by
    their keys.
    """
    if told := old_choice(field, value):
        return told
    options = sorted(options)
    close = [_degrees_meant(value)] if field == "parallel" else []
    close = [one for one in close if one] or difflib.get_close_matches(value, options, n=1)
    hint = f" (did you mean {close[0]}?)" if close else ""
    return f"{field} is {value!r}; it takes one of {', '.join(options)}{hint}"


def _degrees_meant(value: str) -> str:
    """Returns the settings that a word like pp2 or tp2_pp2 stands for, "" if it is none."""
    if not re.fullmatch(rf"({_DEGREE}_?)+", value):
        return ""
    return " ".join(f"parallel.{_DEGREE_KEYS[word]}={size}" for word, size in re.findall(_DEGREE, value))


def no_key(
    given: str,
    kind: str,
    known: Iterable[str],
    without: str = "there are none",
    target: object = None,
    value: object = None,
) -> str:
    """Writes a sentence like 'system.degre is not a key of system; did you mean degree?'.

    given: the dotted key. known: those there are. without: what is told where there are none. target: the `_target_` of
    what has these keys; a name that one of them had in an earlier version is told of as that. value: what it was
    given, where that is known.
    """
    if told := old_key(given, target, value):
        return told
    names = [name for name in known if name not in ("hydra", "_target_")]
    close = difflib.get_close_matches(given.rpartition(".")[2], names, n=1)
    others = f"there are {', '.join(names)}" if names else without
    return f"{given} is not {kind}; " + (f"did you mean {close[0]}?" if close else others)


def unexpected_key(error: object, where: str, made: Any, given: Collection[str] = ()) -> str | None:
    """Returns what to tell where a class does not take a key of its yaml, by the error that it raised; None where that
    is another one. where: the yaml's place in the configuration. given: arguments that are no keys."""
    name = getattr(made, "__qualname__", "")
    named = re.match(rf"{re.escape(name)}\.__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
    if not isinstance(made, type) or not named:
        return None
    names = [one for one in inspect.signature(made).parameters if one not in given]
    return no_key(f"{where}.{named[1]}", f"a key of {made.__module__}.{name}", names, "it has none")


def _line(text: str) -> str:
    """Puts all of a message on one line."""
    return " ".join(text.split())


def _target(error: InstantiationException) -> str:
    """Tells of a `_target_` that cannot be found, or that does not take what its yaml gives it."""
    named = re.search(r"target '(.+?)'", str(error))
    key = re.search(r"full_key: (\S+)", str(error))
    reason = error.__cause__.__cause__ or error.__cause__ if error.__cause__ else error
    where, what = key[1] if key else "a yaml", named[1] if named else "its _target_"
    if named and isinstance(reason, TypeError) and (told := unexpected_key(reason, where, get_object(what))):
        return told
    return f"{where}: {what} cannot be made: {_line(str(reason))} (its folder has to be on PYTHONPATH)"


def _missing(error: MissingConfigException) -> str:
    group, _, name = (error.missing_cfg_file or "").rpartition("/")
    if not group:
        return _line(str(error))
    if not error.options:
        return f"{group} is {name!r}; no such choice, and the group {group} has none"
    return not_among(group, name, error.options)


def _unknown_key(error: CompactHydraException, cause: OmegaConfBaseException) -> str | None:
    named = re.match(r"Could not override '(.+?)'", str(error))
    if not named:
        return None
    node, above = cause.parent_node, cause.full_key or ""
    target = node.get("_target_") if OmegaConf.is_dict(node) else None
    given = re.search(r"use \+\S+?=(.*)", str(error))
    if told := old_key(named[1], target, given[1] if given else None):
        return told
    # Of a key in something that is not there either, that is told of: sharding.degrees of sharding.degrees.weights.
    key = above if named[1].startswith(f"{above}.") else named[1]
    parent, _, own = key.rpartition(".")
    if key == f"system.{VARIANT}":
        return f"{key} is not a key of system; {VARIANT} is one of the run: {VARIANT}={PUBLISHED}"
    if parent == "job" and key.removeprefix("job.") in _ROLLOUT_KEYS:
        return f"{key} is a key of jobs with rollouts, and job is training; it takes job=rlhf beside it"
    owner, _, last = named[1].rpartition(".")
    if last in _optional(owner):
        typed = re.search(r"use (\+\S.*)", str(error))
        return f"{named[1]} is not set by its yaml; {typed[1] if typed else f'+{named[1]}=...'} adds it"
    if having := _choices_with(parent, own):
        return f"{key} is not a key of {parent}; {having}"
    names = [str(name) for name in node] if node is not None else []
    names += sorted(MODEL_KEYS - set(names)) if parent == "model" else []
    unset = sorted(key for key in _optional(parent) - set(names) if not old_key(f"{parent}.{key}", target, None))
    close = difflib.get_close_matches(own, [*names, *unset], n=1)
    if close and close[0] not in names:
        return f"{key} is not a key of {parent}; did you mean +{parent}.{close[0]}?"
    adding = f"its yaml has none, and +{key}=... adds it"
    if unset:
        adding = f"+{parent}.KEY=... adds one of {', '.join(unset)}"
    return no_key(key, f"a key of {parent}" if parent else "a key", names, adding, target)


def _choices_with(group: str, key: str) -> str:
    """Writes which of zbench's own choices of a group have a key, as 'sync=streaming_diloco has it'; "" for none."""
    has = re.compile(rf"^{re.escape(key)}:", re.MULTILINE)
    names = [f"{group}={one.stem}" for one in sorted((CONF / group).glob("*.yaml")) if has.search(one.read_text())]
    if len(names) > _MOST_CHOICES:
        names = [*names[:_MOST_CHOICES], "others"]
    if len(names) > 1:
        return f"{', '.join(names[:-1])} and {names[-1]} have it"
    return f"{names[0]} has it" if names else ""


def _optional(parent: str) -> set[str]:
    """Returns the keys that `parent` takes though its yaml may leave them out: those of its class."""
    made = _DESCRIBED.get(re.sub(r"^(cluster\.domains)\..*", r"\1", parent))
    return set() if made is None else {one.name for one in fields(made) if one.init}


def _hydra(message: str) -> str:
    if found := re.match(r"(?:Ambiguous value for argument|Sweep parameters) '(.+?)'", message):
        return several(found[1])
    return _line(message.split("\nTo append")[0])


def _omegaconf(error: OmegaConfBaseException) -> str:
    if isinstance(error, MissingMandatoryValue):
        return f"{error.full_key} has to be given, as in {error.full_key}=..."
    if isinstance(error, InterpolationResolutionError):
        return f"{error.full_key} refers to something that is not there: {_line(error.msg or str(error))}"
    if isinstance(error, ConfigAttributeError | ConfigKeyError):
        return f"{error.full_key} is missing from the configuration"
    if str(error).startswith("Cannot merge DictConfig with ListConfig"):  # in either order
        given, takes = "keys", f"a list, as in {error.full_key}=[...]"
        if error.object_type is dict:
            given, takes = "a list", f"keys, each by itself, as in {error.full_key}.KEY=..."
        return f"{error.full_key} is given {given}; it takes {takes}"
    return _line(str(error))
