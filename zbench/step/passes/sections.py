"""The formulas of a step: of a layer's forward and backward, of what is before and after the layers, of the updates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from zbench.step.formula import Formula, parse_formula, parse_formulas
from zbench.step.layers import (
    DENSE,
    DERIVATIVES,
    EMBEDDING,
    EMBEDDING_BACKWARD,
    USUAL_ROUTER,
    RouterFormulas,
    expert_layer,
    head,
    head_forward,
    update,
)
from zbench.step.passes.parameters.zero import axes_of, layer_weights, outer_weights
from zbench.step.passes.recompute import made_again, with_recomputation
from zbench.step.transpose import transpose

KEPT = "kept_backward"  # the section of layers that are not recomputed, where others are


@dataclass(frozen=True)
class Sections:
    """Formulas by the template that computes them, in the order in which a layout has them. level: of recomputation.
    kept_backward: of layers that are not recomputed, where others are, else none."""

    embedding: tuple[Formula, ...]
    forward: tuple[Formula, ...]
    head: tuple[Formula, ...]
    backward: tuple[Formula, ...]
    embedding_backward: tuple[Formula, ...]
    updates: tuple[Formula, ...]
    level: str
    layer_weights: tuple[str, ...]
    kept_backward: tuple[Formula, ...] = ()

    @cached_property
    def all(self) -> tuple[Formula, ...]:
        """All formulas."""
        own = tuple(one for one in self.kept_backward if one not in self.backward)
        before = self.embedding + self.forward + self.head + self.backward
        return before + self.embedding_backward + self.updates + own

    @cached_property
    def numbers(self) -> Mapping[str, Sequence[int]]:
        """The numbers of the formulas of each section."""
        found: dict[str, Sequence[int]] = {}
        first = 0
        for name in ("embedding", "forward", "head", "backward", "embedding_backward", "updates"):
            found[name] = range(first, first + len(getattr(self, name)))
            first += len(getattr(self, name))
        found[KEPT] = [self.all.index(one) for one in self.kept_backward]
        return found

    def saved(self, section: str) -> tuple[str, ...]:
        """Returns the tensors that a layer's backward, of a section, reads of its forward, its input among them."""
        backward = self.kept_backward if section == KEPT else self.backward
        made = {ref.tensor for one in backward for ref in one.results}
        reads = dict.fromkeys(ref.tensor for one in backward for ref in one.operands)
        return tuple(name for name in reads if name not in made and name not in (*self.layer_weights, "dx"))

    @cached_property
    def contributors(self) -> Mapping[tuple[str, str], tuple[Formula, ...]]:
        """The formulas that add to each sum, by (section, tensor)."""
        found: dict[tuple[str, str], tuple[Formula, ...]] = {}
        for section, numbers in self.numbers.items():
            for one in map(self.all.__getitem__, numbers):
                for ref in one.results:
                    found[section, ref.tensor] = (*found.get((section, ref.tensor), ()), one)
        return found


@lru_cache(maxsize=16)
def sections(
    recompute: str,
    experts: bool,
    head_kind: str,
    shared: bool = False,
    two_level: bool = False,
    some: bool = False,
    router: RouterFormulas = USUAL_ROUTER,
) -> Sections:
    """Returns the formulas of a step with a level of recomputation, of layers with experts, some of them maybe shared,
    or dense ones. head_kind: of zbench.describe.model.Model.kind_of_head; two_level: tokens go to experts in two
    levels. some: whether some layers alone are recomputed. router: of experts.

    Raises:
        ValueError: there is no such level.
    """
    forward = parse_formulas(expert_layer(shared, two_level, router) if experts else DENSE)
    again = made_again(recompute, forward, "x")
    weights = layer_weights(experts, shared, router.scores)
    return Sections(
        parse_formulas(EMBEDDING),
        forward,
        head(head_kind),
        with_recomputation(forward, transpose(forward, DERIVATIVES), again),
        parse_formulas(EMBEDDING_BACKWARD),
        tuple(
            parse_formula(update(weight, ",".join(axes_of(weight)))) for weight in (*weights, *outer_weights(head_kind))
        ),
        recompute,
        weights,
        transpose(forward, DERIVATIVES) if some else (),
    )


@lru_cache(maxsize=4)
def forward_sections(head_kind: str) -> Sections:
    """Returns the formulas of forwards alone, of dense layers. head_kind: as of `sections`."""
    dense = sections("none", False, head_kind)
    return Sections(
        parse_formulas(EMBEDDING), dense.forward, head_forward(head_kind), (), (), (), "none", dense.layer_weights
    )
