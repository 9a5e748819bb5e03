"""Finds out which of a few settings of a system is fastest over a distribution of lengths. Pure: no torch.

What a user sets once, before a run, from what they know of their data: how parameters are sharded and whether layers
are recomputed (`free_groups`), and limits that a system has its user set (its `limits`,
zbench.interfaces.abilities). It is chosen as static_best is (zbench.systems.static_best.search): settings are played on
batches of another seed than the run's, on few of them first, the best on all, by the run's own clock.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf
from typing import Any

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.model import RECOMPUTE, SHARDING, WHOLE, Model
from zbench.describe.strategy import CHUNKED
from zbench.describe.units import with_noun
from zbench.interfaces.protocols import System
from zbench.interfaces.study import Choice, Clock, Sample, Study
from zbench.simulator.estimate.step import StepEstimate

FREE = ("sharding", "recompute")  # groups that may be chosen, and fields of a model that they set
FEW, BETTER = 4, 3  # batches that settings are played on first, and how many settings go on to all; judgements
ENOUGH = 128  # GPUs whose batch says as much as four of 32: on as many, one is enough to tell bad settings

Keys = Mapping[str, Any]
Made = Callable[[Cost, Keys], System]  # a system, of a cost and of keys that its yaml has otherwise
Limits = Callable[[System, int], Sequence[Keys]]  # keys that a system may have, with batches of so many tokens
Verdict = tuple[int, float]  # batches that are out of memory, mean seconds of the others: the least is the best


@dataclass(frozen=True, slots=True)
class Setting:
    """A system with some of its keys set, and the cost of a model with some of its keys set."""

    model: Keys
    keys: Keys
    cost: Cost
    system: System

    def verdict(self, hard: Batch, batches: Sequence[Batch], clock: Clock) -> Verdict:
        """Plays a step of each batch; returns how many are out of memory, and the mean seconds of the others. hard: a
        batch that has to fit and is too rare for its seconds to count."""
        executor, rare = clock(self.cost), clock(self.cost)
        found = [executor.compared_seconds(batch, tuple(self.system.plan(batch))) for batch in batches]
        seconds = [one for one in found if one < inf]
        lacking = len(found) - len(seconds) + (rare.compared_seconds(hard, tuple(self.system.plan(hard))) == inf)
        return lacking, sum(seconds) / max(len(seconds), 1)

    def choice(self) -> Choice:
        """Returns the keys that the setting sets, and both kinds in words."""
        told = {**self.model, **self.keys}
        words = (f"{name} {value:,}" if isinstance(value, int) else f"{name} {value}" for name, value in told.items())
        return Choice(self.model, self.keys, ", ".join(words))


def fastest(study: Study, made: Made, limits: Limits) -> Choice:
    """Returns the setting that is out of memory in the fewest batches, and then the fastest."""
    sample = Sample.of(study)
    return fastest_of(list(_settings(study, made, limits, sample.hard.num_tokens)), sample, study)


def fastest_of(settings: Sequence[Setting], sample: Sample, study: Study) -> Choice:
    """Returns the one of these settings, at least one, that is out of memory in the fewest batches of the sample, and
    then the fastest."""
    if len(settings) > BETTER:
        study.tell(f"playing {with_noun(len(settings), 'setting')}")
        few = sample.some(max(1, min(FEW, ENOUGH // study.cluster.num_ranks)))
        settings = _ranked(settings, sample.hard, few, StepEstimate)[:BETTER]
    study.tell("playing the better ones")
    return _ranked(settings, sample.hard, sample.some(study.judged), study.clock)[0].choice()


def free_values(name: str, model: Model) -> Sequence[str]:
    """Returns the values that a free group may have: of recomputation none that takes chunks where there are none."""
    if name == "sharding":
        return SHARDING
    return [one for one in RECOMPUTE if one != CHUNKED or model.mlp_chunk_tokens != WHOLE]


def free_models(model: Model, free: Sequence[str]) -> Iterator[tuple[Keys, Model]]:
    """Yields every combination of the values that the free groups may have, and the model with it."""
    for values in product(*(free_values(name, model) for name in free)):
        keys = dict(zip(free, values, strict=True))
        yield keys, replace(model, **keys)  # type: ignore[arg-type]


def _settings(study: Study, made: Made, limits: Limits, tokens: int) -> Iterator[Setting]:
    for chosen, model in free_models(study.model, study.free):
        try:
            cost = study.cost_of(model)
            study.clock(cost)
        except ValueError:  # ZeRO-3 with stages, or the run's clock does not play it
            continue
        for keys in limits(made(cost, {}), tokens):
            yield Setting(chosen, keys, cost, made(cost, keys))


def _ranked(settings: Sequence[Setting], hard: Batch, batches: Sequence[Batch], clock: Clock) -> list[Setting]:
    """Sorts settings, the best first; equally good ones keep their order."""
    verdicts = [one.verdict(hard, batches, clock) for one in settings]
    return [settings[i] for i in sorted(range(len(settings)), key=verdicts.__getitem__)]
