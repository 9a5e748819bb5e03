"""The formulas of a step: of a layer's forward and backward, of what is before and after the layers, of the updates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

from zbench.describe.layers.model_parameters import TWO_TABLES
from zbench.step.formula import Formula, parse_formula, parse_formulas
from zbench.step.layers import (
    DENSE,
    DERIVATIVES,
    EMBEDDING,
    EMBEDDING_BACKWARD,
    LEADING_DENSE,
    USUAL_ROUTER,
    RouterFormulas,
    expert_layer,
    head,
    head_forward,
    update,
)
from zbench.step.passes.parameters.weights import DENSE_WEIGHTS, TABLES, axes_of, layer_weights, outer_weights
from zbench.step.passes.recompute import made_again, with_recomputation
from zbench.step.tensor import FOLLOWING, LEADING
from zbench.step.transpose import transpose

KEPT = "kept_backward"  # the section of layers that are not recomputed, where others are
DENSE_FORWARD, DENSE_BACKWARD = "dense_forward", "dense_backward"  # of the first layers, dense where others are not


@dataclass(frozen=True)
class Sections:
    """Formulas by the template that computes them, in the order in which a layout has them. level: of recomputation.
    kept_backward: of layers that are not recomputed, where others are, else none. dense_forward, dense_backward: of the
    first layers, where these are dense and others have experts, else none."""

    embedding: tuple[Formula, ...]
    forward: tuple[Formula, ...]
    head: tuple[Formula, ...]
    backward: tuple[Formula, ...]
    embedding_backward: tuple[Formula, ...]
    updates: tuple[Formula, ...]
    level: str
    layer_weights: tuple[str, ...]
    kept_backward: tuple[Formula, ...] = ()
    dense_forward: tuple[Formula, ...] = ()
    dense_backward: tuple[Formula, ...] = ()

    @cached_property
    def all(self) -> tuple[Formula, ...]:
        """All formulas."""
        before = self.embedding + self.forward + self.head + self.backward
        found = before + self.embedding_backward + self.updates
        for others in (self.kept_backward, self.dense_forward, self.dense_backward):
            found += tuple(one for one in others if one not in found)
        return found

    @cached_property
    def numbers(self) -> Mapping[str, Sequence[int]]:
        """The numbers of the formulas of each section."""
        found: dict[str, Sequence[int]] = {}
        first = 0
        for name in ("embedding", "forward", "head", "backward", "embedding_backward", "updates"):
            found[name] = range(first, first + len(getattr(self, name)))
            first += len(getattr(self, name))
        for name in (KEPT, DENSE_FORWARD, DENSE_BACKWARD):
            found[name] = [self.all.index(one) for one in getattr(self, name)]
        return found

    @cached_property
    def kinds(self) -> Mapping[str, str]:
        """The tensors that formulas of one kind of layers alone make, with the kind; none where all are alike."""
        if not self.dense_forward:
            return {}
        first, others = (
            {ref.tensor for one in formulas for ref in one.results}
            for formulas in (self.dense_forward + self.dense_backward, self.forward + self.backward)
        )
        return dict.fromkeys(first - others, LEADING) | dict.fromkeys(others - first, FOLLOWING)

    def saved(self, section: str) -> tuple[str, ...]:
        """Returns the tensors that a layer's backward, of a section, reads of its forward, its input among them."""
        backward = {KEPT: self.kept_backward, DENSE_BACKWARD: self.dense_backward}.get(section, self.backward)
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
    dense_first: bool = False,
) -> Sections:
    """Returns the formulas of a step with a level of recomputation, of layers with experts, some of them maybe shared,
    or dense ones. head_kind: of zbench.describe.model.Model.kind_of_head; two_level: tokens go to experts in two
    levels. some: whether some layers alone are recomputed. router: of experts. dense_first: whether the first layers
    are dense where others have experts. Two tables of tied embeddings are updated by formulas of their own
    (zbench.step.passes.parameters.tied_tables).

    Raises:
        ValueError: there is no such level.
    """
    forward = parse_formulas(expert_layer(shared, two_level, router) if experts else DENSE)
    again = made_again(recompute, forward)
    weights = (*layer_weights(experts, shared, router.scores), *(DENSE_WEIGHTS if dense_first else ()))
    updated = [*weights, *(one for one in outer_weights(head_kind) if head_kind != TWO_TABLES or one not in TABLES)]
    dense = parse_formulas(LEADING_DENSE) if dense_first else ()
    dense_again = made_again(recompute, dense)
    return Sections(
        parse_formulas(EMBEDDING),
        forward,
        head(head_kind),
        with_recomputation(forward, transpose(forward, DERIVATIVES), again),
        parse_formulas(EMBEDDING_BACKWARD),
        tuple(parse_formula(update(weight, ",".join(axes_of(weight)))) for weight in updated),
        recompute,
        weights,
        transpose(forward, DERIVATIVES) if some else (),
        dense,
        with_recomputation(dense, transpose(dense, DERIVATIVES), dense_again) if dense else (),
    )


@lru_cache(maxsize=4)
def forward_sections(head_kind: str) -> Sections:
    """Returns the formulas of forwards alone, of dense layers. head_kind: as of `sections`."""
    dense = sections("none", False, head_kind)
    return Sections(
        parse_formulas(EMBEDDING), dense.forward, head_forward(head_kind), (), (), (), "none", dense.layer_weights
    )
