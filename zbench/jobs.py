"""How many jobs a sweep has. An edge: hydra's basic sweeper tells its jobs one at a time."""

from collections.abc import Sequence
from math import prod

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser


def count(arguments: Sequence[str]) -> int | None:
    """Jobs of the sweep that hydra runs with these arguments; None where another sweeper chooses them as it goes."""
    sweeper = HydraConfig.get().sweeper
    if not str(sweeper._target_).endswith(".BasicSweeper"):
        return None
    given = [word for word in arguments if "=" in word and not word.startswith("-")]
    settings = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
    values = {  # by key, as what is given on the command line stands for an experiment's own
        one.get_key_element(): len(list(one.sweep_string_iterator())) if one.is_sweep_override() else 1
        for one in OverridesParser.create().parse_overrides([*settings, *given])
    }
    return prod(values.values())
