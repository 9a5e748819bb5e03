"""python -m zbench: composes the configuration (hydra), runs, and turns errors into sentences and exit codes.

Exit codes: 0; 1 a run failed; 2 bad input; 130 stopped by Ctrl-C. Imports of substance wait for the
job, so that --help and typos answer at once.
"""

import contextlib
import os
import shlex
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import CompactHydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

if TYPE_CHECKING:
    from zbench.record import Run
    from zbench.run import Request

CONF = Path(__file__).resolve().parent.parent / "conf"
_FULL = "HYDRA_FULL_ERROR"
_FLAGS = ("--help", "--hydra-help", "--version", "--cfg", "--resolve", "--package", "--run", "--multirun", "--info",
          "--shell-completion", "--config-path", "--config-name", "--config-dir", "--experimental-rerun")


@dataclass(slots=True)
class Outcome:
    """What the jobs of one command came to; a sweep has several. runs: by id, as a baseline may serve many."""

    runs: dict[str, "Run"] = field(default_factory=dict)
    jobs: int = 0
    code: int = 0
    out: str = ""


def main() -> int:
    command = shlex.join(["python", "-m", "zbench", *sys.argv[1:]])
    wants_traceback = os.environ.get(_FULL) == "1"
    outcome = Outcome()

    def job(config: DictConfig) -> None:
        with _full_errors(wants_traceback):  # as the user has it, for whatever the run starts
            _job(config, command, outcome, wants_traceback)

    try:
        _check_flags(sys.argv[1:])
        with tempfile.TemporaryDirectory() as scratch, _full_errors(True):  # so that hydra raises and does not exit
            sys.argv[1:] = _settings_last(sys.argv[1:])
            if {"-m", "--multirun"} & set(sys.argv):
                sys.argv.append(f"hydra.sweep.dir='{scratch}'")  # hydra insists on leaving a multirun.yaml somewhere
            hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(job)()
    except KeyboardInterrupt:
        print(f"zbench: stopped; finished steps are kept{f' in {outcome.out}' if outcome.out else ''}", file=sys.stderr)
        return 130
    except Exception as error:
        _tell(error, outcome, wants_traceback)
    if outcome.jobs > 1 and outcome.runs:
        from zbench.compare import rows
        from zbench.table import print_comparison

        print_comparison(rows(list(outcome.runs.values())))
    return outcome.code


def _job(config: DictConfig, command: str, outcome: Outcome, wants_traceback: bool) -> None:
    """One run. Its error is told here: hydra would hold it back until the sweep ends, and tell only the first."""
    outcome.jobs += 1
    try:
        from zbench.run import run

        request = _request(config, command)
        outcome.out = request.settings.out
        outcome.runs |= {done.start["run"]: done for done in run(request)}
    except Exception as error:
        _tell(error, outcome, wants_traceback)


def _tell(error: Exception, outcome: Outcome, wants_traceback: bool) -> None:
    """Prints the sentence for `error`, or raises it again where there is none or the user wants a traceback."""
    from zbench.sentence import sentence

    told = None if wants_traceback else sentence(error)
    if told is None:
        raise error
    job = ""
    if HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN:
        job = f"{' '.join(HydraConfig.get().overrides.task)}: "
    print(f"zbench: {job}{told[0]}", file=sys.stderr, flush=True)
    outcome.code = max(outcome.code, told[1])


def _request(config: DictConfig, command: str) -> "Request":
    """The composed configuration, what was chosen and changed in it, and the baseline's configuration."""
    from zbench.compare import GROUPS
    from zbench.parts import Settings
    from zbench.run import Request

    settings = Settings.of(config)
    told = HydraConfig.get()
    choices = _chosen(told)
    name = str(told.job.config_name)
    overrides = [f"{group}={choices[group]}" for group in GROUPS if choices.get(group)]
    usual = _chosen(hydra.compose(name, overrides, return_hydra_config=True).hydra)
    inner = {group: choice for group, choice in choices.items() if "/" in group and usual.get(group, choice) != choice}
    plain = hydra.compose(name, overrides + [f"{group}={choice}" for group, choice in inner.items()])
    changes = {group: _differences(config.get(group), plain.get(group)) for group in GROUPS}
    for group, choice in inner.items():  # another cluster/device: one word instead of all its constants
        outer, _, part = group.partition("/")
        changes.setdefault(outer, {})[part] = choice
    baseline = None
    if settings.baseline is not None:
        baseline = config.copy()
        OmegaConf.set_struct(baseline, False)
        baseline["system"] = _system(name, settings.baseline)
    return Request(settings, config, choices, changes, baseline, command)


def _chosen(told: Any) -> dict[str, Any]:
    """The chosen option of every group but hydra's own."""
    return {str(group): choice for group, choice in told.runtime.choices.items() if not str(group).startswith("hydra/")}


def _system(config_name: str, name: str) -> Any:
    """The system of that name as its yaml has it, from any folder hydra searches."""
    from zbench.sentence import not_among

    try:
        return hydra.compose(config_name, [f"system={name}"])["system"]
    except MissingConfigException as error:
        raise ValueError(not_among("baseline", name, [*(error.options or []), "null"])) from error
    except CompactHydraException as error:
        raise ValueError(f"baseline is {name!r}; it takes the name of a system or null") from error


def _differences(ours: Any, plain: Any) -> dict[str, Any]:
    """Keys (dotted) of `ours` with other values than in `plain`, as the choice's yaml has them."""
    flat, flat_plain = dict(_flat(ours)), dict(_flat(plain))
    return {key: value for key, value in flat.items() if key not in flat_plain or flat_plain[key] != value}


def _flat(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    plain: Any = OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
    if not isinstance(plain, dict):
        if prefix:
            yield prefix, plain
        return
    for key, value in plain.items():
        yield from _flat(value, f"{prefix}.{key}" if prefix else str(key))


@contextlib.contextmanager
def _full_errors(wanted: bool) -> Iterator[None]:
    """HYDRA_FULL_ERROR as wanted, then as before."""
    before = os.environ.get(_FULL)
    os.environ[_FULL] = "1" if wanted else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[_FULL]
        else:
            os.environ[_FULL] = before


def _settings_last(arguments: list[str]) -> list[str]:
    """Flags may stand between settings; argparse would refuse what follows them."""
    return sorted(arguments, key=lambda argument: "=" in argument and not argument.startswith("-"))


def _check_flags(arguments: list[str]) -> None:
    """Refuses --steps=5 in a sentence; argparse would print its whole usage."""
    for argument in arguments:
        name = argument.partition("=")[0]
        if name.startswith("--") and not any(flag.startswith(name) for flag in _FLAGS):
            raise ValueError(f"{argument} is no flag; settings are written without dashes, as in steps=5 (see --help)")


if __name__ == "__main__":
    sys.exit(main())
