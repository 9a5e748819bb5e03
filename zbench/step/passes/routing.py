"""Draws which experts tokens go to, and lays experts out on GPUs (expert parallelism).

Experts are held by groups of consecutive GPUs: of `degree` GPUs each has as many experts, and tokens stay in the group
of their home. A token goes once to a GPU, whatever number of experts it has there (as DeepEP's dispatch does). What a
token chooses is a function of the batch and of its place in its sequence, so it is the same whatever a system does with
it. One draw holds for all layers: that layers route alike is a simplification, and no measured fact.

How popular experts are is a law with one number (zbench.describe.routing.popularity).
"""

from dataclasses import dataclass, replace
from functools import cached_property
from math import lcm

import numpy as np

from zbench.describe.arrays import Floats, Ints
from zbench.describe.batch import Batch
from zbench.describe.expert_schedule import (
    DRAWN,
    EXPERT_CHOICE,
    FLAT,
    TWO_DIMENSIONAL,
    TWO_LEVEL,
    ZIPF,
    ExpertChunks,
    Experts,
)
from zbench.describe.model import SOFTMAX_ALL, WHOLE, Model
from zbench.describe.routing.popularity import Popularity
from zbench.describe.routing.room import expert_room
from zbench.plans.plan import Plan
from zbench.step.expert_cut import ExpertCut
from zbench.step.index import Index, PartMap, Relation
from zbench.step.passes.router.capacity import padding_rows, with_room
from zbench.step.passes.router.relays import Relays


