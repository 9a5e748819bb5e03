"""A framework: which of its own ways to run a batch are played, and by which flags a user gets each.

What is named here was read in the sources of the versions that `Framework.version` names; a flag that is not in them
has no place here. What the flags of a user's model, data and optimizer are, nothing here says.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil
from typing import Any, Literal

from zbench.advise.candidate import PinnedSystem, Tell, study_of
from zbench.advise.question import Question
from zbench.cost.cost import Cost
from zbench.describe.model import Model
from zbench.interfaces.study import Sample
from zbench.run.fastest import Setting, fastest_of
from zbench.run.system import make_system
from zbench.systems.common.micro_batches import fitting_tokens

Keys = Mapping[str, Any]
Tensor = Literal["configured", "free"]
STEP = 128  # tokens that limits are rounded up to: frameworks pad packs to multiples of their parallelism
SHARES = (1, 2, 4, 8)  # of a batch's tokens over the ranks, tried as limits of a rank


@dataclass(frozen=True, slots=True)
class LaunchSettings:
    """An option with its settings chosen. keys: of the system. longest: tokens of the longest sequence. tokens: of a
    batch."""

    keys: Keys
    model: Model
    num_gpus: int
    longest: int
    tokens: int

    @property
    def ranks(self) -> int:
        """Data-parallel times context-parallel ranks."""
        return self.num_gpus // (self.model.tensor_parallel * self.model.pipeline_parallel)


@dataclass(frozen=True, slots=True)
class Option:
    """One way in which a framework runs batches.

    system: of conf/system, which plays it. settings: of a cost model, the tokens of a batch and the longest sequence,
    the system's keys that a user could set. flags: of what was chosen, what is written into the launch script.
    model: keys of the model that its engine needs. tensor: "free": degrees of tensor parallelism inside a node are
    tried as well. notes: what a user has to know. contract: of the keys chosen, those of a planner inside the engine's
    contract (systems/in_contract); None where that is not told. default: as settings, the keys that users start from.
    adapter: a sentence on what of zbench the framework can take in place of its scheduler; "" where there is nothing.
    limit: of a cost model and the longest sequence, the tokens of a rank that the planner inside is given in place of
    `pack_tokens`, in what is played and in its flags; None where the framework cannot take that planner.
    """

    name: str
    system: str
    settings: Callable[[Cost, int, int], Sequence[Keys]]
    flags: Callable[[LaunchSettings], Sequence[str]]
    model: Keys = field(default_factory=dict)
    tensor: Tensor = "configured"
    notes: Sequence[str] = ()
    contract: Callable[[Keys], Keys] | None = None
    default: Callable[[Cost, int, int], Keys] | None = None
    adapter: str = ""
    limit: Callable[[Cost, int], int] | None = None


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework. version: that its flags were read in. options: of the question's model, what is played for it."""

    name: str
    version: str
    options: Callable[[Model], Sequence[Option]]


def chosen(question: Question, option: Option, sample: Sample, tell: Tell) -> PinnedSystem:
    """Returns the option with those of its settings that are fastest on other batches than the question's, as a user
    would set them before a run.

    Raises:
        ValueError: none of them can be made for this cluster and model.
    """
    parts = question.parts()
    settings, problem = [], ""
    for keys, model in _models(option, parts.model, parts.cluster.gpus_per_node):
        try:
            cost = parts.cost_of(parts.cluster, model)
            for one in option.settings(cost, parts.tokens, question.longest):
                system = make_system(question.system_config(option.system, one), cost)
                settings.append(Setting(keys, one, cost, system))
        except ValueError as error:  # heads or ranks that such parallelism does not divide
            problem = problem or str(error)
    if not settings:
        raise ValueError(problem or f"{option.name} has no setting for this cluster")
    best = fastest_of(settings, sample, study_of(question, tell))
    return PinnedSystem(option.name, option.system, dict(best.keys), dict(best.model), best.words)


def flags_of(question: Question, option: Option, candidate: PinnedSystem) -> list[str]:
    """Returns the flags that make a framework run what was played as this candidate."""
    parts = question.parts(candidate.model)
    pinned = LaunchSettings(candidate.keys, parts.model, parts.cluster.num_ranks, question.longest, parts.tokens)
    return list(option.flags(pinned))


def _models(option: Option, model: Model, gpus_per_node: int) -> Iterator[tuple[Keys, Model]]:
    """Yields (keys of the model, the model with them) of every model that the option is played with."""
    degrees = [model.tensor_parallel]
    if option.tensor == "free" and model.tensor_parallel == 1:
        degrees = [n for n in (1, 2, 4, 8) if gpus_per_node % n == 0 and model.num_heads % n == 0]
    for degree in degrees:
        keys = dict(option.model) | ({"tensor_parallel": degree} if degree != model.tensor_parallel else {})
        yield keys, replace(model, **keys)


def whole_layers(model: Model) -> tuple[Keys, Sequence[str]]:
    """Returns (keys of the model, notes) where an engine runs whole layers again or none: what is selective is full."""
    if model.recompute != "selective":
        return {}, ()
    return {"recompute": "full"}, (
        "Its engine runs whole layers again or none, so recompute=selective is played as full.",
    )


def limits(cost: Cost, tokens: int, longest: int = 0, ranks: int = 1) -> list[int]:
    """Returns limits of a rank's tokens that may be tried: a batch's tokens over the ranks, and multiples of that as
    far as a GPU holds them. longest: tokens of the longest sequence, ranks: over which it is cut; a limit that is too
    small for it is left out."""
    even, most = tokens / cost.cluster.num_ranks, fitting_tokens(cost)
    found = sorted({STEP * ceil(share * even / STEP) for share in SHARES})
    held = [one for one in found if one <= most] or found[:1]
    return [one for one in held if one * ranks >= longest] or [max(held[-1], STEP * ceil(longest / ranks / STEP))]


def roomy_limit(cost: Cost, longest: int) -> int:
    """Returns the limit of a rank's tokens that leaves a planner all the room of a GPU, and no less than the longest
    sequence takes when all ranks share it."""
    return max(STEP * (fitting_tokens(cost) // STEP), STEP * ceil(longest / cost.cluster.num_ranks / STEP))


def degrees(cost: Cost, longest: int, most: int, count: int = 6) -> list[int]:
    """Returns degrees of context parallelism that may be tried: divisors of `most`, from the least that holds the
    longest sequence on, at most `count`."""
    every = [n for n in range(1, most + 1) if most % n == 0]
    holding = [n for n in every if n * fitting_tokens(cost) >= longest]
    return (holding or every[-1:])[:count]


def power_of_two(least: float, most: int) -> int:
    """Returns the least power of two of at least `least`, but none above `most`."""
    found = 1
    while found < least and 2 * found <= most:
        found *= 2
    return found
