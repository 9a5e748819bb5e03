"""Names that older records give to parts, as today's names. Pure.

The folders of systems and workloads were packages of their own once, and workload=pystdlib found the standard library
by a function of Python's. Records are read under today's names, so that old and new runs of the same thing compare
as equal.
"""

from typing import Any

MOST_NESTED = 50  # levels of a configuration; those of our yaml have five
_PACKAGES = ("systems.", "workloads.")
_STDLIB_WAS = {"_target_": "sysconfig.get_path", "name": "stdlib"}
_STDLIB = {"_target_": "zbench.workloads.stdlib.folder"}


def renamed(config: Any, level: int = 0) -> Any:
    """The configuration with today's names of what zbench itself once called otherwise.

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
    if isinstance(target, str) and target.startswith(_PACKAGES):
        made["_target_"] = f"zbench.{target}"
    return made
