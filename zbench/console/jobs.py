"""Counts the jobs of a sweep. An edge: hydra's basic sweeper lists them all, then tells them one at a time."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import ceil, isfinite, prod

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, RangeSweep
from hydra.errors import HydraException

MOST = 100_000  # jobs of a sweep; the largest experiment of zbench has some hundreds


def count(arguments: Sequence[str]) -> int | None:
    """Counts the jobs of the sweep that hydra runs with these arguments; None where another sweeper chooses them as it
    goes."""
    sweeper = HydraConfig.get().sweeper
    if not str(sweeper._target_).endswith(".BasicSweeper"):
        return None
    settings = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
    return prod(_values([*settings, *_given(arguments)]).values())


def check_few(arguments: Sequence[str]) -> None:
    """Refuses arguments that ask for more jobs than anybody runs, before hydra makes a list of them.

    Raises:
        ValueError: there are more than MOST, or there is no end of them.
    """
    given = _given(arguments)
    if any(word.startswith("hydra/sweeper=") for word in given):  # another sweeper takes a range as bounds
        return
    try:
        values = _values(given)
    except HydraException:  # which hydra tells of when it reads them
        return
    if prod(values.values()) > MOST:
        key, most = max(values.items(), key=lambda one: one[1])
        raise ValueError(
            f"{key} has {most:,} values, and the sweep {prod(values.values()):,} jobs; it takes at most {MOST:,}"
        )


def _given(arguments: Iterable[str]) -> list[str]:
    """Returns the settings among the arguments."""
    return [word for word in arguments if "=" in word and not word.startswith("-")]


def _values(settings: list[str]) -> dict[str, int]:
    """Returns how many values each key has: the last word on it counts, as the command line's stands for an
    experiment's."""
    hydra = GlobalHydra.instance()
    parser = OverridesParser.create(hydra.config_loader() if hydra.is_initialized() else None)
    return {one.get_key_element(): _count(one) for one in parser.parse_overrides(settings)}


def _count(setting: Override) -> int:
    """Returns how many values a setting has, without a list of a range. A pattern of names, as in system=glob(*),
    counts as one before hydra knows the folders to look in."""
    value = setting.value()
    if not isinstance(value, RangeSweep):
        is_list = setting.is_choice_sweep() and not (isinstance(value, Glob) and setting.config_loader is None)
        return len(list(setting.sweep_string_iterator())) if is_list else 1
    start, stop, step = value.start, value.stop, value.step
    if start is None or stop is None or not all(map(isfinite, (start, stop, step))):
        raise ValueError(f"{setting.input_line} has no end; it takes numbers, as in range(0,8)")
    if step == 0:
        raise ValueError(f"{setting.input_line} has steps of 0; it takes another third number, as in range(0,8,2)")
    return max(0, ceil((Fraction(stop) - Fraction(start)) / Fraction(step)))
