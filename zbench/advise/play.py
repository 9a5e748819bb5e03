"""Plays candidates on the simulated clock, and keeps of every step what a record's line has of it. An edge."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from time import perf_counter

from zbench.advise.candidate import PinnedSystem, Tell
from zbench.advise.question import Question
from zbench.describe.batch import Batch
from zbench.describe.mask import CAUSAL
from zbench.describe.worlds import NOMINAL
from zbench.interfaces.protocols import System
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan
from zbench.proof.verify import PlanError, verify_step
from zbench.record.flops import Facts
from zbench.record.metrics import Figures, figures
from zbench.record.record import Line
from zbench.record.speedup import speedup, speedup_interval
from zbench.run.checks.contract import plans_of
from zbench.run.parts import Parts


@dataclass(frozen=True)
class Played:
    """A candidate and the steps that were played of it. facts: of cluster and model, as metrics need them. worlds:
    lines of the steps, by world, the nominal one among them. problem: why there are none; "" where there are."""

    candidate: PinnedSystem
    facts: Facts | None = None
    worlds: dict[str, list[Line]] = field(default_factory=dict)
    problem: str = ""

    @property
    def steps(self) -> Sequence[Line]:
        """The lines of the nominal world."""
        return self.worlds.get(NOMINAL, [])

    @cached_property
    def figures(self) -> Figures:
        """The figures over the nominal steps."""
        return Figures() if self.facts is None else figures(self.facts, self.steps)

    @property
    def fits(self) -> bool:
        """Whether it was played, and within memory."""
        return bool(self.steps) and not self.figures.out_of_memory

    def rate(self, world: str) -> float:
        """Returns the tokens a second in a world that was played."""
        steps = self.worlds[world]
        return float(sum(step["tokens"] for step in steps) / sum(step["seconds"] for step in steps))

    def gain(self, other: "Played", world: str = NOMINAL) -> float | None:
        """Returns how many times as fast it is as another in a world; None where one of them has not all steps."""
        return speedup(self.worlds.get(world, []), other.worlds.get(world, [])) if world in self.worlds else None

    def gain_interval(self, other: "Played") -> tuple[float, float] | None:
        """Returns the 95 % interval over batches of the gain over another; None for fewer than 3."""
        return speedup_interval(self.steps, other.steps)


def play(question: Question, candidate: PinnedSystem, tell: Tell) -> Played:
    """Plays a candidate on the question's batches in the nominal world; where it cannot be played, says why."""
    try:
        system, parts = candidate.made(question)
        lines = []
        for number in range(question.settings.steps):
            tell(f"batch {number + 1} of {question.settings.steps}")
            lines.append(_line(parts, number, system))
    except PlanError:  # a wrong plan is no answer to anything
        raise
    except ValueError as error:
        return Played(candidate, problem=str(error))
    return Played(candidate, Facts.of(parts.facts()), {NOMINAL: lines})


def play_world(question: Question, played: Played, world: str) -> None:
    """Plays a candidate in one more world, on the same batches; planners know the world."""
    system, parts = played.candidate.made(question, world)
    played.worlds[world] = [_line(parts, number, system) for number in range(question.settings.steps)]


def worlds_of(question: Question, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields (name, what it changes) of those worlds that the machine has."""
    nominal = question.parts().nominal
    for name in names:
        world = question.world(name)
        if name != NOMINAL and world.missing(nominal) is None:
            yield name, world.told(nominal)


def _line(parts: Parts, number: int, system: System) -> Line:
    """Plans, proves and plays a batch."""
    batch = parts.batch(number)
    began = perf_counter()
    plans = plans_of(system, batch, parts.cost)
    seconds = perf_counter() - began
    verify_step(batch, plans, parts.cost, memory=False)  # which the simulator tells of the step
    return line_of(number, batch, plans, seconds, parts.executor.step(batch, plans), parts)


def line_of(
    number: int, batch: Batch, plans: tuple[Plan, ...], seconds: float, result: StepResult, parts: Parts
) -> Line:
    """Returns a step as a record's line has it, as far as figures are derived from it. seconds: that planning took."""
    mask = parts.model.mask
    return {
        "step": number,
        "batch": batch.digest,
        "tokens": batch.num_tokens,
        "sum_squared": batch.sum_squared,
        **({} if mask == CAUSAL else {"pairs": mask.pairs(batch.lengths)}),
        "max_length": int(batch.lengths.max()),
        "num_micro_batches": len(plans),
        "plan_seconds": seconds,
        **asdict(result),
    }
