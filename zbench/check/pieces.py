"""Finds the function that a user names: one of zbench's own adapters, or MODULE:FUNCTION."""

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from zbench.console.sentence import not_among
from zbench.describe.units import with_noun

HERE = "zbench.check.peers"
# Adapters that call other projects' code unchanged, by kind and name: (function in HERE, what it needs).
PEERS: Mapping[str, Mapping[str, str]] = {
    "loss": {
        "deepspeed": "deepspeed_tiled_mean",
        "deepspeed_sum": "deepspeed_tiled_sum",
        "torch": "torch_loss",
        "torch_chunks": "torch_chunked_loss",
        "torch_linear": "torch_linear_loss",
    },
    "attention": {"torch_sdpa": "torch_sdpa"},
}


def find_function(kind: str, named: str, by_place: int, by_name: tuple[str, ...]) -> Callable[..., Any]:
    """Returns the function that `named` means, once it is sure to take the arguments that it will get.

    Raises:
        ValueError: there is no such module or function, or the function takes other arguments.
    """
    module_name, colon, name = named.partition(":")
    if not colon:
        if named not in PEERS[kind]:
            raise ValueError(f"{not_among(kind, named, PEERS[kind])}, or MODULE:FUNCTION")
        module_name, name = HERE, PEERS[kind][named]
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{kind} is {named!r}; no module {error.name!r} is found (its folder has to be on PYTHONPATH)"
        ) from error
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"{kind} is {named!r}; importing {module_name} raised {type(error).__name__}: {error}"
        ) from error
    function: Any = module
    for part in name.split("."):
        function = getattr(function, part, None)
    if not callable(function):
        raise ValueError(f"{kind} is {named!r}; {module_name} has no function {name!r}")
    _check_arguments(kind, named, function, by_place, by_name)
    found: Callable[..., Any] = function
    return found


def _check_arguments(kind: str, named: str, function: Any, by_place: int, by_name: tuple[str, ...]) -> None:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # built in C, which tells nothing; a call will
    try:
        signature.bind(*[None] * by_place, **dict.fromkeys(by_name))
    except TypeError as error:
        given = ", ".join([f"{with_noun(by_place, 'argument')} by place", *(f"{name}=" for name in by_name)])
        raise ValueError(
            f"{kind} is {named!r}; it takes {signature} and would be called with {given}: {error} (docs/check.md)"
        ) from error
