"""How many jobs a sweep has. An edge: hydra's basic sweeper tells its jobs one at a time."""

from collections.abc import Sequence

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser


def count(arguments: Sequence[str]) -> int | None:
    """Jobs of the sweep that hydra runs with these arguments; None where another sweeper chooses them as it goes."""
    sweeper = HydraConfig.get().sweeper
    if not str(sweeper._target_).endswith(".BasicSweeper"):
        return None
    given = [word for word in arguments if "=" in word and not word.startswith("-")]
    settings = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
    overrides = OverridesParser.create().parse_overrides([*settings, *given])
    return sum(map(len, BasicSweeper.split_arguments(overrides, None)))
