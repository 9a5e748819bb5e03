"""The advice: what was found out so far, and its figures as plain values. An edge.

docs/advise.md has every field of `Advice.values`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import exp, log
from typing import Any

from zbench.advise.framework import Option
from zbench.advise.play import Played
from zbench.advise.reasons import why
from zbench.advise.told import FORMAT
from zbench.describe.worlds import NOMINAL
from zbench.record.interval import interval
from zbench.record.iterations import STAGES
from zbench.record.metrics import memory_verdict

CONTENDS = 0.5  # of the fastest's speed: what is slower is not played in other worlds
OVER_WORLDS = (
    "tokens_per_second_least",
    "tokens_per_second_greatest",
    "speedup_least",
    "least_in",
    "speedup_greatest",
    "greatest_in",
)
Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Deployed:
    """An option of a framework as it was played, with its flags."""

    option: Option
    played: Played
    flags: Sequence[str]


@dataclass(slots=True)
class Deployment:
    """The ways in which a framework runs batches today, the fastest of which is advised. version: of the framework
    that the flags were read in."""

    framework: str
    version: str
    options: list[Deployed] = field(default_factory=list)

    @property
    def best(self) -> Deployed | None:
        """The fastest option that fits memory."""
        fitting = [one for one in self.options if one.played.fits]
        return min(fitting, key=lambda one: one.played.figures.step_seconds or 0.0, default=None)


@dataclass(slots=True)
class Advice:
    """The findings. question: as values. baseline: what speed-ups are over. systems: played whatever the
    framework is. worlds: name and words of those that were played in full. contract: as zbench.advise.contract has it.
    complete: nothing was left out because somebody stopped it."""

    question: Values
    baseline: Played | None = None
    systems: list[Played] = field(default_factory=list)
    deployment: Deployment | None = None
    contract: Values | None = None
    worlds: dict[str, str] = field(default_factory=dict)
    complete: bool = False

    @property
    def everything(self) -> list[Played]:
        """The systems and the baseline, the fastest first; those that cannot be played or have no room last."""
        known = [*self.systems, *([self.baseline] if self.baseline else [])]
        return sorted(known, key=lambda one: one.figures.step_seconds or float("inf"))

    @property
    def fastest(self) -> Played | None:
        """The fastest that fits memory; None where none does."""
        return next((one for one in self.everything if one.fits), None)

    @property
    def contenders(self) -> list[Played]:
        """The systems that are played in other worlds: those that are nominally at least CONTENDS as fast as the
        fastest, the baseline, and the framework's options."""
        least = self.fastest.figures.step_seconds if self.fastest else None
        if least is None:
            return []
        near = [
            one
            for one in self.everything
            if one.fits and (one is self.baseline or CONTENDS * (one.figures.step_seconds or 0.0) <= least)
        ]
        return [*near, *(one for one in self._options if one.fits)]

    @property
    def _options(self) -> list[Played]:
        return [one.played for one in self.deployment.options] if self.deployment else []

    def winners(self, world: str) -> tuple[str, str | None]:
        """Returns the names of (the fastest system, the framework's fastest option) in a world that was played."""
        return _first(self.everything, world) or "", _first(self._options, world)

    def values(self) -> Values:
        """Returns the advice as values of JSON."""
        best, deployed = self.fastest, self.deployment.best if self.deployment else None
        return {
            "format": FORMAT,
            "simulated": True,
            "complete": self.complete,
            "question": self.question,
            "baseline": self.baseline.candidate.name if self.baseline else None,
            "fastest": best.candidate.name if best else None,
            "systems": [self.row(one) for one in self.everything],
            "why": self._why(best, deployed.played if deployed else None),
            "deploy": self._deploy(),
            "contract": self.contract,
            "worlds": [
                {"world": name, "changes": words, "fastest": self.winners(name)[0], "deployed": self.winners(name)[1]}
                for name, words in self.worlds.items()
            ],
        }

    def _why(self, best: Played | None, deployed: Played | None) -> list[str]:
        """Says why the fastest beats the baseline and what can be deployed."""
        others = [one for one in (self.baseline, deployed) if one is not None and one.fits and one is not best]
        return [why(best, one) for one in others] if best is not None else []

    def _deploy(self) -> Values | None:
        if self.deployment is None:
            return None
        best, fastest = self.deployment.best, self.fastest
        rows = [
            {**self.row(one.played), "flags": list(one.flags), "notes": list(one.option.notes)}
            for one in self.deployment.options
        ]
        share = best.played.gain(fastest) if best and fastest else None
        return {
            "framework": self.deployment.framework,
            "version": self.deployment.version,
            "advised": best.option.name if best else None,
            "share_of_fastest": share,
            "options": rows,
        }

    def row(self, played: Played) -> Values:
        """Returns a system's figures."""
        one, found = played.candidate, played.figures
        low, high = _ends(played)
        base = self.baseline if self.baseline is not None and self.baseline.fits else None
        gain = played.gain(base) if base and played.fits else None
        ends = played.gain_interval(base) if base and played.fits and played is not base else None
        return {
            "name": one.name,
            "system": one.system,
            "keys": dict(one.keys),
            "model": dict(one.model),
            "chosen": one.words,
            "problem": played.problem or memory_verdict(found) or "",
            "tokens_per_second": found.tokens_per_second,
            "tokens_per_second_low": low,
            "tokens_per_second_high": high,
            "speedup": gain,
            "speedup_low": ends[0] if ends else None,
            "speedup_high": ends[1] if ends else None,
            **self._ranges(played, base),
            "bound_ratio": found.bound_ratio,
            "step_seconds": found.step_seconds,
            "stages": None
            if found.generate_seconds is None
            else {one: getattr(found, f"{one}_seconds") for one in STAGES},
            "generation_imbalance": found.generation_imbalance,
            "imbalance": found.imbalance,
            "exposed_communication": found.exposed_communication,
            "nic_utilization": found.nic_utilization,
            "micro_batches": _mean([step["num_micro_batches"] for step in played.steps]),
            "plan_seconds": found.plan_seconds,
            "peak_bytes": found.peak_bytes,
            "capacity_bytes": found.capacity_bytes,
        }

    def _ranges(self, played: Played, base: Played | None) -> Values:
        """Returns the least and the greatest rate and speed-up over the worlds that were played in full, the nominal
        one among them, and the worlds of the speed-up's; null where there is none but the nominal one."""
        worlds = [name for name in (NOMINAL, *self.worlds) if name in played.worlds]
        if len(worlds) < 2:
            return dict.fromkeys(OVER_WORLDS)
        rates = [played.rate(name) for name in worlds]
        gains = {name: gain for name in worlds if base is not None and (gain := played.gain(base, name)) is not None}
        least, greatest = (choose(gains, key=gains.__getitem__, default=None) for choose in (min, max))
        found = (min(rates), max(rates), gains.get(least or ""), least, gains.get(greatest or ""), greatest)
        return dict(zip(OVER_WORLDS, found, strict=True))


def _first(played: Sequence[Played], world: str) -> str | None:
    """Returns the name of the fastest of them in a world; None where there is none."""
    seconds = {
        one.candidate.name: sum(step["seconds"] for step in one.worlds[world]) for one in played if world in one.worlds
    }
    return min(seconds, key=seconds.__getitem__) if seconds else None


def _ends(played: Played) -> tuple[float | None, float | None]:
    """Returns the 95 % interval over batches of tokens a second; (None, None) for fewer than 3 batches."""
    if not played.fits or played.figures.tokens_per_second is None:
        return None, None
    _, half = interval([log(step["tokens"] / step["seconds"]) for step in played.steps])
    middle = played.figures.tokens_per_second
    return (None, None) if half is None else (middle * exp(-half), middle * exp(half))


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None
