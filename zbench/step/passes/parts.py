"""The parts of a plan's micro-batch on tensor-parallel groups of GPUs, and which of them see each other.

A plan's rank is a group of `degree` GPUs, which follow one another. Tokens: each block is cut in as many parts as the
group has GPUs (sequence parallelism); parts without a token are left out. Where exchanges go by slices of tokens, parts
end where a slice of their GPU's tokens does; where some tokens are computed at a time, where a chunk does; where some
tokens' activations go to host memory, where these do. Heads: GPU j has slice j of them, and within it the parts that
the plan's head ranges cut. Columns of the feed-forward and words of the vocabulary: a slice a GPU. Where groups of
another degree have the same parameters, slices are as fine as the finest of them, and a GPU has some.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from zbench.describe.arrays import Flags, Ints
from zbench.describe.exchanges import UNCUT, TokenSlices
from zbench.describe.expert_schedule import DRAWN
from zbench.describe.model import Model
from zbench.plans.plan import Lists, Plan
from zbench.plans.read_at_home import head_edges, kv_of_heads, read_at_home
from zbench.step.index import Index, PartMap, Relation
from zbench.step.passes.overlap.token_slices import (
    TokenChunk,
    TokenCuts,
    chunks_of_parts,
    parts_of_blocks,
    sent_tokens,
    slices_in_chunks,
)
from zbench.step.passes.router.seats import RouterSeats
from zbench.step.passes.routing import TOGETHER, ExpertParallel, Routing
from zbench.step.passes.visible import visible_parts


@dataclass(frozen=True)
class PlanParts:
    """The parts of a plan for a model. degree: GPUs of a tensor-parallel group. experts: how a model's experts are laid
    out and chosen. finest: the degree that slices are cut for, a multiple of `degree`; 0: that one. token_slices: how
    exchanges cut tokens. shares: of each sequence the share of its tokens of which something waits in host memory where
    it does of a layer, (): of all."""

    plan: Plan
    model: Model
    degree: int
    experts: ExpertParallel = TOGETHER
    finest: int = 0
    token_slices: TokenSlices = UNCUT
    shares: tuple[float, ...] = ()

    @property
    def slices(self) -> int:
        """The slices that heads, columns and words are cut in."""
        return self.finest or self.degree

    @property
    def slices_of_gpu(self) -> int:
        """The slices that a GPU has."""
        return self.slices // self.degree

    @property
    def num_gpus(self) -> int:
        return self.plan.num_ranks * self.degree

    @property
    def token_cuts(self) -> TokenCuts:
        """The tokens at which parts end, besides those at which blocks and shares of them do."""
        every = (self.mlp_chunk, self.loss_chunk)
        chunks = tuple(one for one in every if one is not None)
        return TokenCuts(self.token_slices.number, chunks, self.token_slices.by_area, self.shares)

    @property
    def mlp_chunk(self) -> TokenChunk | None:
        """The tokens that the feed-forward is computed for at a time, None: all. GPUs that send each other rows of
        experts have as many chunks."""
        tokens = self.model.mlp_chunk_tokens
        return None if isinstance(tokens, str) else TokenChunk(tokens, self.experts.degree)

    @property
    def loss_chunk(self) -> TokenChunk | None:
        """The tokens that the head and the loss are computed for at a time, None: all."""
        tokens = self.model.loss_chunk_tokens
        return None if isinstance(tokens, str) else TokenChunk(tokens)

    def chunk_numbers(self, chunk: TokenChunk) -> dict[str, Ints]:
        """Returns the chunk that each part of t is in, int64 [parts], and of what routed rows are cut along where that
        is another index, by their names."""
        slices = slices_in_chunks(self.home, self.sizes, self.degree, chunk)
        found = {"t": chunks_of_parts(self.home, self.sizes, slices)}
        if isinstance(self.routing, RouterSeats):
            found[self.routing.index] = np.zeros(len(self.routing.home), np.int64)
            found[self.routing.index][self.routing.of_part] = found["t"]
        return found

    @cached_property
    def mlp_chunks(self) -> Ints:
        """In how many chunks the feed-forward of each GPU's tokens is computed, int64 [GPUs]."""
        found = np.ones(self.num_gpus, np.int64)
        if self.mlp_chunk is not None:
            mine = slices_in_chunks(self.home, self.sizes, self.degree, self.mlp_chunk)
            found[: len(mine)] = mine
        return found

    @cached_property
    def _tokens(self) -> tuple[Ints, Ints, Ints]:
        """The block, the GPU of its group (0 to degree - 1) and the tokens of every part of t."""
        return parts_of_blocks(self.plan, self.degree, self.token_cuts)

    @cached_property
    def sent(self) -> Flags:
        """The parts of t of which something waits in host memory where it does of a layer, bool [parts]."""
        if not self.shares:
            return np.ones(len(self.sizes), np.bool_)
        return np.asarray(sent_tokens(self.plan, self.degree, self.token_cuts, self._tokens) > 0)

    @cached_property
    def block(self) -> Ints:
        """The block of every part of t, int64 [parts], ascending."""
        return self._tokens[0]

    @property
    def sizes(self) -> Ints:
        """The tokens of every part of t, int64 [parts]."""
        return self._tokens[2]

    @cached_property
    def home(self) -> Ints:
        """The GPU of every part of t, int64 [parts]."""
        block, share, _ = self._tokens
        return self.plan.blocks.home[block] * self.degree + share

    @cached_property
    def own(self) -> Lists:
        """The parts of t at home on each GPU."""
        return _by(self.home, self.num_gpus)

    @cached_property
    def together(self) -> Lists:
        """The parts of t at home in each group of GPUs."""
        return _by(self.home // self.degree, self.plan.num_ranks)

    def parts_by_gpu(self, grouped: bool) -> Ints:
        """Returns how many parts of t are at home on each GPU, or in its group, int64 [GPUs]."""
        return self._counts[grouped]

    @cached_property
    def _counts(self) -> tuple[Ints, Ints]:
        return self.own.lengths, np.repeat(self.together.lengths, self.degree)

    @cached_property
    def gpus(self) -> tuple[Ints, Ints]:
        """The GPUs that have tokens of their own, and those that have some in their group."""
        own, grouped = (np.flatnonzero(counts) for counts in self._counts)
        return own, grouped

    @cached_property
    def of_lists(self) -> Lists:
        """The parts of t that the blocks of every list of the plan have."""
        lists = self.plan.lists
        each = np.bincount(self.block, minlength=len(self.plan.blocks))
        count = each[lists.items]
        ends = np.concatenate([[0], np.cumsum(count)])
        first = np.repeat((np.cumsum(each) - each)[lists.items] - ends[:-1], count)
        return Lists(ends[lists.offsets], first + np.arange(len(first)))

    @cached_property
    def head_cuts(self) -> Ints:
        """The heads at which a slice is cut, from 0 to the number of the plan's heads: where slices of a GPU and ranges
        of the plan end, and in those that have some heads of a kv head, and others, where that ends. So whoever reads
        some heads of a kv head is sent no other one."""
        slices = self.plan.num_heads // self.slices_of_gpu * np.arange(self.slices_of_gpu + 1)
        cuts, per_kv = np.unique(np.concatenate([slices, head_edges(self.plan)])), self._per_kv
        whole = np.stack([-(-cuts[:-1] // per_kv), cuts[1:] // per_kv]) * per_kv
        return np.unique(np.concatenate([cuts, whole[(whole > cuts[:-1]) & (whole < cuts[1:])]])).astype(np.int64)

    @cached_property
    def kv_of_head(self) -> Ints:
        """The part of a slice's kv heads that every part of its heads reads, ascending."""
        return kv_of_heads(self.head_cuts, self._per_kv)

    @cached_property
    def read_at_home(self) -> tuple[Flags, Flags]:
        """Whether a backward list reads q of each part of t in the group that is its home, by parts of a slice's heads,
        bool [parts of t, parts of h]; and kv by parts of a slice's kv heads, bool [parts of t, parts of g]."""
        queries, keys = read_at_home(self.plan, self.head_cuts)
        kv = np.zeros((len(keys), len(self.kv_sizes)), np.bool_)
        for head, part in enumerate(self.kv_of_head.tolist()):
            kv[:, part] |= keys[:, head]
        return queries[self.block], kv[self.block]

    @cached_property
    def kv_sizes(self) -> Ints:
        """The kv heads of every part of a slice's, int64 [parts]."""
        last = (self.head_cuts[1:] - 1) // self._per_kv + 1
        ends = np.array([last[self.kv_of_head == part].max() for part in range(self.kv_of_head[-1] + 1)], np.int64)
        return np.diff(ends, prepend=0)

    def indices(self) -> tuple[Index, ...]:
        """Returns the indices t, h, g, f, v and j, the slices of a group, and w of a model whose first layers are
        dense."""
        slices = np.ones(self.slices, np.int64)
        experts = self.routing.indices() if self.routing else ()
        return (
            Index("t", self.sizes, of_batch=True),
            Index("h", np.tile(np.diff(self.head_cuts), self.degree)),
            Index("g", np.tile(self.kv_sizes, self.degree)),
            Index("f", self.model.common_ffn // self.slices * slices),
            Index("v", self.model.vocab // self.slices * slices),
            Index("j", slices),
            *([Index("w", self.model.dense_ffn_hidden // self.slices * slices)] if self.model.dense_layers else []),
            *experts,
        )

    @cached_property
    def maps(self) -> tuple[PartMap, ...]:
        """The maps g(h), and j of h, g, f and v."""
        kvs, share, slices = len(self.kv_sizes), np.arange(self.degree), np.arange(self.slices)
        kv = (share[:, None] * kvs + self.kv_of_head).reshape(-1)
        inside = np.searchsorted(self._slice_ends, self.head_cuts[:-1], side="right")
        of_kv = np.searchsorted(self._slice_ends // self._per_kv, np.cumsum(self.kv_sizes) - self.kv_sizes, "right")
        first = share[:, None] * self.slices_of_gpu
        return (
            PartMap("g", "h", kv),
            PartMap("j", "h", (first + inside).reshape(-1)),
            PartMap("j", "g", (first + of_kv).reshape(-1)),
            PartMap("j", "f", slices),
            PartMap("j", "v", slices),
            *([PartMap("j", "w", slices)] if self.model.dense_layers else []),
            *(self.routing.maps() if self.routing else ()),
        )

    @property
    def _per_kv(self) -> int:
        return self.model.num_heads // self.model.num_kv_heads

    @cached_property
    def _slice_ends(self) -> Ints:
        """The heads of a GPU at which its slices end."""
        return self.plan.num_heads // self.slices_of_gpu * np.arange(1, self.slices_of_gpu + 1)

    def of_slice(self, index: str, share: int) -> Ints:
        """Returns the parts of an index that GPU `share` of every group has."""
        count = {"h": len(self.head_cuts) - 1, "g": len(self.kv_sizes)}.get(index, self.slices_of_gpu)
        return share * count + np.arange(count)

    @cached_property
    def routing(self) -> Routing | RouterSeats | None:
        """The experts of the tokens, or the seats that experts have; None of a model without experts."""
        if self.model.num_experts == 1:
            return None
        if self.experts.routing == DRAWN:
            return Routing.draw(self.plan, self.sizes, self.home, self.model, self.experts)
        per_token, how, cut = self.model.experts_per_token, self.experts, self.experts.cut(self.model.num_experts)
        chunk = chunks_of_parts(self.home, self.sizes, how.chunks * self.mlp_chunks)
        return RouterSeats(self.home, self.sizes, how.capacity, per_token, cut, how.counted, chunk)

    @cached_property
    def routed_own(self) -> Lists:
        """The parts at home on each GPU of the index that routed rows are cut along."""
        return _by(self.routing.home, self.num_gpus) if isinstance(self.routing, RouterSeats) else self.own

    def homes_of_experts(self, index: str) -> Ints:
        """Returns, for each cell of parts of t and experts (e) or slices of them (k), the GPU that has these in the
        group of the tokens' home; of what relays pass on together (n), the home's relay."""
        degree = self.experts.degree
        home = self.routing.home if isinstance(self.routing, RouterSeats) else self.home
        if index == "n":
            return self.experts.relays.relay(home).reshape(-1)
        share = np.arange(degree) if index == "k" else self.experts.cut(self.model.num_experts).slice_of
        return (home[:, None] // degree * degree + share).reshape(-1)

    def routed(self, axes: tuple[str, ...]) -> Ints | None:
        """Returns the tokens of each cell of a tensor of routed tokens, None of other tensors."""
        if self.routing is None or axes[1:] not in (("e",), ("k",), ("n",)):
            return None
        tokens = self.routing.to_experts if axes[1] == "e" else self.routing.to_slices
        tokens = self.routing.to_nodes if axes[1] == "n" else tokens
        return tokens.reshape(-1).astype(np.int64)

    def relations(self) -> tuple[Relation, ...]:
        """Returns visible(t, s), and route(t, e) and goes(t, k) of a model with experts."""
        return (visible_parts(self.plan, self.block), *(self.routing.relations() if self.routing else ()))


def check_plans(model: Model, plans: tuple[Plan, ...], degree: int) -> None:
    """Raises ValueError if a model cannot be cut for tensor-parallel groups, or plans are not made for them."""
    dense = ("dense_ffn_hidden",) if model.dense_layers else ()
    for name in ("num_heads", "num_kv_heads", "ffn_hidden", *dense, "vocab"):
        size = getattr(model, name)
        if degree < 1 or size % degree:
            raise ValueError(f"parallel.tensor_parallel is {degree}; it has to divide model.{name}={size}")
    if not plans:
        raise ValueError("a step has no plans; it takes at least one, a micro-batch each")
    for number, plan in enumerate(plans):
        if plan.pipelines is not None or not plan.backward_mode:
            raise ValueError(
                f"plan {number} has pipelines or no backward; a step is built of plans without and with one"
            )
        if plan.num_heads * degree != model.num_heads or plan.num_ranks != plans[0].num_ranks:
            raise ValueError(
                f"plan {number} is of {plan.num_ranks} ranks with {plan.num_heads} heads; groups of {degree} GPUs take "
                f"plans of {plans[0].num_ranks} ranks with {model.num_heads // degree} heads"
            )


def _by(owner: Ints, count: int) -> Lists:
    """Returns, for every owner, what it owns."""
    sizes = np.bincount(owner, minlength=count)
    return Lists(np.concatenate([[0], np.cumsum(sizes)]), np.argsort(owner, kind="stable"))
