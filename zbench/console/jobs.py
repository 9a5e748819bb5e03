"""Counts the jobs of a sweep, and composes some before any runs. An edge: hydra's basic sweeper lists them all, then
tells them one at a time.

Left alone, it would compose every job before the first one runs, a quarter of a second each, to see that all can be: a
minute of silence for some hundred jobs, and then the launcher composes each again. With batches of one job nothing
waits for that, and that a value of a key cannot be composed is seen from one job for each value; that two values
cannot be together, as a key of one system beside another one, only when their job's turn comes.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from fractions import Fraction
from math import ceil, isfinite, prod
from pathlib import Path

import hydra
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, Override, RangeSweep
from hydra.errors import HydraException

from zbench.describe.units import with_noun

ONE_AT_A_TIME = "hydra.sweeper.max_batch_size=1"
_UNUSUAL = re.compile(r"[^\w.+-]+")  # in names of files
_OTHERS = ("hydra/sweeper=", "hydra/launcher=", "hydra.sweeper.", "hydra.launcher.", "hydra.searchpath=")
MOST = 100_000  # jobs of a sweep; the largest experiment of zbench (networks_all) has 11,232


def count(arguments: Sequence[str]) -> int | None:
    """Counts the jobs of the sweep that hydra runs with these arguments; None where another sweeper chooses them as it
    goes."""
    settings = _settings(arguments)
    return None if settings is None else prod(_values(settings).values())


def is_one_at_a_time(arguments: Sequence[str], experiments: Path) -> bool:
    """Returns whether jobs can be given to the launcher one by one: launcher and sweeper are hydra's own, which run
    them so anyway; others run the jobs of a batch beside each other. experiments: the folder of their yamls, which may
    choose others."""
    if any(word.startswith((*_OTHERS, "--config-dir", "-cd", "--config-path", "-cp")) for word in arguments):
        return False
    names = [word.partition("=")[2] for word in arguments if word.startswith("experiment=")]
    files = [experiments / f"{name}.yaml" for name in names]
    return not any("/hydra/" in path.read_text() for path in files if path.is_file())


def compose_values(arguments: Sequence[str]) -> None:
    """Composes a job for each value of each key of a sweep, the other keys at their first, as the first job of all is.
    Called in that job.

    Raises:
        hydra.errors.HydraException: one cannot be composed.
    """
    settings, config = _settings(arguments), HydraConfig.get().job.config_name
    for words in _first_of_each(settings or []):
        hydra.compose(config, words)


def own_file(path: str, written: str, arguments: Sequence[str] | None) -> str:
    """Returns the file of a job's own that it writes in a sweep, where all jobs are told the same one: before its
    suffix it has the job's values of the keys that differ between jobs, as step_zeppelin_4.json has them. Called in
    that job.

    path: the file; written: as it is written, whose interpolations may name some of these keys, or the job. arguments:
    of the command; None: another process has them, and the job's number stands for its values.
    """
    if "hydra:job." in written or (settings := _settings(arguments or [])) is None:
        return path
    told = HydraConfig.get()
    if arguments is None:
        words = [str(told.job.num)]
    else:
        several = {
            key
            for key, number in _values(settings).items()
            if number > 1 and key != "trace" and not _names(written, key)
        }
        mine = _parsed([word for word in told.overrides.task if "=" in word])
        words = [one.get_value_element_as_str() for one in mine if one.get_key_element() in several]
    if not words:
        return path
    file, own = Path(path), "_".join(_UNUSUAL.sub("-", word.strip("'\"")) for word in words)
    return str(file.with_name(f"{file.stem}_{own}{file.suffix}"))


def _names(written: str, key: str) -> bool:
    """Returns whether interpolations of a text name a key, or the choice of a group."""
    key = re.escape(key.lstrip("+~"))
    return re.search(rf"\$\{{(hydra:runtime\.choices\.)?{key}\}}", written) is not None


def _settings(arguments: Sequence[str]) -> list[str] | None:
    """Returns the settings of a sweep, an experiment's before those of the arguments; None with another sweeper."""
    sweeper = HydraConfig.get().sweeper
    if not str(sweeper._target_).endswith(".BasicSweeper"):
        return None
    return [*(f"{key}={value}" for key, value in (sweeper.params or {}).items()), *_given(arguments)]


def _first_of_each(settings: list[str]) -> Iterator[list[str]]:
    """Yields the words of the jobs that have, in turn, every value but the first of every key."""
    values: dict[str, list[str]] = {}
    for one in _parsed(settings):
        key, is_list = one.get_key_element(), one.is_sweep_override()
        values[key] = list(one.sweep_string_iterator()) if is_list else [one.get_value_element_as_str()]
        if isinstance(one.value(), RangeSweep):  # all numbers alike
            values[key] = [values[key][0], *values[key][1:][-1:]]
    first = {key: some[0] for key, some in values.items() if some and not key.startswith("hydra.")}
    for key in first:
        for value in values[key][1:]:
            yield [f"{name}={value if name == key else usual}" for name, usual in first.items()]


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
            f"{key} has {with_noun(most, 'value')}, and the sweep {prod(values.values()):,} jobs; it takes at most "
            f"{MOST:,}"
        )


def _given(arguments: Iterable[str]) -> list[str]:
    """Returns the settings among the arguments."""
    return [word for word in arguments if "=" in word and not word.startswith("-")]


def _values(settings: list[str]) -> dict[str, int]:
    """Returns how many values each key has: the last word on it counts, as the command line's stands for an
    experiment's."""
    return {one.get_key_element(): _count(one) for one in _parsed(settings)}


def _parsed(settings: list[str]) -> list[Override]:
    """Returns settings as hydra reads them."""
    of = GlobalHydra.instance()
    return OverridesParser.create(of.config_loader() if of.is_initialized() else None).parse_overrides(settings)


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
