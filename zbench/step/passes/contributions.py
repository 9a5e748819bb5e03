"""A micro-batch contributes to gradients section by section, and some sections reduce them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType

import numpy as np

from zbench.describe.arrays import Ints
from zbench.step.layers import of_experts
from zbench.step.passes.experts import ExpertModules
from zbench.step.passes.parameters.gradients import GradientRows
from zbench.step.passes.sections import DENSE_BACKWARD, Sections
from zbench.step.passes.tensor_parallel import LinearModules
from zbench.step.tensor import FOLLOWING, LEADING

TABLE = ("we",)
Rows = list[list[int]]


def _added(had: Ints, made: Ints) -> Ints:
    """Returns contributions with others added, -1: none at all."""
    return np.where(made < 0, had, np.maximum(had, 0) + made)


@dataclass(frozen=True)
class Contributions:
    """The contributions of a micro-batch. is_last: of the step's micro-batches."""

    is_last: bool
    rows: GradientRows
    formulas: Sections
    modules: tuple[LinearModules, ExpertModules]

    def entries(
        self, section: str, gradients: dict[str, Ints], begun: Mapping[str, Ints] = MappingProxyType({})
    ) -> tuple[Rows, Rows, Ints]:
        """Returns the entries of gradients before and after the template of a section, and their reductions; counts its
        contributions.

        The one table of tied embeddings has contributions in two templates, and is reduced in the second. begun: for
        that one the contributions before the first.
        """
        rows = self.rows
        before: Rows = []
        after: Rows = []
        reduced = []
        for weight in self._contributed(section):
            had, made = gradients[weight], self.made(section, weight)
            now = gradients[weight] = _added(had, made)
            of_both = rows.of.has_one_table and weight in TABLE
            later = (of_both and section == "head") or weight in self.reduced_later(section)
            if of_both and section == "embedding_backward":
                first = begun[weight]
                before += rows.unreduced(weight, first, np.where(had > first, had - np.maximum(first, 0), -1))
            else:
                before += rows.gradients(weight, had, False)
            after += rows.unreduced(weight, had, made) if later else rows.gradients(weight, now, self.is_last)
            reduced += [] if later else [weight]
        weights = tuple(reduced)
        key = "reductions", weights, self.is_last
        return before, after, rows.kept(key, lambda: [rows.reductions(weights, self.is_last)])[0]

    def _contributed(self, section: str) -> tuple[str, ...]:
        """Returns the parameters to whose gradients a section contributes."""
        of, outside = self.rows.of, {"head": self.rows.of.of_head, "embedding_backward": TABLE}
        if section in outside:
            return outside[section]
        return of.of_kind(LEADING if section == DENSE_BACKWARD else FOLLOWING)

    def reduced_later(self, section: str) -> tuple[str, ...]:
        """Returns the parameters of the head or of layers ("backward") whose gradients are reduced by a template of
        their own (zbench.step.passes.buckets), and not where the section contributes to them."""
        of = self.rows.of
        in_later = {"head": of.reduced_last, "embedding_backward": False}.get(section, of.in_buckets)
        if not in_later or not self.rows.reduces(self.is_last):
            return ()
        tied = TABLE if of.has_one_table else ()
        return tuple(one for one in self._contributed(section) if one not in tied)

    def made(self, section: str, weight: str) -> Ints:
        """Returns the contributions of every GPU to a gradient in a section, -1: none at all."""
        linear, experts = self.modules
        each = self.formulas.contributors[section, f"d{weight}"]
        made = [(experts if of_experts(one) else linear).contributions(one) for one in each]
        return reduce(_added, made)
