"""Combinations of parallelism that steps are executed with."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zbench.correctness.steps.cases import StepCase
from zbench.correctness.steps.choices import (
    AND_STATE,
    ATTENTION,
    CHOICES,
    CHOSEN_TOGETHER,
    CUT_FOR_HOSTS,
    DEGREES,
    DENSE_FIRST,
    EVEN,
    EXCHANGES,
    EXPERT_CHUNKS,
    EXPERTS,
    GATES,
    HOSTS,
    KEPT,
    LAID_OUT,
    LENGTHS,
    MASKS,
    MODEL,
    NODE,
    OF_NODES,
    OF_SEVERAL,
    OVER_NODES,
    PLANNED,
    ROUTING,
    SHARES,
    WITH_SEATS,
)
from zbench.correctness.steps.covering import PossibleCombinations
from zbench.cost.cost import Cost
from zbench.describe.arrays import Flags, Ints
from zbench.describe.cluster import Cluster
from zbench.describe.device import Device
from zbench.describe.expert_schedule import DRAWN, EXPERT_CHOICE
from zbench.describe.model import SOFTMAX_ALL, Model
from zbench.describe.overlap import LAYER, StepOverlap
from zbench.passes.homes import with_attention_homes, with_even_homes
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
from zbench.systems.common.scattered import FULL, Pieces, scatter


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
    between these; what rests in host memory between steps; by what routers make shares of their logits; where tokens
    live.
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
    gate: str = SOFTMAX_ALL
    homes: str = PLANNED

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
            degrees += f" {self.gate}" if self.gate != SOFTMAX_ALL else ""
            degrees += f" experts {self.expert_chunks}" if self.expert_chunks != "at_once" else ""
        exchange += f" {self.exchanges}" if self.exchanges != "whole" else ""
        exchange += (" two levels" if self.levels > 1 else "") + (" tied" if self.head == "tied" else "")
        exchange += f" chunks of {self.chunk_tokens}" if self.chunk_tokens else ""
        exchange += f" {self.hosts} on hosts" if self.hosts != "nothing" else ""
        exchange += f" homes {self.homes}" if self.homes != PLANNED else ""
        return (
            f"{degrees}{exchange} zero {self.zero}, recompute {self.recompute}, {self.micro_batches} x {self.lengths}, "
            f"{self.backward}"
        )

    def can_be(self, ranks: int) -> bool:
        """Returns whether it can be on so many GPUs: no more than these, heads exchanged among a ring's, experts held
        by a stage's, several nodes in a stage where collectives have two levels, exchanges beside matmuls in groups of
        several GPUs, degrees of pairs of a stage's, with two levels where a node has several groups and a run of them
        several nodes, chunks of tokens where no seats are of all of a GPU's tokens, chunks that go to experts where
        these are on several GPUs, too, on hosts what one GPU has and updates, gates where there are experts, of all of
        them where these choose tokens, and other homes where there are several ranks, or, where attention is, several
        of a ring that attend with whole heads."""
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
            and (self.chunk_tokens == 0 or self.routing not in WITH_SEATS)
            and (self.expert_chunks == "at_once" or (experts > 1 and self.routing not in WITH_SEATS))
            and self.zero in CUT_FOR_HOSTS[self.hosts]
            and (self.gate == SOFTMAX_ALL or experts > 0)
            and (ROUTING[self.routing][1].routing != EXPERT_CHOICE or GATES[self.gate]["gate"] == SOFTMAX_ALL)
            and (self.homes != EVEN or groups > 1)
            and (self.homes != ATTENTION or self.context_parallel > self.heads_exchanged == 1)
        )

    def case(self, seed: int) -> StepCase:
        """Returns the step to execute, with words drawn by a seed."""
        plans = [self._plan(number) for number in range(self.micro_batches)]
        shared, how = ROUTING[self.routing]
        model = replace(EXPERTS, shared_experts=shared, **GATES[self.gate]) if self.expert_parallel else MODEL
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
        mode = next(mode for mode in MODES if mode == self.backward)
        if self.homes == ATTENTION:
            return with_attention_homes(reverse(_moved_away(builder, groups), mode))
        ulysses_ring(builder, every, every % self.data_parallel, groups)
        plan = reverse(builder.build(), mode)
        return plan if self.homes == PLANNED else with_even_homes(plan, _cost(ranks), tolerance=0)


def _moved_away(builder: Builder, groups: Ints) -> Plan:
    """Returns a plan, forward only, of sequences on a rank each, of which another one attends with the queries of the
    first half. groups: the ranks of every data-parallel group, [groups, ranks, 1]."""
    size = builder.lengths
    count, ring = len(size), groups.shape[1]
    edges = np.stack([0 * size, size // 2, size], axis=1)
    seq, half = np.repeat(np.arange(count), 2), np.tile([1, 0], count)
    mine = groups[seq % len(groups), :, 0]
    home, worker = (np.take_along_axis(mine, at[:, None] % ring, axis=1)[:, 0] for at in (seq, seq + half))
    start, stop = edges[:, :2].reshape(-1), edges[:, 1:].reshape(-1)
    some = stop > start
    scatter(builder, Pieces(*(column[some] for column in (seq, start, stop, home, worker))), FULL, 1)
    return builder.build()


def _cost(ranks: int) -> Cost:
    """Returns what moving a token costs, by which homes are made even: alike between all GPUs."""
    device = Device("any", 1e12, 1e9, 1e12, 1e11, 1e12, 1e12, 1e12, 1e-6, 1e-6)
    return Cost(Cluster("one node", 1, ranks, 1, 1e9, 1.0, 0.0, 1e9, 1.0, 0.0, device), MODEL)


def with_hosts(step: Step, model: Model, kept: tuple[str, str], sent: Sequence[Flags] = ()) -> Step:
    """Returns a step with what layers keep, and what rests between steps, where it is. kept: of KEPT and of HOSTS. What
    they keep is on hosts of a layer or two of each stage, of every micro-batch other ones, with NODE GPUs a node. sent:
    of each micro-batch the parts of t of which it is."""
    offload, resting = KEPT[kept[0]][1], HOSTS[kept[1]]
    model = replace(model, offload=AND_STATE[offload] if resting else offload, **resting)
    count = len(sent) or len(step.layouts)
    return with_host_memory(step, model, NODE, [2 - number % 2 for number in range(count)], sent)


def every_combination(ranks: int) -> PossibleCombinations[StepCombination]:
    """Returns all combinations that can be on so many GPUs."""
    return PossibleCombinations.where(
        lambda *chosen: _combination(*chosen).can_be(ranks), CHOICES, LAID_OUT, CHOSEN_TOGETHER, _combination
    )


def _combination(*chosen: Any) -> StepCombination:
    """Returns the combination of choices in the order of CHOICES."""
    return StepCombination(**dict(zip(CHOICES, chosen, strict=True)))
