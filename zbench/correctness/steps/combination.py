"""Combinations of parallelism that steps are executed with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from zbench.correctness.steps.cases import StepCase
from zbench.correctness.steps.choices import (
    AND_STATE,
    CHOICES,
    CUT_FOR_HOSTS,
    DEGREES,
    DENSE_FIRST,
    EXCHANGES,
    EXPERT_CHUNKS,
    EXPERTS,
    HOSTS,
    KEPT,
    LAID_OUT,
    LAYERS,
    LENGTHS,
    MASKS,
    MODEL,
    NODE,
    OF_NODES,
    OF_SEVERAL,
    OVER_NODES,
    ROUTING,
    SHARES,
)
from zbench.describe.arrays import Flags, Ints
from zbench.describe.expert_schedule import (
    DRAWN,
)
from zbench.describe.model import Model
from zbench.describe.overlap import LAYER, StepOverlap
from zbench.passes.reverse import MODES, reverse
from zbench.plans.build import Builder
from zbench.plans.patterns import ulysses_ring
from zbench.plans.plan import Plan
from zbench.step.passes.build import whole_step
from zbench.step.passes.memory.host_memory import with_host_memory
from zbench.step.passes.own_plans import parts_of_layouts
from zbench.step.passes.parameters.zero import STAGES
from zbench.step.passes.two_levels import in_two_levels
from zbench.step.template import Step


@dataclass(frozen=True, slots=True)
class StepCombination:
    """A combination of choices.

    Degrees, of which `heads_exchanged` is how many GPUs of a ring exchange heads, and `expert_parallel` how many groups
    of `expert_tensor_parallel` GPUs hold all experts together, 0: there are none; how tokens choose experts, and what
    these have room for; stages of a pipeline, of uneven layers; levels of collectives, two of them over nodes of NODE
    GPUs each; how exchanges of tensor-parallel groups go beside matmuls; whether the head has parameters of its own or
    the embedding's; ZeRO's stage, or degrees, two of them with transfers in fewer bits; tokens that the feed-forward
    and the loss are computed for at a time, 0: all; what layers keep, and where, micro-batches, what a backward does
    with keys, and lengths of sequences, some under a window; chunks in which tokens go to experts, and gradients
    between these; what rests in host memory between steps.
    """

    tensor_parallel: int
    context_parallel: int
    data_parallel: int
    heads_exchanged: int
    expert_parallel: int
    expert_tensor_parallel: int
    routing: str
    stages: int
    levels: int
    exchanges: str
    head: str
    zero: str
    chunk_tokens: int
    recompute: str
    micro_batches: int
    backward: str
    lengths: str
    expert_chunks: str = "at_once"
    hosts: str = "nothing"

    @property
    def num_gpus(self) -> int:
        """The GPUs that it takes."""
        return self.tensor_parallel * self.context_parallel * self.data_parallel * self.stages

    def __str__(self) -> str:
        degrees = f"tp{self.tensor_parallel} cp{self.context_parallel} dp{self.data_parallel} pp{self.stages}"
        exchange = f" heads/{self.heads_exchanged}" if self.heads_exchanged > 1 else ""
        if self.expert_parallel:
            cut = f" etp{self.expert_tensor_parallel}" if self.expert_tensor_parallel > 1 else ""
            degrees += f" ep{self.expert_parallel}{cut} {self.routing}"
            degrees += f" experts {self.expert_chunks}" if self.expert_chunks != "at_once" else ""
        exchange += f" {self.exchanges}" if self.exchanges != "whole" else ""
        exchange += (" two levels" if self.levels > 1 else "") + (" tied" if self.head == "tied" else "")
        exchange += f" chunks of {self.chunk_tokens}" if self.chunk_tokens else ""
        exchange += f" {self.hosts} on hosts" if self.hosts != "nothing" else ""
        return (
            f"{degrees}{exchange} zero {self.zero}, recompute {self.recompute}, {self.micro_batches} x {self.lengths}, "
            f"{self.backward}"
        )

    def can_be(self, ranks: int) -> bool:
        """Returns whether it can be on so many GPUs: no more than these, heads exchanged among a ring's, experts held
        by a stage's, several nodes in a stage where collectives have two levels, exchanges beside matmuls in groups of
        several GPUs, degrees of pairs of a stage's, with two levels where a node has several groups and a run of them
        several nodes, chunks of tokens where no seats are of all of a GPU's tokens, chunks that go to experts where
        these are on several GPUs, too, and gradients between their messages with collectives in one level, and on hosts
        what one GPU has and updates."""
        of_stage, experts = self.num_gpus // self.stages, self.expert_parallel * self.expert_tensor_parallel
        groups = of_stage // self.tensor_parallel
        return (
            self.num_gpus <= ranks
            and (self.levels == 1 or (of_stage > NODE and of_stage % NODE == 0))
            and self.context_parallel % self.heads_exchanged == 0
            and (of_stage % experts == 0 if experts else self.routing == "even")
            and (experts > (NODE if self.routing in OF_NODES else 1) or self.routing not in OF_SEVERAL)
            and (self.expert_tensor_parallel == 1 or (experts > 0 and self.routing != "2dh"))
            and (self.exchanges == "whole" or self.tensor_parallel > 1)
            and (self.zero in STAGES or groups % 2 == 0)
            and (self.levels == 1 or self.zero not in DEGREES or (groups == of_stage and self.zero in OVER_NODES))
            and (self.chunk_tokens == 0 or self.routing != "router")
            and (self.expert_chunks == "at_once" or (experts > 1 and self.routing != "router"))
            and (EXPERT_CHUNKS[self.expert_chunks].gradients is None or self.levels == 1)
            and self.zero in CUT_FOR_HOSTS[self.hosts]
        )

    def case(self, seed: int) -> StepCase:
        """Returns the step to execute, with words drawn by a seed."""
        plans = [self._plan(number) for number in range(self.micro_batches)]
        shared, how = ROUTING[self.routing]
        model = replace(EXPERTS, shared_experts=shared) if self.expert_parallel else MODEL
        model = replace(model, dense_layers=1, dense_ffn_hidden=10) if self.routing == DENSE_FIRST else model
        model = replace(model, tied_embeddings=self.head == "tied", mask=MASKS[self.lengths])
        if self.chunk_tokens:
            model = replace(model, mlp_chunk_tokens=self.chunk_tokens, loss_chunk_tokens=self.chunk_tokens + 1)
        groups, cut = max(self.expert_parallel, 1), self.expert_tensor_parallel
        gathered = cut > 1 and (groups > 1 or how.routing != DRAWN)
        node = how.node or (cut if gathered else 0)
        experts = replace(how, degree=groups * cut, seed=seed, node=node, tensor_parallel=cut)
        degree, exchanges = self.tensor_parallel, EXCHANGES[self.exchanges]
        shares = tuple(self._shares(number) for number in range(self.micro_batches))
        overlap = StepOverlap(1, LAYER, exchanges, EXPERT_CHUNKS[self.expert_chunks], shares=shares)
        slices = overlap.token_slices
        zero = DEGREES.get(self.zero, self.zero)
        step = whole_step(model, plans, degree, zero, overlap, KEPT[self.recompute][0], experts, self.stages)
        parts = parts_of_layouts(plans, model, degree, experts, slices, shares)
        sent = [one.sent for one in parts]
        kept = self.recompute, self.hosts
        step = with_hosts(in_two_levels(step, NODE) if self.levels > 1 else step, model, kept, sent)
        return StepCase.of(step, model, plans, degree, seed, experts, slices, shares)

    def _shares(self, number: int) -> tuple[float, ...]:
        """Returns of each sequence of a micro-batch the share of tokens of which something is on hosts, if anything is;
        (): of all, in every second one, and where routers choose, as all rows of a GPU are one part then."""
        chosen = self.expert_parallel > 0 and ROUTING[self.routing][1].routing != DRAWN
        if number % 2 == 0 or chosen or KEPT[self.recompute][1] == "none":
            return ()
        return tuple(SHARES[at % len(SHARES)] for at in range(len(self._lengths(number))))

    def _lengths(self, number: int) -> Ints:
        """Returns the lengths of a micro-batch, one sequence fewer in each than in the one before, then all again."""
        every = LENGTHS[self.lengths]
        return np.array(every[number % len(every) :], np.int64)

    def _plan(self, number: int) -> Plan:
        """Returns the plan of a micro-batch: data-parallel groups, in each a ring of groups that exchange heads."""
        lengths = self._lengths(number)
        before = sum(len(self._lengths(other)) for other in range(number))
        every = np.arange(len(lengths))
        ranks = self.data_parallel * self.context_parallel
        heads = MODEL.num_heads // self.tensor_parallel
        builder = Builder(lengths, ranks, heads, MASKS[self.lengths], sequences=before + every)
        groups = np.arange(ranks).reshape(self.data_parallel, -1, self.heads_exchanged)
        ulysses_ring(builder, every, every % self.data_parallel, groups)
        mode = next(mode for mode in MODES if mode == self.backward)
        return reverse(builder.build(), mode)


def with_hosts(step: Step, model: Model, kept: tuple[str, str], sent: Sequence[Flags] = ()) -> Step:
    """Returns a step with what layers keep, and what rests between steps, where it is. kept: of KEPT and of HOSTS. What
    they keep is on hosts of a layer or two of each stage, of every micro-batch other ones, with NODE GPUs a node. sent:
    of each micro-batch the parts of t of which it is."""
    offload, resting = KEPT[kept[0]][1], HOSTS[kept[1]]
    model = replace(model, offload=AND_STATE[offload] if resting else offload, **resting)
    count = len(sent) or len(step.layouts)
    return with_host_memory(step, model, NODE, [2 - number % 2 for number in range(count)], sent)


@dataclass(frozen=True)
class StepCombinations(Sequence[StepCombination]):
    """Combinations of each of some first choices with each of some others, made when they are asked for: on four GPUs
    there are more than a million."""

    first: list[tuple[Any, ...]]
    others: list[tuple[Any, ...]]

    def __len__(self) -> int:
        return len(self.first) * len(self.others)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return [self[one] for one in range(*at.indices(len(self)))]
        return _combination(*self.first[at // len(self.others)], *self.others[at % len(self.others)])

    def numbers(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns the numbers of the first choices and of the others, each among those of CHOICES, [choices, ways]."""
        values = list(CHOICES.values())
        first, others = (
            np.array([[of.index(one) for of, one in zip(some, row, strict=True)] for row in rows], np.int8).T
            for some, rows in ((values[:LAID_OUT], self.first), (values[LAID_OUT:], self.others))
        )
        return first, others


def every_combination(ranks: int) -> StepCombinations:
    """Returns all combinations that can be on so many GPUs."""
    values = list(CHOICES.values())
    others = list(product(*values[LAID_OUT:]))
    ways = list(product(*values[LAYERS:LAID_OUT]))  # the first of them is possible wherever another is
    able = [
        (*degrees, *way)
        for degrees in product(*values[:LAYERS])
        if _combination(*degrees, *ways[0], *others[0]).can_be(ranks)
        for way in ways
        if _combination(*degrees, *way, *others[0]).can_be(ranks)
    ]
    return StepCombinations(able, others)


def _combination(*chosen: Any) -> StepCombination:
    """Returns the combination of choices in the order of CHOICES."""
    return StepCombination(**dict(zip(CHOICES, chosen, strict=True)))
