"""The object that a group's yaml names by its `_target_`. An edge: hydra is known here, torch is not."""

from typing import Any

from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf

from zbench.contract import guarded


def make(config: DictConfig, group: str, **arguments: Any) -> Any:
    """The object that a group's `_target_` names, called with the yaml's keys and `arguments`.

    The partial keeps hydra from copying `arguments` into its own containers.

    Raises:
        ValueError: there is no such target, it does not take what it is called with, or it fails.
    """
    node = config[group]
    if not isinstance(node, DictConfig) or "_target_" not in node:
        raise ValueError(f"{group} has no _target_; its yaml has to name one, as in _target_: zbench.systems.ring.Ring")
    for key in sorted(OmegaConf.missing_keys(node)):
        raise ValueError(f"{key} has to be given, as in {key}=...")
    factory = instantiate(node, _partial_=True, _convert_="all")
    keys = " and ".join(["the keys of its yaml", *([", ".join(arguments)] if arguments else [])])
    try:
        return guarded(factory.func, "", keys, lambda: factory(**arguments))
    except TypeError as error:  # a key the class does not know, or a value of a type it does not check itself
        raise ValueError(f"{group}: {node._target_} cannot be made from its yaml: {error}") from error


def expect(group: str, part: Any, name: str, is_method: bool = True) -> None:
    """Refuses a `part` without what a `group` has to have.

    Raises:
        ValueError: `part` has no `name`, or it is no method.
    """
    kind = type(part).__name__
    if not hasattr(part, name):
        raise ValueError(f"{group}: {kind} has no {name} (zbench.protocols says what a {group} needs)")
    if is_method and not callable(getattr(part, name)):
        raise ValueError(f"{group}: {kind}.{name} is no method (zbench.protocols says what a {group} needs)")