@dataclass(frozen=True)
class ExpertParallel:
    """A layout of experts and a rule by which they are chosen.

    degree: GPUs that hold all experts together. tensor_parallel: of these the ones that follow one another and have the
    same experts, each some of their columns; 1: experts are whole. seed, step: of the batch, which the draw depends on.
    popularity, skew, drift: as zbench.describe.routing.popularity.Popularity has them. node: GPUs of a node to which a
    row goes once, from where it goes to those of its experts; 0: rows go to each GPU. capacity, padded: of an expert,
    as zbench.describe.expert_schedule.Experts has them; None: as many tokens as choose it. routing: DRAWN here, or
    chosen by the router while the step runs (zbench.step.passes.router), of ROUTINGS.
    inside_first: whether rows go by 2DH: first to the GPU of their node that has their experts' GPU's number in it.
    """

    degree: int = 1
    seed: int = 0
    skew: float = 0.0
    step: int = 0
    popularity: str = ZIPF
    drift: int = 1
    capacity: float | None = None
    padded: bool = False
    node: int = 0
    routing: str = DRAWN
    tensor_parallel: int = 1
    chunks: int = 1
    inside_first: bool = False

    @staticmethod
    def chosen(degree: int, tensor_parallel: int, experts: Experts, gpus_per_node: int) -> "ExpertParallel":
        """Returns the layout and the rule of a run's choices. degree: of expert parallelism, in groups of
        `tensor_parallel` GPUs.

        Inside a node there is one level; but where experts are cut, rows go to one of the GPUs that have their experts,
        and from there to the others, as Megatron-Core's MoEAlltoAllTokenDispatcher has it: an all-to-all and a gather,
        and back a reduction and an all-to-all (github NVIDIA/Megatron-LM,
        megatron/core/transformer/moe/token_dispatcher.py at 0014f137, read).
        """
        gpus = degree * tensor_parallel
        relayed = experts.dispatch != FLAT and gpus > gpus_per_node
        routed = experts.routing != DRAWN  # seats are of a group, though it be the only one
        gathered = tensor_parallel if tensor_parallel > 1 and (routed or gpus > tensor_parallel) else 0
        return ExpertParallel(
            gpus,
            skew=experts.skew,
            popularity=experts.popularity,
            drift=experts.drift,
            capacity=None if isinstance(experts.capacity, str) else experts.capacity,
            padded=experts.padded,
            node=gpus_per_node if relayed else gathered,
            routing=experts.routing,
            tensor_parallel=tensor_parallel,
            inside_first=relayed and experts.dispatch == TWO_DIMENSIONAL,
        )

    @property
    def relays(self) -> Relays:
        """The relays of rows that go in two steps."""
        return Relays(self.degree, self.node, self.inside_first)

    def cut(self, num_experts: int) -> ExpertCut:
        """Returns the cut of so many experts."""
        return ExpertCut(num_experts, self.degree, self.tensor_parallel)

    @property
    def counted(self) -> bool:
        """Whether a router chooses how many rows go to experts, and not only which ones."""
        return self.routing != DRAWN and not self.padded

    def of(self, batch: Batch) -> "ExpertParallel":
        """Returns the same layout and rule for a batch's draw."""
        return replace(self, seed=batch.seed, step=batch.step)

    def in_chunks(self, chunks: ExpertChunks) -> "ExpertParallel":
        """Returns the same where tokens go to experts in chunks: those whose rows are counted have their own numbers.

        Raises:
            ValueError: rows are of seats that all of a GPU's tokens have together.
        """
        count = lcm(chunks.forward, chunks.backward)
        if count > 1 and self.routing != DRAWN and (self.padded or self.capacity is not None):
            raise ValueError(
                f"tokens go to experts in {count} chunks, and the routing is {self.routing} with a capacity of "
                f"{self.capacity}, which is of all of a GPU's tokens at once; it takes one chunk, or no capacity"
            )
        return replace(self, chunks=count) if self.counted else self

    def check(self, model: Model, num_gpus: int) -> None:
        """Raises ValueError if a model's experts cannot be laid out so."""
        runs, cut = self.degree // self.tensor_parallel, self.tensor_parallel
        if runs != 1 and model.num_experts == 1:
            raise ValueError(f"parallel.expert_parallel is {runs}; {model.name} has no experts, so it takes 1")
        if runs < 1 or model.num_experts % runs:
            raise ValueError(
                f"parallel.expert_parallel is {runs}; it has to divide model.num_experts={model.num_experts}"
            )
        if cut > 1:
            self._check_cut(model)
        gpus = f"parallel.expert_parallel is {runs}"
        if cut > 1:
            gpus += f" and parallel.expert_tensor_parallel {cut}, {self.degree} GPUs for all experts"
        if self.node and self.degree % self.node:
            raise ValueError(
                f"{gpus}; with experts.dispatch={self._dispatch} experts are held by "
                f"whole nodes, so it has to be a multiple of their {self.node} GPUs"
            )
        if num_gpus % self.degree:
            raise ValueError(f"{gpus}; it has to divide {num_gpus} GPUs")
        if self.routing != DRAWN and model.num_experts == 1:
            raise ValueError(f"experts.routing is {self.routing}; {model.name} has no experts, so it takes {DRAWN}")
        if self.routing == EXPERT_CHOICE and model.gate != SOFTMAX_ALL:
            raise ValueError(
                f"model.gate is {model.gate}; with experts.routing={EXPERT_CHOICE} an expert compares tokens by their "
                f"shares of all experts, so it takes {SOFTMAX_ALL}"
            )
        if self.routing == EXPERT_CHOICE and (self.capacity is None or not self.padded):
            raise ValueError(
                f"the routing is {self.routing} with a capacity of {self.capacity}, padded {self.padded}; it takes a "
                "number and True"
            )
        if self.routing != DRAWN and self.capacity is None and self.padded:
            raise ValueError(f"the routing is {self.routing}, padded, with no capacity; it takes a number")
        if not 0 <= self.skew < 100:
            raise ValueError(f"the skew of the routing is {self.skew}; it takes a number from 0 to 100")
        if self.routing != DRAWN and self.capacity is not None and model.mlp_chunk_tokens != WHOLE:
            raise ValueError(
                f"memory.mlp_chunk_tokens is {model.mlp_chunk_tokens}, experts.routing {self.routing} and "
                f"experts.capacity {self.capacity}; which tokens an expert has room for is then known when routers "
                f"have seen all of a GPU's tokens, so memory.mlp_chunk_tokens takes {WHOLE}"
            )

    @property
    def _dispatch(self) -> str:
        """The choice by which rows go to relays."""
        return TWO_DIMENSIONAL if self.inside_first else TWO_LEVEL

    def _check_cut(self, model: Model) -> None:
        """Raises ValueError if a model's experts cannot be cut over GPUs."""
        told = f"parallel.expert_tensor_parallel is {self.tensor_parallel}"
        if model.num_experts == 1:
            raise ValueError(f"{told}; {model.name} has no experts, so it takes 1")
        if model.ffn_hidden % self.tensor_parallel:
            raise ValueError(f"{told}; it has to divide model.ffn_hidden={model.ffn_hidden}")
        if self.inside_first:
            raise ValueError(
                f"{told}; with experts.dispatch={TWO_DIMENSIONAL} a row goes to each GPU that has its expert, and to "
                "those of a cut one it goes once together, so it takes 1"
            )
        if (self.routing != DRAWN or self.padded) and self.node not in (0, self.tensor_parallel):
            raise ValueError(
                f"{told}, and rows go in two levels to {self.node} GPUs; rows of padding and of seats are gathered on "
                f"those that have an expert, so it takes {self.tensor_parallel}"
            )
        if self.routing != DRAWN and not self.node:
            raise ValueError(
                f"{told}, and rows go to GPUs in one level; seats are of all GPUs that have an expert, so it takes two"
            )
        if self.node % self.tensor_parallel:
            raise ValueError(
                f"{told}; with experts.dispatch={TWO_LEVEL} an expert's GPUs are of one node, so it has to divide "
                f"their {self.node} GPUs"
            )

    def odds(self, num_experts: int) -> Floats:
        """Returns the logarithms of experts' odds, but for a common addend, float64 [experts]."""
        return Popularity(self.popularity, self.skew, self.drift, self.seed, self.step).odds(num_experts)


