"""Tells hydra whether a command is a sweep, where the command's words say so. An edge: how hydra starts.

Hydra composes the whole configuration of a command once before it composes it to run, only to learn whether a yaml asks
for a sweep (`hydra.mode`): a tenth of a second, of two that a short run takes. Of zbench's own yamls only experiments
ask for one; those of a user may, wherever hydra is told to look for them. No interface of hydra leaves that out, so a
method of its inside is replaced while a command runs: the same one in hydra 1.3.2 to 1.3.8. A later 1.3 without it
composes once more.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

from hydra._internal.hydra import Hydra

_SWEEP = ("-m", "--multirun")


@contextlib.contextmanager
def told_mode(arguments: Sequence[str]) -> Iterator[None]:
    """Has hydra take its mode from the command line alone, where nothing else can say it.

    arguments: of the command, as hydra gets them.
    """
    before = getattr(Hydra, "get_mode", None)
    if before is None or not all(word in _SWEEP or _leaves_mode(word) for word in arguments):
        yield
        return
    Hydra.get_mode = _no_yaml_says  # type: ignore[method-assign]
    try:
        yield
    finally:
        Hydra.get_mode = before  # type: ignore[method-assign]


def _leaves_mode(word: str) -> bool:
    """Says whether a word sets a key or chooses a yaml by which hydra's mode stays what it is."""
    return not word.startswith("-") and not word.lstrip("+~").startswith(("hydra", "experiment"))


def _no_yaml_says(*given: Any, **keys: Any) -> None:
    """Returns what hydra gets from configurations that have no mode, whatever it hands over."""
