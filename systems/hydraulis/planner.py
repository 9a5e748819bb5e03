"""Hydraulis: pipelines of different (tp, pp) side by side, another list of them for every batch.

Short sequences run on single GPUs, long ones where tensor parallelism makes room for them; nothing is cut along the
sequence. zbench.systems.hydraulis.strategies proposes lists of pipelines, hydraulis_dispatch deals sequences to them,
hydraulis_pack makes micro-batches, hydraulis_cost says what all that takes; hydraulis_batching has the published ways
of dealing and packing beside these, and that of its baselines. Optimizer state lies evenly on all ranks
whatever the pipelines, so a change of strategy moves parameters and gradients only (zbench.cost.collective).
Source: Li et al. 2024 (arXiv 2412.07894, SIGMOD 2026), and its code (PKU-DAIR/Hetu, examples/hydraulis).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import ClassVar

import numpy as np

from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.cost.stage import held, refusal
from zbench.describe.arrays import Floats
from zbench.describe.batch import Batch
from zbench.describe.checks import check_boolean, check_choice, check_whole_number, is_whole
from zbench.interfaces.published import Published, PublishedValue
from zbench.passes import reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import local
from zbench.plans.pipelines import Layout, Pipelines
from zbench.plans.plan import Ints, Plan
from zbench.systems.flexsp.cost import group_degrees
from zbench.systems.hydraulis.batching import WAYS, SchemeSequences, place_on_pipelines
from zbench.systems.hydraulis.changes import ChangePrices
from zbench.systems.hydraulis.cost import Schemes, offered_schemes, schemes
from zbench.systems.hydraulis.room import room
from zbench.systems.hydraulis.strategies import STEPS, Strategy, strategies, two_kinds, wider_strategies

GLANCED = 8  # candidates that are tried with a single order, best estimates first; and the best UNIFORM of one scheme
UNIFORM = 3
COMPARED = 3  # of those, how many are tried with all


@dataclass(frozen=True, slots=True, eq=False)
class PlannedStrategy:
    """A strategy with its batch. pipeline, micro: int64 [n], of every sequence. seconds: of the slowest pipeline;
    step_seconds: of the step, with parameters and gradients; change: of what moves before it."""

    copies: Ints
    pipeline: Ints
    micro: Ints
    seconds: float
    step_seconds: float
    change: float = 0.0

    @property
    def price(self) -> float:
        """The seconds that whole steps are compared by."""
        return self.step_seconds + self.change


@dataclass(frozen=True, slots=True)
class Hydraulis:
    """Hydraulis as a system: for every batch a strategy of pipelines, and a dispatch of its sequences to them.
    tp_pp_pairs: pairs (tp, pp) that pipelines may have; None: all that model, cluster and executor can have.
    batching: "search"; "published", the two stages of the public code; "fixed", its dispatch with greedy packs; or
    "first_fit", packs dealt in turn to pipelines of one kind (zbench.systems.hydraulis.batching). pack_tokens: of a
    pack of the last two, at most; None: what a pipeline holds. context_limit: the workload's; with the first two ways
    pack_tokens is nothing else. dispatch_orders: in which sequences are dealt.
    compare_whole_steps: strategies are compared by the whole step and the change from `usual`, as near which strategies
    are near each other, whatever the step before had, and those without narrow pipelines are proposed, too; off: by the
    slowest pipeline, the paper's objective.

    Raises:
        ValueError: dispatch_orders or pack_tokens is not a whole number of at least 1, compare_whole_steps not true or
            false, batching none of these, tp_pp_pairs not a list of pairs that can be, or of several with first_fit,
            or pack_tokens is set where packs have no limit.
    """

    plans_pipelines: ClassVar[bool] = True
    plans_pipelines_alone: ClassVar[bool] = True
    PUBLISHED: ClassVar[Published] = {
        "batching": PublishedValue("published", "lhy101/Hydraulis (4489487e), examples/strategy/dynamic_pulp.py"),
        "compare_whole_steps": PublishedValue(
            False, "arXiv 2412.07894: strategies are compared by the slowest pipeline"
        ),
    }

    cost: Cost
    tp_pp_pairs: Sequence[Sequence[int]] | None = None
    batching: str = "search"
    pack_tokens: int | None = None
    dispatch_orders: int = 50
    compare_whole_steps: bool = True
    context_limit: int | None = None
    objective: Schemes = field(init=False, repr=False)
    prices: ChangePrices = field(init=False, repr=False, compare=False)
    usual: Layout = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_whole_number("system.dispatch_orders", self.dispatch_orders, 1)
        check_whole_number("system.pack_tokens", self.pack_tokens, 1, or_null=True)
        check_choice("system.batching", self.batching, WAYS)
        check_boolean("system.compare_whole_steps", self.compare_whole_steps)
        check_whole_number("system.context_limit", self.context_limit, 1, or_null=True)
        if self.context_limit and self.batching in WAYS[:2] and self.pack_tokens not in (None, self.context_limit):
            raise ValueError(
                f"system.pack_tokens is {self.pack_tokens}; with batching={self.batching} packs are as large as a "
                "pipeline holds: it takes batching=fixed or batching=first_fit beside it"
            )
        shapes = offered_schemes(self.cost) if self.tp_pp_pairs is None else _checked(self.tp_pp_pairs, self.cost)
        if self.tp_pp_pairs is not None and self.batching == "first_fit" and len(shapes) > 1:
            raise ValueError(
                f"system.tp_pp_pairs has {len(shapes)} pairs; with batching=first_fit pipelines are of one kind: "
                "it takes one pair, or null for the fastest kind of every batch"
            )
        object.__setattr__(self, "objective", schemes(self.cost, shapes))
        object.__setattr__(self, "prices", ChangePrices(self.cost))
        object.__setattr__(self, "usual", self._usual())

    def _usual(self) -> Layout:
        """Returns the layout of pipelines of one kind that fill a node, or as much of one as any kind does: what moves
        between two strategies near it moves inside nodes."""
        of, ranks = self.objective, self.cost.cluster.num_ranks
        inside = np.where(of.size <= self.cost.cluster.gpus_per_node, of.size, 0)
        kind = int(np.lexsort((of.tp, inside if inside.any() else -of.size))[-1])
        return _grouped(np.where(np.arange(len(of)) == kind, ranks // of.size, 0), of).layout

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        """Returns as many plans as the pipeline with most micro-batches has; one with fewer is idle in the first
        ones."""
        of, given = self.objective, SchemeSequences.of(batch.lengths, self.objective)
        ranks = self.cost.cluster.num_ranks
        # Strategies, the dynamic programme over (GPUs x length), in units of ranks that keep its table small.
        unit = next(degree for degree in group_degrees(self.cost) if ranks <= STEPS * degree)
        propose = wider_strategies if self.compare_whole_steps else strategies
        every = propose(given.lengths, given.seconds, of, ranks, unit)
        if self.batching == "first_fit":
            every = [one for one in every if (one.copies > 0).sum() == 1]
        # Long sequences: candidates without room for all of them are dropped, then two kinds of pipelines are tried.
        proposed, over = self._roomiest(every, given)
        if over and given.lengths[-1] <= of.alone.max() and self.batching != "first_fit":
            more, without = self._roomiest(two_kinds(given.lengths, given.seconds, of, ranks), given)
            proposed = more if without < over else proposed
        # Dispatch and packing, for the candidates that are left; the best one by the objective stays.
        found = self.best_strategy(proposed, given)
        notes: dict[str, float | str] = {"strategy": _told(found.copies, of), "candidates": len(proposed)}
        notes |= {"objective_seconds": found.seconds, "step_seconds": found.step_seconds}
        notes["change_seconds"] = found.change
        return self._laid(batch, found.copies, found.pipeline[given.arrival], found.micro[given.arrival], notes)

    def _roomiest(self, proposed: list[Strategy], given: SchemeSequences) -> tuple[list[Strategy], int]:
        """Returns the candidates with room for most tokens, and how many tokens of sequences they have no room for."""
        of = self.objective
        over = [room(given.lengths, given.seconds, _pipelines(one.copies, of), of).over for one in proposed]
        least = min(over, default=int(given.lengths.sum()))
        return [one for one, without in zip(proposed, over, strict=True) if without == least], least

    def best_strategy(self, proposed: list[Strategy], given: SchemeSequences) -> PlannedStrategy:
        """Returns the candidate whose slowest pipeline is done first, once sequences are dealt and packed; see
        `whole_step`."""
        one_kind = [one for one in proposed[GLANCED:] if (one.copies > 0).sum() == 1]
        first = [*proposed[:GLANCED], *one_kind[:UNIFORM]]
        # One order of dispatch for each at first, then all orders for the best few.
        tried = [self.assign(one.copies, given, 1) for one in first]
        tried = self._cheapest(tried, COMPARED)
        again = [self.assign(one.copies, given, self.dispatch_orders) for one in tried]
        return self._cheapest([*again, *tried], 1)[0]

    def _cheapest(self, tried: list[PlannedStrategy], most: int) -> list[PlannedStrategy]:
        """Returns the best candidates, at most so many; changes are priced of those alone that may be among them."""
        if not self.compare_whole_steps:
            return sorted(tried, key=lambda one: one.seconds)[:most]
        best: list[PlannedStrategy] = []
        for one in sorted(tried, key=lambda one: one.step_seconds):
            if len(best) == most and best[-1].price <= one.step_seconds:
                break
            change = self.prices.seconds(self.usual, _grouped(one.copies, self.objective).layout)
            best = sorted([*best, replace(one, change=change)], key=lambda one: one.price)[:most]
        return best

    def assign(self, copies: Ints, given: SchemeSequences, trials: int) -> PlannedStrategy:
        """Deals and packs the sequences for `copies` pipelines of each scheme, in the best of `trials` orders."""
        scheme = _pipelines(copies, self.objective)
        found = place_on_pipelines(self.batching, given, scheme, self.objective, trials, self.pack_tokens)
        tokens = np.bincount(found.pipeline, given.lengths, len(scheme)).astype(np.int64)
        end = self._step_seconds(copies, found.each, tokens, found.played)
        return PlannedStrategy(copies, found.pipeline, found.micro, float(found.seconds.max()), end)

    def _step_seconds(self, copies: Ints, each: Floats, tokens: Ints, total: Floats) -> float:
        """Returns the seconds of the whole step with a strategy, without a change: its slowest pipeline, and the
        collectives and optimizer beside it. each: seconds [num_pipelines, micro_batches] of a stage, without what is
        fixed. tokens, total: [num_pipelines], total in seconds with what is fixed and bubbles.
        zbench.simulator.estimate.pipelined does likewise with plans."""
        cost, of = self.cost, self.objective
        scheme = _pipelines(copies, of)
        has = np.flatnonzero(each.any(axis=1))  # pipelines with sequences
        pp, own, ends, busy = of.pp[scheme][has], each[has], total[has], (tokens * of.nic[scheme])[has] / total[has]
        last = own[np.arange(len(own)), own.shape[1] - 1 - (own[:, ::-1] > 0).argmax(axis=1)]
        collectives = Collectives.of(cost, held(_grouped(copies, of), cost))
        return collectives.end_of_pipelines(ends, pp * own[:, 0], pp * last, busy) + cost.optimizer_seconds()

    def _laid(
        self, batch: Batch, copies: Ints, pipeline: Ints, micro: Ints, notes: dict[str, float | str]
    ) -> tuple[Plan, ...]:
        scheme, pipelines = _pipelines(copies, self.objective), _grouped(copies, self.objective)
        lead = pipelines.lead
        number = np.zeros(len(scheme), np.int64)
        np.maximum.at(number, pipeline, micro + 1)
        turn = micro + number.max() - number[pipeline]  # all run the last one: its backward hides the reduction
        plans = []
        for t in range(int(number.max())):
            seqs = np.flatnonzero(turn == t)
            builder = Builder(
                batch.lengths[seqs],
                self.cost.cluster.num_ranks,
                self.cost.model.num_heads,
                self.cost.model.mask,
                sequences=seqs,
            )
            local(builder, np.arange(len(seqs), dtype=np.int64), lead[pipeline[seqs]])
            plan = reverse(builder.build(), "keep").with_(notes=notes)
            plans.append(plan.with_(pipelines=pipelines) if self.cost.pipelines else plan)
        return tuple(plans)


def _pipelines(copies: Ints, of: Schemes) -> Ints:
    """Returns the scheme of every pipeline, by falling tp: each then begins where a stage of its kind may."""
    index = np.lexsort((-of.pp, -of.tp))
    return np.repeat(index, copies[index])


def _grouped(copies: Ints, of: Schemes) -> Pipelines:
    """Returns the strategy's pipelines, laid on ranks."""
    scheme = _pipelines(copies, of)
    size = of.size[scheme]
    return Pipelines(np.cumsum(size) - size, of.tp[scheme], of.pp[scheme])


