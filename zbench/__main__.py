"""python -m zbench: composes the configuration (hydra), runs, and turns errors into sentences and exit codes.

Exit codes: 0; 1 a run failed; 2 bad input; 130 stopped by Ctrl-C, 143 by SIGTERM. Imports of substance wait for the
job, so that --help and typos answer at once.
"""

import sys

from zbench.console.command import FULL, loading, ran, tell_user

with loading(__name__):
    import contextlib
    import os
    import re
    import secrets
    import shlex
    import tempfile
    from collections.abc import Iterator
    from dataclasses import dataclass, field
    from datetime import UTC, datetime
    from typing import TYPE_CHECKING

    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import DictConfig, OmegaConf

    from zbench import CONF, __version__
    from zbench.console.garbage import collect_from_now_on, without_collection
    from zbench.console.jobs import ONE_AT_A_TIME, check_few, compose_values, count, is_one_at_a_time, own_file
    from zbench.console.overrides import added, as_typed, check_choices, of_swept_groups
    from zbench.console.run_mode import told_mode
    from zbench.console.signals import stop_in

if TYPE_CHECKING:
    from zbench.console.meter import Sweep
    from zbench.record.record import Run
    from zbench.run.presets import Presets

_FLAGS = (
    "--help",
    "--hydra-help",
    "--version",
    "--cfg",
    "--resolve",
    "--package",
    "--run",
    "--multirun",
    "--info",
    "--shell-completion",
    "--config-path",
    "--config-name",
    "--config-dir",
    "--experimental-rerun",
)


@dataclass
class SweepRefused(BaseException):
    """No job of a sweep is to run, because of `error`. It is no Exception, which hydra would hold back until the sweep
    ends."""

    error: Exception


class ChildFailed(Exception):
    """A job that a hydra launcher ran in another process failed; it has told why there."""


@dataclass(slots=True)
class JobsOutcome:
    """The outcome of one command: what its jobs came to.

    group: its id, by which trackers know its runs. runs: by id, as a baseline may serve many. sweep: if it is one.
    presets: what its jobs have composed so far.
    """

    group: str
    runs: dict[str, "Run"] = field(default_factory=dict)
    sweep: "Sweep | None" = None
    presets: "Presets | None" = None
    code: int = 0
    out: str = ""
    told: str = ""

    @property
    def kept(self) -> str:
        """A sentence's end that says what a stop leaves."""
        return f"finished steps are kept{f' in {self.out}' if self.out else ''}"


def main() -> int:
    """Runs the command line and returns its exit code."""
    if len(sys.argv) > 1 and re.fullmatch(r"\w[\w-]*", sys.argv[1]):  # neither a setting nor a flag
        return ran(_word, "nothing was written")
    outcome = JobsOutcome(f"{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(4)}")
    with without_collection():
        return ran(lambda: _led(outcome), lambda: outcome.kept)


def _word() -> int:
    """Runs the command that the first word names."""
    from zbench.api.words import run_sub_command

    return run_sub_command(sys.argv[1], sys.argv[2:])


def _led(outcome: JobsOutcome) -> int:
    """Runs what the command line asks for. Where torchrun or Slurm started this process as one of many, rank 0 does,
    and the others serve it."""
    from zbench.runtime.processes.world import found

    world = found(os.environ)
    if world is None:
        return _main(outcome)
    if world.rank > 0:
        from zbench.runtime.processes.follow import follow

        return follow(world)
    from zbench.runtime.processes.join import lead

    with lead(world):
        return _main(outcome)


def _main(outcome: JobsOutcome) -> int:
    command = shlex.join(["python", "-m", "zbench", *sys.argv[1:]])
    wants_traceback = os.environ.get(FULL) == "1"
    here = os.getpid()

    def job(config: DictConfig) -> None:
        with _full_errors(wants_traceback):  # as the user has it, for whatever the run starts
            _job(config, command, outcome, wants_traceback, os.getpid() == here)
        if os.getpid() != here and outcome.code:  # another launcher's process, whose `outcome` nobody sees
            raise ChildFailed(outcome.told)

    try:
        _check_flags(sys.argv[1:])
        if any(word.startswith("--v") and "--version".startswith(word) for word in sys.argv[1:]):
            print(f"zbench {__version__}")  # hydra would print its own
            return 0
        sys.argv[1:] = [added(word) for word in _settings_last(sys.argv[1:])]
        check_choices(sys.argv[1:], (path.name for path in CONF.iterdir() if path.is_dir()))
        check_few(sys.argv[1:])
        with told_mode(sys.argv[1:]), contextlib.ExitStack() as stack:
            if any(word in ("-m", "--multirun") or word.startswith("experiment=") for word in sys.argv):
                # A sweep (which an experiment may be): hydra insists on leaving a multirun.yaml somewhere.
                given = sys.argv[1:] = of_swept_groups(sys.argv[1:])
                sys.argv.append(f"hydra.sweep.dir='{stack.enter_context(tempfile.TemporaryDirectory())}'")
                sys.argv += [ONE_AT_A_TIME] if is_one_at_a_time(given, CONF / "experiment") else []
            stack.enter_context(_full_errors(True))  # so that hydra raises and does not exit
            hydra.main(version_base="1.3", config_path=str(CONF), config_name="config")(job)()
    except SweepRefused as refused:
        _tell(refused.error, outcome, wants_traceback)
    except Exception as error:
        _tell(error, outcome, wants_traceback)
    if outcome.sweep is not None:
        _print_sweep(outcome.sweep, list(outcome.runs.values()))
        if not outcome.runs and outcome.code == 0:
            tell_user("no run was made, as all runs of the sweep were left out")
            return 2
    return outcome.code


