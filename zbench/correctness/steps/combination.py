"""Combinations of parallelism that steps are executed with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Literal

import numpy as np

from zbench.correctness.steps.cases import StepCase
from zbench.describe.arrays import Flags, Ints
from zbench.describe.degrees import WORLD, ShardDegrees, TransferBits
from zbench.describe.exchanges import (
    AREA,
    ASYNC_TP,
    COMMFUSE,
    DIRECT,
    QUERY_SPLIT,
    RING,
    SLICED,
    WHOLE,
    ExchangeOverlap,
)
from zbench.describe.expert_schedule import (
    AFTER_CHUNKS,
    DRAWN,
    TOGETHER_AT_ONCE,
    TOKEN_CHOICE,
    ExpertChunks,
    GradientPieces,
)
from zbench.describe.mask import CAUSAL, Mask
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
from zbench.step.passes.recompute import LEVELS
from zbench.step.passes.routing import ExpertParallel
from zbench.step.passes.two_levels import in_two_levels
from zbench.step.template import Step

# Small, with two queries a kv head, and all numbers of eight bytes, as they are computed with.
MODEL = Model("mini", 3, 8, 4, 2, 4, 12, 18, element_bytes=8, lse_bytes=8)
NODE = 2  # GPUs, where collectives or what goes to experts have two levels
EXPERTS = replace(MODEL, ffn_hidden=6, num_experts=4, experts_per_token=2)
# How tokens choose experts: alike, all the same two, alike beside two that all of them pass; unevenly, in all layers
# but the first, which is dense; of experts with less room than is wanted, whose rows are as many as tokens, or all that
# they have room for; of experts on several nodes, to which a row goes once, or by 2DH; by each layer's router while the
# step runs, of seats or of as many rows as it chooses.
ROUTING: Mapping[str, tuple[int, ExpertParallel]] = {
    "even": (0, ExpertParallel()),
    "skewed": (0, ExpertParallel(skew=50.0)),
    "shared": (2, ExpertParallel()),
    "dense_first": (1, ExpertParallel(skew=1.0)),
    "dropped": (0, ExpertParallel(skew=1.0, capacity=0.5)),
    "padded": (1, ExpertParallel(capacity=1.25, padded=True)),
    "two_level": (1, ExpertParallel(skew=1.0, capacity=2.0, node=NODE)),
    "2dh": (1, ExpertParallel(skew=1.0, capacity=1.25, padded=True, node=NODE, inside_first=True)),
    "router": (1, ExpertParallel(capacity=0.75, padded=True, routing=TOKEN_CHOICE)),
    "counted": (0, ExpertParallel(routing=TOKEN_CHOICE)),
}
# Those that are tried where experts are on several GPUs.
OF_SEVERAL = ("dropped", "padded", "two_level", "2dh", "router", "counted")
OF_NODES = ("two_level", "2dh")  # of these, where they are on several nodes
DENSE_FIRST = "dense_first"
# How tokens go to experts: all at once; in chunks, with experts' gradients after all of these; with a layer's gradients
# between messages of the next one, each piece by itself as lina has them, or those of a place together (fsmoe, clock).
EXPERT_CHUNKS: Mapping[str, ExpertChunks] = {
    "at_once": TOGETHER_AT_ONCE,
    "chunks": ExpertChunks(3, 2, AFTER_CHUNKS),
    "pieces": ExpertChunks(2, 2, gradients=GradientPieces(4, 1, 2)),
    "shares": ExpertChunks(1, 3, gradients=GradientPieces(3, 1, 1, apart=False)),
}
# Of tensor-parallel groups; slices so many that some have no token.
EXCHANGES: Mapping[str, ExchangeOverlap] = {
    "whole": WHOLE,
    "sliced": ExchangeOverlap(SLICED, 4),
    "async_tp": ExchangeOverlap(ASYNC_TP, 1, DIRECT),
    "commfuse": ExchangeOverlap(COMMFUSE, 2, RING),
    "direct": ExchangeOverlap(COMMFUSE, 1, DIRECT),
    "query_split": ExchangeOverlap(QUERY_SPLIT, 2, RING),
    "by_area": ExchangeOverlap(QUERY_SPLIT, 1, DIRECT, AREA),
}
# In place of a stage, of an even number of data- and context-parallel ranks, of which a pair counts as a node.
DEGREES: Mapping[str, ShardDegrees] = {
    "pairs": ShardDegrees(2, 2, 2, 2),
    "hpz": ShardDegrees(WORLD, 2, WORLD, WORLD),
    "zeropp": ShardDegrees(WORLD, 2, WORLD, WORLD, WORLD, 2, TransferBits(8, 8, 4, block=16)),
    "levels": ShardDegrees(2, 1, 2, WORLD, bits=TransferBits(gradients=4, updates=8, block=7)),
}
OVER_NODES = ("hpz", "zeropp")  # of these, some of whose collectives are among several GPUs of several nodes
# Of the second some GPUs have no token; the third is under a window longer than pieces of a ring.
LENGTHS = {"uneven": (23, 1, 7, 2, 5, 3), "short": (1, 2), "windowed": (23, 1, 7, 2, 5, 3)}
MASKS = {name: Mask(window=5) if name == "windowed" else CAUSAL for name in LENGTHS}
# What layers keep: a level of recomputation, and what of it is in host memory (zbench.describe.model.Model.offload).
KEPT: Mapping[str, tuple[str, Literal["none", "inputs", "activations"]]] = {
    **{level: (level, "none") for level in LEVELS},
    "full, inputs on hosts": ("full", "inputs"),
    "none, activations on hosts": ("none", "activations"),
}
SHARES = (0.6, 0.0, 0.3, 1.0)  # of sequences' tokens, of which something is on hosts where it is of some
CHOICES: Mapping[str, tuple[Any, ...]] = {  # whole numbers or words, by the names of StepCombination's fields
    "tensor_parallel": (1, 2),
    "context_parallel": (1, 2, 4),
    "data_parallel": (1, 2),
    "heads_exchanged": (1, 2),
    "expert_parallel": (0, 1, 2, 4),
    "expert_tensor_parallel": (1, 2),
    "routing": tuple(ROUTING),
    "stages": (1, 2, 3),
    "levels": (1, 2),
    "exchanges": tuple(EXCHANGES),
    "head": ("own", "tied"),
    "zero": (*STAGES, *DEGREES),
    "chunk_tokens": (0, 3),
    "expert_chunks": tuple(EXPERT_CHUNKS),
    "recompute": tuple(KEPT),
    "micro_batches": (1, 2, 3),
    "backward": MODES,
    "lengths": tuple(LENGTHS),
}

# The choices before it say what GPUs it takes, others can be with all of these.
LAID_OUT = list(CHOICES).index("recompute")
LAYERS = list(CHOICES).index("exchanges")  # from here to there: how layers are computed on these GPUs


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
    between these.
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
        return (
            f"{degrees}{exchange} zero {self.zero}, recompute {self.recompute}, {self.micro_batches} x {self.lengths}, "
            f"{self.backward}"
        )

    def can_be(self, ranks: int) -> bool:
        """Returns whether it can be on so many GPUs: no more than these, heads exchanged among a ring's, experts held
        by a stage's, several nodes in a stage where collectives have two levels, exchanges beside matmuls in groups of
        several GPUs, degrees of pairs of a stage's, with two levels where a node has several groups and a run of them
        several nodes, chunks of tokens where no seats are of all of a GPU's tokens, chunks that go to experts where
        these are on several GPUs, too, and gradients between their messages with collectives in one level."""
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
        step = with_hosts(in_two_levels(step, NODE) if self.levels > 1 else step, model, self.recompute, sent)
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


def with_hosts(step: Step, model: Model, kept: str, sent: Sequence[Flags] = ()) -> Step:
    """Returns a step with what layers keep where it is. kept: of KEPT. On hosts it is of a layer or two of each stage,
    of every micro-batch other ones, with NODE GPUs a node. sent: of each micro-batch the parts of t of which it is."""
    model = replace(model, offload=KEPT[kept][1])
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