def _told(copies: Ints, of: Schemes) -> str:
    """Describes a strategy in words."""
    index = np.lexsort((-of.pp, -of.tp))
    return ", ".join(f"{copies[k]} x (tp {of.tp[k]}, pp {of.pp[k]})" for k in index.tolist() if copies[k])


def _checked(given: object, cost: Cost) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for pair in given if isinstance(given, Sequence) and not isinstance(given, str) else [given]:
        numbers = list(pair) if isinstance(pair, Sequence) and not isinstance(pair, str) else []
        if len(numbers) != 2 or not all(is_whole(number) for number in numbers):
            raise ValueError(f"system.tp_pp_pairs has {pair!r}; it takes a list of pairs [tp, pp], as in [[8,1],[1,1]]")
        reason = refusal(numbers[0], numbers[1], cost)
        if not reason and not cost.pipelines and numbers != [1, 1]:
            reason = (
                "only executor=simulated and torch with sharding.window=1, sharding.gradient_bucket=layer, "
                "sharding.collectives=flat, no sharding.degrees, "
                "parallel=none and a model without experts, have pipelines that a planner chooses; others take [[1,1]]"
            )
        if reason:
            raise ValueError(f"system.tp_pp_pairs has {numbers}; {reason}")
        found.append((numbers[0], numbers[1]))
    if not found:
        raise ValueError("system.tp_pp_pairs is empty; it takes at least one pair [tp, pp]")
    tps = sorted({tp for tp, _ in found})
    for small, large in pairwise(tps):
        if large % small:
            raise ValueError(
                f"system.tp_pp_pairs has tp {small} and {large}; the smaller one has to divide the larger one"
            )
    return list(dict.fromkeys(found))