def _print_sweep(sweep: "Sweep", runs: "list[Run]") -> None:
    """Prints the one table of a sweep, and what its runs had to say."""
    from zbench.console.table import print_comparison
    from zbench.record.rows import rows

    if not runs:
        for line in sweep.said:
            tell_user(line)
        return
    were, they = ("runs were", "they were") if sweep.not_again > 1 else ("run was", "it was")
    again = [f"{sweep.not_again} {were} not made again, as {they} made or recorded before."] if sweep.not_again else []
    print_comparison(rows(runs), [*sweep.said, *again, *sweep.files])


def _job(config: DictConfig, command: str, outcome: JobsOutcome, wants_traceback: bool, is_here: bool) -> None:
    """Runs one job of the command. Its error is told here: hydra would hold it back until the sweep ends, and tell only
    the first.

    is_here: in the command's own process, and not in one of a launcher's, whose runs have tables of their own.
    """
    if is_here and HydraConfig.get().mode == RunMode.MULTIRUN:
        from zbench.console.meter import Sweep

        if outcome.sweep is None:
            outcome.sweep = Sweep(count(sys.argv[1:]))
            try:
                compose_values(sys.argv[1:])
            except Exception as error:
                raise SweepRefused(error) from None
        outcome.sweep.job += 1
    try:
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            _give_own_trace(config, outcome.sweep, is_here)
        from zbench.run.presets import Presets
        from zbench.run.request import request
        from zbench.run.run import run_with_baseline

        outcome.presets = outcome.presets or Presets()
        asked = request(config, command, outcome.group, outcome.presets)
        collect_from_now_on()
        outcome.out = asked.settings.out
        outcome.runs |= {
            done.start["run"]: done for done in run_with_baseline(asked, outcome.runs.values(), outcome.sweep)
        }
    except Exception as error:
        _tell(error, outcome, wants_traceback)


def _give_own_trace(config: DictConfig, sweep: "Sweep | None", is_here: bool) -> None:
    """Has a job of a sweep write its trace into a file of its own. is_here: as of _job.

    Raises:
        ValueError: an earlier job has that file.
    """
    plain = OmegaConf.to_container(config)  # interpolations as they are written
    assert isinstance(plain, dict)
    written = plain["trace"]
    if not isinstance(config.trace, str):  # none, or what is refused as no file
        return
    config.trace = own_file(config.trace, written, sys.argv[1:] if is_here else None)
    if sweep is not None and config.trace in sweep.traces:
        raise ValueError(
            f"trace is {config.trace!r}, which an earlier run of this sweep has; it takes a name that differs, as in "
            "trace='step_${hydra:job.num}.json'"
        )
    if sweep is not None:
        sweep.traces.add(config.trace)


def _tell(error: Exception, outcome: JobsOutcome, wants_traceback: bool) -> None:
    """Prints the sentence for `error`, or raises it again where there is none or the user wants a traceback."""
    from zbench.console.sentence import sentence

    if stop := stop_in(error):
        raise stop from None  # no Exception, which a sweep would go on after
    if type(error).__name__ == "ChildFailed":  # by name: the launcher may have pickled the class by value
        print(f"zbench: {error}", file=sys.stderr, flush=True)
        outcome.code = 1
        return

    told = None if wants_traceback else sentence(error)
    if told is None:
        raise error
    job = ""
    if HydraConfig.initialized() and HydraConfig.get().mode == RunMode.MULTIRUN:
        job = f"{' '.join(map(as_typed, HydraConfig.get().overrides.task))}: "
    outcome.told = f"{job}{told[0]}"
    tell_user(outcome.told)
    outcome.code = max(outcome.code, told[1])


@contextlib.contextmanager
def _full_errors(wanted: bool) -> Iterator[None]:
    """Sets HYDRA_FULL_ERROR as wanted, and in the end as it was before."""
    before = os.environ.get(FULL)
    os.environ[FULL] = "1" if wanted else "0"
    try:
        yield
    finally:
        if before is None:
            del os.environ[FULL]
        else:
            os.environ[FULL] = before


def _settings_last(arguments: list[str]) -> list[str]:
    """Moves settings behind the flags: flags may stand between settings, and argparse would refuse what follows
    them."""
    return sorted(arguments, key=lambda argument: "=" in argument and not argument.startswith("-"))


def _check_flags(arguments: list[str]) -> None:
    """Refuses --steps=5 in a sentence; argparse would print its whole usage."""
    for argument in arguments:
        name = argument.partition("=")[0]
        if name.startswith("--") and not any(flag.startswith(name) for flag in _FLAGS):
            raise ValueError(f"{argument} is no flag; settings are written without dashes, as in steps=5 (see --help)")


if __name__ == "__main__":
    sys.exit(main())
