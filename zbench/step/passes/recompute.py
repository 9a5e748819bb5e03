"""Recomputation: what the backward reads and the forward does not keep is made again by formulas of its own.

What is made again is another tensor, with ~ at the end of its name: a sum that is made a second time has contributions
of its own, and nothing else in a step has to know of recomputation.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from zbench.step.formula import Formula, Reference
from zbench.step.layers import EVERY_COUNT
from zbench.step.template import StageStart

# Gate and up, and their product, of shared experts and of a dense layer before layers with experts as well.
_GATED = ("z", "u", "zs", "us", "zf", "uf")
# What is made again: nothing; what elementwise work alone makes; the feed-forward's, all of it before its gradients or
# a chunk of tokens where its gradients are made; all of a layer but its input.
LEVELS: Mapping[str, tuple[str, ...] | None] = MappingProxyType({
    "none": (), "elementwise": ("n", "m", "mf", "u", "us", "uf"), "selective": ("m", "mf", *_GATED),
    "chunked": ("m", "mf", *_GATED), "full": None,
})  # fmt: skip
BEFORE = ("selective",)  # levels that make again what they do for all tokens before any gradient, as frameworks do


@dataclass(frozen=True)
class SomeLayers:
    """Layers of which some are recomputed, by a level. layers: how many of each stage, its first ones."""

    level: str
    layers: tuple[int, ...]

    def of_stages(self, stages: Sequence[StageStart], num_layers: int) -> tuple[int, ...]:
        """Returns how many layers of each stage are recomputed.

        Raises:
            ValueError: a stage has not so many, or there are other stages.
        """
        ends = [*(one.layer for one in stages[1:]), num_layers]
        most = tuple(end - one.layer for one, end in zip(stages, ends, strict=True))
        if len(most) != len(self.layers) or any(
            not 0 <= have <= all_ for have, all_ in zip(self.layers, most, strict=True)
        ):
            raise ValueError(f"recomputed layers are {self.layers}; of stages of {most} layers each takes 0 to all")
        return self.layers


def made_again(level: str, forward: Sequence[Formula]) -> tuple[str, ...]:
    """Returns the names of tensors that are made again.

    Raises:
        ValueError: there is no such level.
    """
    if level not in LEVELS:
        raise ValueError(f"recompute is {level!r}; it takes {', '.join(LEVELS)}")
    names = LEVELS[level]
    if names is not None:
        return names
    made = [result for one in forward for result in one.results if not result.after]
    # Counts are kept, as they say how large what goes back along them is: no second message has them.
    return tuple(result.tensor for result in made if result.tensor not in EVERY_COUNT)


def with_recomputation(
    forward: Sequence[Formula], backward: Sequence[Formula], again: Collection[str]
) -> tuple[Formula, ...]:
    """Returns the backward with the formulas that make `again` once more before it, and reading what these make.

    Of a forward only the formulas are repeated whose results something reads.
    """
    wanted = {ref.tensor for one in backward for ref in one.operands} & set(again)
    repeated: list[Formula] = []
    for one in reversed(forward):
        if any(result.tensor in wanted and not result.after for result in one.results):
            repeated.insert(0, one)
            wanted |= {ref.tensor for ref in one.operands} & set(again)
    return tuple(_again(one, wanted) for one in (*repeated, *backward))


def _again(one: Formula, names: Collection[str]) -> Formula:
    """Returns a formula that names what is made again."""

    def renamed(ref: Reference) -> Reference:
        return replace(ref, tensor=f"{ref.tensor}~") if ref.tensor in names and not ref.after else ref

    terms = tuple(replace(term, operands=tuple(map(renamed, term.operands))) for term in one.terms)
    return replace(one, results=tuple(map(renamed, one.results)), terms=terms)