TOGETHER = ExpertParallel()  # all experts on every GPU


@dataclass(frozen=True)
class Routing:
    """The experts of every token. chosen: int64 [tokens, experts a token], tokens in the order of parts of t, ~expert
    where the expert has no room; begin: int64 [parts + 1], where those of each part begin. slices: of experts, one a
    GPU of a group. tensor_parallel: GPUs that each expert is cut over. relays: of rows that go in two steps, None:
    there are none. padding: int64 [parts, experts], rows without a token that go to each expert with a part; then a
    token goes to a GPU once for each expert that it chose there, and not once. None: there is no padding."""

    chosen: Ints
    begin: Ints
    num_experts: int
    slices: int
    padding: Ints | None = None
    relays: Relays | None = None
    tensor_parallel: int = 1

    index = "t"  # what routed rows are cut along

    @staticmethod
    def draw(plan: Plan, sizes: Ints, home: Ints, model: Model, how: ExpertParallel) -> "Routing":
        """Draws the experts of a plan's tokens: the largest of logarithms of odds with Gumbel noise, which is a draw
        without replacement (Kool et al. 2019, arXiv 1903.06059). sizes, home: int64 [parts], of the blocks' tokens in
        order, and the GPU that each part is on.
        """
        odds = how.odds(model.num_experts) + _noise(plan, model.num_experts, (how.seed, how.step))
        chosen = np.sort(np.argpartition(-odds, model.experts_per_token - 1)[:, : model.experts_per_token], axis=1)
        begin = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        chosen = chosen.astype(np.int64)
        relays = how.relays if how.node else None
        if how.capacity is None:
            return Routing(chosen, begin, model.num_experts, how.degree, None, relays, how.tensor_parallel)
        gpu = np.repeat(home, sizes)
        room = expert_room(np.bincount(gpu), chosen.shape[1], model.num_experts, how.capacity)
        limited = with_room(chosen, gpu, room, model.num_experts)
        found = Routing(limited, begin, model.num_experts, how.degree, None, relays, how.tensor_parallel)
        if not how.padded:
            return found
        whole = replace(found, slices=1, tensor_parallel=1, relays=None)
        return replace(found, padding=padding_rows(whole.to_experts, home, room))

    @cached_property
    def cut(self) -> ExpertCut:
        """The cut of the experts."""
        return ExpertCut(self.num_experts, self.slices, self.tensor_parallel)

    @cached_property
    def dropped(self) -> int:
        """The choices that their experts have no room for."""
        return int((self.chosen < 0).sum())

    @cached_property
    def _part(self) -> Ints:
        return np.repeat(np.arange(len(self.begin) - 1), np.diff(self.begin))

    @cached_property
    def to_experts(self) -> Ints:
        """The rows of each part that go to each part of an expert, its tokens and padding, int64 [parts, parts of
        e]."""
        key = self._part[:, None] * self.num_experts + self.chosen
        key = key[self.chosen >= 0] if self.dropped else key.reshape(-1)
        count = np.bincount(key, minlength=(len(self.begin) - 1) * self.num_experts)
        found = count.reshape(-1, self.num_experts)
        found = found if self.padding is None else found + self.padding
        return found if self.tensor_parallel == 1 else found[:, self.cut.experts]

    @cached_property
    def to_slices(self) -> Ints:
        """The rows of each part that go to each slice of the experts, int64 [parts, slices]."""
        if self.padding is not None:
            return np.asarray(self.to_experts.reshape(len(self.begin) - 1, self.slices, -1).sum(axis=2))
        found = self._in_runs(self.cut.each)
        return found if self.tensor_parallel == 1 else np.repeat(found, self.tensor_parallel, axis=1)

    @cached_property
    def to_nodes(self) -> Ints:
        """The rows of each part that go to each part of n, int64 [parts, parts of n]: by 2DH those that all of its
        slices have."""
        assert self.relays is not None, "rows that go in one step go to no relays"
        if self.relays.inside_first:
            return np.asarray(self.to_slices.reshape(len(self.begin) - 1, -1, self.relays.node).sum(axis=1))
        if self.padding is not None:  # a node is those that have the same experts, and gets what each of them does
            return self.to_slices[:, :: self.relays.node]
        return self._in_runs(self.cut.each * self.relays.node // self.tensor_parallel)

    def _in_runs(self, size: int) -> Ints:
        """Returns the tokens of each part that go to each run of so many experts, int64 [parts, runs]."""
        runs, slices = self.num_experts // size, self.chosen // size
        if self.dropped:
            slices = np.sort(np.maximum(slices, -1), axis=1)  # ~expert is below 0, and so is its quotient
        first = np.concatenate([np.ones((len(slices), 1), bool), slices[:, 1:] != slices[:, :-1]], axis=1)
        first &= slices >= 0
        key = (self._part[:, None] * runs + slices)[first]
        return np.bincount(key, minlength=(len(self.begin) - 1) * runs).reshape(-1, runs)

    def indices(self) -> tuple[Index, ...]:
        """Returns the indices e, experts or parts of these, k, slices of them, and n, what relays pass on
        together, of size 1: shards have all of a slice's elements."""
        counts = {"e": self.cut.parts, "k": self.slices, **({"n": self.relays.parts} if self.relays else {})}
        return tuple(Index(name, np.ones(count, np.int64)) for name, count in counts.items())

    def maps(self) -> tuple[PartMap, ...]:
        """Returns the map k(e), and n(k) if rows go to relays."""
        found = (PartMap("k", "e", self.cut.slice_of),)
        return (*found, PartMap("n", "k", self.relays.of_slices)) if self.relays else found

    def relations(self) -> tuple[Relation, ...]:
        """Returns route(t, e) and goes(t, k), and visits(t, n) if rows go to relays."""
        found = _relation("route", "e", self.to_experts), _relation("goes", "k", self.to_slices)
        return (*found, _relation("visits", "n", self.to_nodes)) if self.relays else found


def _noise(plan: Plan, num_experts: int, draw: tuple[int, int]) -> Floats:
    """Returns float64 [tokens, experts]: Gumbel noise for a plan's tokens, block after block, each drawn for the token
    and the batch alone."""
    blocks = plan.blocks
    pieces = blocks.pieces.items
    of_sequence = [
        np.random.default_rng((*draw, int(number))).gumbel(size=(int(length), num_experts))
        for number, length in zip(plan.sequences, plan.lengths, strict=True)
    ]
    return np.concatenate([of_sequence[blocks.seq[at]][blocks.start[at] : blocks.stop[at]] for at in pieces])


def _relation(name: str, second: str, tokens: Ints) -> Relation:
    """Returns the relation of parts of t with what some of their tokens go to."""
    parts, partners = np.nonzero(tokens)
    offsets = np.concatenate([[0], np.cumsum(np.bincount(parts, minlength=len(tokens)))]).astype(np.int64)
    rows, columns = (np.arange(size, dtype=np.int64) for size in tokens.shape)
    return Relation(name, "t", second, rows, columns, offsets, partners.astype(np.int64))
