"""The parts that a record may name, and how they are made from it. An edge: no hydra, no torch.

A record is data, and whoever wrote it may be a stranger. So the classes it names have to be among those that zbench's
own yaml names (conf/, which comes with the package), and nothing else is called; text in it stays text, whatever it
looks like. `--trust` lifts the first of these, for records of one's own classes.
"""

import argparse
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from pkgutil import resolve_name
from typing import Any

from omegaconf import OmegaConf

from zbench import CONF
from zbench.record.old_names import GONE_TARGETS

Make = Callable[..., Any]
_NAMED, _LATER = "_target_", "_partial_"
_WORDS = (_NAMED, _LATER, "_args_", "_convert_", "_recursive_")  # what has a meaning beside a class's own keys
_PLAIN = re.compile(r"[\w.]{1,100}")


class Unknown(ValueError):
    """A record names something that is not part of zbench."""


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Gives a command that makes recorded runs again its flag --trust."""
    parser.add_argument("--trust", action="store_true", help="run classes that a record names and zbench does not have")


@cache
def known(group: str) -> frozenset[str]:
    """Returns the classes that zbench's own yaml of a group (system, workload, ...) names or once named, inner ones
    included."""
    plain = [OmegaConf.to_container(OmegaConf.load(path)) for path in (CONF / group).rglob("*.yaml")]
    once = {target for target, (of, _) in GONE_TARGETS.items() if of == group}
    return frozenset(str(node[_NAMED]) for choice in plain for node in _nodes(choice) if _NAMED in node) | once


def from_record(config: Mapping[str, Any], group: str) -> Make:
    """Returns the part that a record names for a group, with the record's keys; called, it is made.

    Raises:
        Unknown: it, or something inside it, is none of zbench's.
    """
    for node in _nodes(config[group]):
        words = [word for word in _WORDS if word in node]
        if words and not (isinstance(node.get(_NAMED), str) and node[_NAMED] in known(group)):
            raise Unknown(f"names {_shown(node.get(_NAMED))}, which is not part of zbench")
        if odd := [word for word in words if word not in (_NAMED, _LATER)]:
            raise Unknown(f"has {odd[0]} in its {group}, which no {group} of zbench takes")
    return _factory(config, group)


def from_trusted_record(config: Mapping[str, Any], group: str) -> Make:
    """Returns the part that a record names for a group, whatever it is."""
    return _factory(config, group)


def _factory(config: Mapping[str, Any], group: str) -> Make:
    made = _made({**config[group], _LATER: True})
    assert isinstance(made, partial)
    return made


def _made(node: Any) -> Any:
    """Returns a node of a configuration: parts made, innermost first; anything else as it is."""
    if isinstance(node, list):
        return [_made(value) for value in node]
    if not isinstance(node, Mapping):
        return node
    if _NAMED not in node:
        return {key: _made(value) for key, value in node.items()}
    deep = node.get("_recursive_", True)
    arguments = {key: _made(value) if deep else value for key, value in node.items() if key not in _WORDS}
    call = partial(resolve_name(node[_NAMED]), *_made(node.get("_args_", [])), **arguments)
    return call if node.get(_LATER) else call()


def _nodes(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yields every mapping in a configuration, itself included."""
    if isinstance(node, Mapping):
        yield node
    for value in node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ():
        yield from _nodes(value)


def _shown(name: Any) -> str:
    """Returns a name as a sentence may have it: a record's text must not play with the terminal."""
    return name if isinstance(name, str) and _PLAIN.fullmatch(name) else f"{name!r:.100}"
