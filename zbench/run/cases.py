"""The cases of a run: its system and its baseline, each with the start line of its record. An edge: no torch."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path

from zbench.interfaces.abilities import UsesPackages
from zbench.interfaces.dealt import undealt
from zbench.interfaces.protocols import System
from zbench.record.fingerprint import fingerprint, versions
from zbench.record.older import with_all_keys
from zbench.record.record import Line, Run, read
from zbench.record.rows import SAME, label
from zbench.run.checks.contract import PlugInError
from zbench.run.chosen import Settled, settled
from zbench.run.open_layers import check_run_fits
from zbench.run.parts import Parts, resolved
from zbench.run.request import Request
from zbench.run.settings import Settings


@dataclass(frozen=True, slots=True)
class RunCase:
    """One system to run: its start line (without the run's id and time), the system, and the parts it runs with."""

    start: Line
    system: System
    parts: Parts

    @property
    def name(self) -> str:
        """The system's name and what was changed in it."""
        return label(self.start, "system")


def run_cases(request: Request, parts: Parts, tell: Callable[[str, str], None]) -> tuple[RunCase, RunCase | None]:
    """Returns the run's own system and its baseline; None for the baseline if there is none or the system is it.

    tell: takes a system's name and what it does, where it chooses its configuration first.

    Raises:
        ValueError: one of them cannot be made, or no plan has room with the layout that it has or chose.
    """
    config = resolved(request.config)
    shared: Line = {"kind": "start", "command": request.command, "group": request.group, "baseline": None}
    own = {**config, "choices": dict(request.choices), "changes": {k: dict(v) for k, v in request.changes.items()}}
    shared |= {"fingerprint": dict(_program())}
    name = str(own["choices"].get("system"))
    mine, compared = settled(request.config, parts, tell=partial(tell, name)), None
    check_run_fits(mine.parts)
    if request.baseline is not None:
        other = {
            **own,
            "system": resolved(request.baseline)["system"],
            "variant": None,
            "choices": {**own["choices"], "system": request.settings.baseline},
            "changes": {**own["changes"], "system": dict(request.baseline_changes)},
        }
        compared = _compared(request, parts, partial(tell, str(request.settings.baseline)))
        shared["baseline"] = {
            "name": label({"config": other}, "system"),
            "system": other["system"],
            **_packages(compared.system),
        }
    fingerprinted = {**shared["fingerprint"], **_packages(mine.system)}
    case = _case({**shared, "fingerprint": fingerprinted, "config": own}, mine)
    if compared is None or other["system"] == config["system"]:
        return case, None
    shared["fingerprint"] |= _packages(compared.system)
    return case, _case({**shared, "config": other}, compared)


@cache
def _program() -> Line:
    """Returns the fingerprint of the program as this process has loaded it: once, not anew for each job of a sweep."""
    return fingerprint()


def _case(start: Line, settled: Settled) -> RunCase:
    chosen = {} if settled.choice is None else {"chosen": asdict(settled.choice)}
    return RunCase({**start, "facts": settled.parts.facts(), **chosen}, settled.system, settled.parts)


def _compared(request: Request, parts: Parts, tell: Callable[[str], None]) -> Settled:
    """Returns the baseline's system; whatever is wrong with it is told as the baseline's.

    Raises:
        ValueError: it cannot be made, or nothing has room as it is laid out.
    """
    assert request.baseline is not None
    try:
        found = settled(request.baseline, parts, tell=tell)
        check_run_fits(found.parts)
        return found
    except ValueError as error:
        kind = PlugInError if isinstance(error, PlugInError) else ValueError
        told = re.sub(r"\bsystem\.", "baseline_system.", str(error))  # by the name that its keys have on a command line
        raise kind(f"baseline={request.settings.baseline}: {told}") from error


def _packages(system: System) -> Line:
    """Returns {"packages": {name: version}} where a system says that it uses other projects' code; else nothing.

    Raises:
        PlugInError: what it says is no tuple of names.
    """
    names: Sequence[str] = system.packages if isinstance(system, UsesPackages) else ()
    if not isinstance(names, tuple) or not all(isinstance(name, str) and name for name in names):
        kind = type(undealt(system))
        raise PlugInError(
            f"{kind.__module__}.{kind.__qualname__}.packages is {names!r}; it has to be a tuple of names of "
            'distributions, as in ("numpy",)'
        )
    return {"packages": versions(names)} if names else {}


def reusable(case: RunCase, settings: Settings, parts: Parts, earlier: Iterable[Run]) -> Run | None:
    """Finds a finished run that a new one of `case` could only repeat: same sources, settings and batches.

    Simulated ones are looked for in the record. What was measured depends on the day, so it has to be of the same
    command (a sweep) unless `settings.rerun` is false, and not have gone on from a checkpoint, which a job in between
    may have replaced.
    """
    measured = not parts.simulated and settings.resume is None
    if parts.repeats(case.system) or (measured and not settings.rerun):
        known = read(settings.out, lambda start: _is_same(start, case.start))[0] if Path(settings.out).is_file() else []
    elif measured:
        known = [run for run in earlier if run.path == settings.out and _is_same(run.start, case.start)]
    else:
        known = []
    finished = [run for run in known if run.status == "finished"]
    if not finished:
        return None
    batches = [(step, parts.batch(step).digest) for step in range(settings.steps)]
    fitting = [run for run in finished if [(step["step"], step["batch"]) for step in run.steps] == batches]
    return fitting[-1] if fitting else None


def _is_same(theirs: Line, ours: Line) -> bool:
    """Returns whether two start lines are of the same system, settings, sources and packages."""
    same = ("system", "steps", "check", *SAME)
    one, other = (with_all_keys(start["config"]) for start in (theirs, ours))  # as records are read
    return all(one.get(key) == other.get(key) for key in same) and all(
        theirs["fingerprint"].get(key) == ours["fingerprint"].get(key) for key in ("sources", "packages")
    )
