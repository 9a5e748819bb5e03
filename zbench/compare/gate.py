"""Compares recorded runs with a baseline of them, and tells what became worse. Pure: no torch.

Runs are paired by what their figures are of (system, workload, cluster, model, executor, as the tables name them) and
compared on the batches both have. A system's own settings may differ: they are what a change is about. Everything else
has to be equal, or the difference would be the cluster's or the workload's.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zbench.record.flops import Facts
from zbench.record.metrics import counted, figures
from zbench.record.record import Line, Run
from zbench.record.rows import GROUPS, SAME, label, told_keys
from zbench.record.words import told_settings, typed

# Figures of which less is better, and how a value of each is written.
METRICS = {
    "step_seconds": "{:.6g} s",
    "peak_bytes": "{:,.0f} bytes",
    "nic_bytes": "{:,.0f} bytes",
    "exposed_communication": "{:.4f}",
    "imbalance": "{:.4f}",
    "plan_seconds": "{:.6g} s",
}
DEFAULT = ("step_seconds", "peak_bytes")
Place = tuple[str, ...]  # labels of GROUPS, the nominal world aside


@dataclass(frozen=True, slots=True)
class Change:
    """A metric that became worse than in the baseline.

    place: a Place. share: by how much of `before`; None where that is 0 or no number.
    """

    place: Place
    metric: str
    before: str
    after: str
    share: float | None = None

    def __str__(self) -> str:
        more = "" if self.share is None else f" ({self.share:+.2%})"
        return f"{_named(self.place)}: {self.metric} from {self.before} to {self.after}{more}"


@dataclass(frozen=True, slots=True)
class GateOutcome:
    """The outcome of a comparison with a baseline. worse: what is over the limit. compared: pairs of runs. added:
    places of the new record alone."""

    worse: tuple[Change, ...]
    compared: int
    added: tuple[Place, ...]


def percentage(text: str) -> float:
    """Reads '2%' as 0.02.

    Raises:
        ValueError: it is no percentage, or one below 0.
    """
    if not re.fullmatch(r"\d+(\.\d+)?\s*%", text.strip()):
        raise ValueError(f"--fail-over is {text!r}; it takes a percentage of at least 0, as in 2%")
    return float(text.strip().rstrip("%")) / 100


def check_metrics(names: Sequence[str]) -> None:
    """Raises ValueError where one of `names` is not among METRICS."""
    for name in names:
        if name not in METRICS:
            raise ValueError(f"--metrics is {name!r}; it takes names separated by commas, of {', '.join(METRICS)}")


def gate(base: Sequence[Run], new: Sequence[Run], limit: float, metrics: Sequence[str] = DEFAULT) -> GateOutcome:
    """Returns which of `metrics` are more than `limit` (a share) worse than the baseline; of several runs of a place
    the last counts.

    A run that is missing, did not finish or ran out of memory where the baseline's did not is worse whatever the limit.

    Raises:
        ValueError: no run in common, or a pair differs in more than its system, or it has no batches in common.
    """
    before, after = ({run_place(run): run for run in runs} for runs in (base, new))
    common = [place for place in before if place in after]
    if not common:
        raise ValueError(
            f"the records have no run in common: the baseline has {_first(before)}, the new one {_first(after)}"
        )
    worse: list[Change] = []
    for place, run in before.items():
        if place in after:
            worse += _pair(place, run, after[place], limit, metrics)
        else:
            worse.append(Change(place, "run", run.status, "missing"))
    return GateOutcome(tuple(worse), len(common), tuple(place for place in after if place not in before))


def _pair(place: Place, base: Run, new: Run, limit: float, metrics: Sequence[str]) -> list[Change]:
    _check_same(place, base.start["config"], new.start["config"])
    worse = []
    if base.status == "finished" and new.status != "finished":
        worse.append(Change(place, "status", base.status, _told(new)))
    pairs = _matched(place, base, new)
    lost = [step["step"] for step, other in pairs if other["out_of_memory"] and not step["out_of_memory"]]
    if lost:
        steps = f"step{'s' if len(lost) > 1 else ''} {', '.join(map(str, lost))}"
        worse.append(Change(place, "memory", f"enough in {steps}", "out of memory"))
    fitting = [pair for pair in pairs if not pair[0]["out_of_memory"] and not pair[1]["out_of_memory"]]
    whole = [pair for pair in fitting if len(counted(pair)) == 2]
    if fitting and not whole:
        raise ValueError(f"{_named(place)}: the two runs have no step in common that counts in both (valid is false)")
    if not whole:
        return worse
    old, now = (figures(Facts.of(run.start["facts"]), [pair[i] for pair in whole]) for i, run in enumerate((base, new)))
    for name in metrics:
        a, b = getattr(old, name), getattr(now, name)
        if b > a * (1 + limit):
            form = METRICS[name].format
            worse.append(Change(place, name, form(a), form(b), b / a - 1 if a else None))
    return worse


def _check_same(place: Place, base: Mapping[str, Any], new: Mapping[str, Any]) -> None:
    for key in SAME:
        found = _difference(key, base.get(key), new.get(key))
        if found is not None:
            name, a, b = found
            raise ValueError(
                f"{_named(place)}: {name} is {a!r} in the baseline and {b!r} in the new record; only runs that differ "
                "in their system alone can be compared (a new baseline is needed where the rest has changed)"
            )


def _difference(name: str, a: Any, b: Any) -> tuple[str, Any, Any] | None:
    """Returns the first key (dotted) in which two configurations differ, and its values."""
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        found = (_difference(f"{name}.{key}", a.get(key), b.get(key)) for key in dict.fromkeys((*a, *b)))
        return next((one for one in found if one is not None), None)
    return None if a == b else (name, a, b)


def _matched(place: Place, base: Run, new: Run) -> list[tuple[Line, Line]]:
    """Returns the steps that both runs have, matched by number."""
    of = {step["step"]: step for step in new.steps}
    pairs = [(step, of[step["step"]]) for step in base.steps if step["step"] in of]
    if not pairs and new.status == "finished":
        raise ValueError(f"{_named(place)}: the two runs have no step in common")
    for step, other in pairs:
        if step["batch"] != other["batch"]:
            raise ValueError(
                f"{_named(place)}: step {step['step']} was batch {step['batch']} in the baseline and {other['batch']} "
                "in the new record; only runs on the same batches can be compared"
            )
    return pairs


def run_place(run: Run) -> Place:
    """Returns the place of a run, within which runs are compared: what it is of; its world, what planners knew of it,
    its mask, what was free, where not the usual."""
    config = run.start["config"]
    of = {
        **{group: label(run.start, group) for group in GROUPS},
        **told_keys(config, ("planners", "mask", "free")),
    }
    apart = [f"{key} {typed(of[key])}" for key in told_settings(of, ("world", "planners", "mask", "free"))]
    return tuple(of[group] for group in GROUPS if group != "world") + tuple(apart)


def _named(place: Place) -> str:
    return f"{place[0]} on {', '.join(place[1:])}"


def _first(of: Mapping[Place, Run]) -> str:
    return _named(next(iter(of))) + (f" and {len(of) - 1} more" if len(of) > 1 else "")


def _told(run: Run) -> str:
    return run.status if run.end is None else f"{run.status} ({run.end.get('message', '')})"
