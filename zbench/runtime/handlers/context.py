"""The context of a compute, what its formula takes besides operands: positions, words and heads of its parts."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from zbench.cost.loss import chunk_rows, chunk_words
from zbench.describe.arrays import Ints
from zbench.describe.model import AUTO, Model
from zbench.runtime.handlers.seats import Seats
from zbench.runtime.handlers.token_loss import TokenLoss, TokenLosses
from zbench.runtime.kernels.elementwise import wide
from zbench.runtime.kernels.kernels import Kernel
from zbench.runtime.kernels.memory import DTYPES, KvHeads
from zbench.runtime.steps.instructions import Parts
from zbench.runtime.steps.routed import RoutedTokens
from zbench.runtime.steps.seats import SeatParts
from zbench.runtime.steps.tokens import TokenParts
from zbench.runtime.training.transformer import rope
from zbench.step.layout import StepLayout


@dataclass(frozen=True)
class TokenWords:
    """The words of a micro-batch: token ids and targets of every token, by the sequence's number in the batch. losses:
    of its tokens; None: negative log-likelihoods."""

    tokens: Mapping[int, Ints]
    targets: Mapping[int, Ints]
    losses: TokenLosses | None = None

    def of(self, sequence: Ints, position: Ints) -> tuple[Ints, Ints]:
        """Returns (tokens, targets) at positions of sequences."""
        tokens, targets = np.zeros((2, len(sequence)), np.int64)
        for one in np.unique(sequence).tolist():
            mine = sequence == one
            tokens[mine], targets[mine] = self.tokens[one][position[mine]], self.targets[one][position[mine]]
        return tokens, targets


NO_WORDS = TokenWords({}, {})


@dataclass
class LogitBytes:
    """The bytes of logits inside a compute, which no store has. most: of what was made since it was taken, at most."""

    most: int = 0

    def note(self, *arrays: Tensor) -> None:
        """Notes arrays that are there together; what several names have is there once."""
        pieces = {one.untyped_storage().data_ptr(): one.untyped_storage().nbytes() for one in arrays}
        self.most = max(self.most, sum(pieces.values()))

    def take(self) -> int:
        """Returns the most, and begins anew."""
        most, self.most = self.most, 0
        return most


@dataclass(frozen=True)
class Cuts:
    """An attend's rows for a kernel. q_rows, kv_rows: rows of the lists that its segments have, None: all of them, as
    they lie. cuts: as the kernel takes segments; None: no query sees a key."""

    q_rows: Tensor | None
    kv_rows: Tensor | None
    cuts: Any


@dataclass(frozen=True)
class RoutedRows:
    """The rows of routed tokens of a compute (zbench.runtime.steps.routed).

    chosen: int64 [T, n], the experts of the tokens of t, with room or not. tokens, inside: of each slice in the slot k,
    or node in n, the number of each row's token, -1 of padding, and which of its choices the row is of, bool [these,
    n]. experts: of each in the slot e, its rows of what its slice was sent (blocks of rows that are counted while the
    step runs), and as which choices. num_sent: the rows that the slices of these were sent. dtype: of shares. repeated:
    whether a token may have several rows in a slice or node. in_nodes: of each slice in the slot k its rows by their
    numbers among those that nodes were sent, num_in_nodes of them; () where nodes are of no interest.
    """

    chosen: Tensor
    tokens: tuple[Tensor, ...]
    inside: tuple[Tensor, ...]
    experts: tuple[tuple[Tensor, Tensor], ...]
    num_sent: int
    dtype: torch.dtype
    repeated: bool = False
    in_nodes: tuple[Tensor, ...] = ()
    num_in_nodes: int = 0


@dataclass(frozen=True)
class Context:
    """The context of a compute.

    turns: cosine and sine of the positions of t, [T, D / 2] each. tokens, targets: int64 [T], as words of the slot v:
    their number in it, -1 of others. num_words: of the slot v. heads: kv heads of the slots h and g. cuts: of an
    attend. kernel: the attention kernel. routed: of a formula of routed tokens. chunks: whether logits are of as many
    tokens at a time as zbench.cost.loss has, and not of all of the compute. loss: of the tokens; None: their negative
    log-likelihoods. seats: of a formula of seats whose tokens a router chooses. temperature: of a
    router's cosines. logits: notes how many bytes of logits there are.
    """

    turns: tuple[Tensor, Tensor]
    tokens: Tensor
    targets: Tensor
    num_words: int
    heads: KvHeads
    cuts: Cuts | None
    kernel: Kernel
    routed: RoutedRows | None = None
    chunks: bool = True
    loss: TokenLoss | None = None
    seats: Seats | None = None
    temperature: float = 0.0
    logits: LogitBytes = field(default_factory=LogitBytes)

    def logit_rows(self, hidden: Tensor, words: Tensor) -> int:
        """Returns of how many tokens logits are made at a time. hidden: of the compute's tokens; words: the head."""
        return chunk_rows(len(hidden), hidden.shape[1], len(words)) if self.chunks else max(len(hidden), 1)

    def logit_words(self, hidden: Tensor, words: Tensor) -> int:
        """Returns of how many words logits are made at a time where they are of all tokens: no more of them than by
        logit_rows. hidden, words: as there."""
        return chunk_words(len(hidden), len(words), self.logit_rows(hidden, words))


class _TokenRows(NamedTuple):
    """The tokens of parts of t. sequence, position, tokens, targets: int64 [T]. turns: as of Context."""

    sequence: Ints
    position: Ints
    tokens: Ints
    targets: Ints
    turns: tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Contexts:
    """Makes contexts for the computes of a micro-batch: one for all that have the same parts of the same slots."""

    layout: StepLayout
    model: Model
    tokens: TokenParts
    words: TokenWords
    kernel: Kernel
    device: torch.device
    routed: RoutedTokens | None = None
    seats: SeatParts | None = None
    _made: dict[frozenset[tuple[str, Parts]], Context] = field(default_factory=dict)
    _rows: dict[Parts, _TokenRows] = field(default_factory=dict)

    def of(self, slots: Mapping[str, Parts]) -> Context:
        """Returns the context of a compute. slots: the parts of each slot."""
        key = frozenset(slots.items())
        if key not in self._made:
            self._made[key] = self._of(slots)
        return self._made[key]

    def _of(self, slots: Mapping[str, Parts]) -> Context:
        rows, losses = self._of_tokens(slots.get("t", ())), self.words.losses
        words = self._numbers("v", slots.get("v", ()))
        place = np.full(self.model.vocab, -1, np.int64)
        place[words] = np.arange(len(words))
        heads = self._heads(slots.get("h", ()))
        cuts = self._cuts(slots["t"], slots["s"]) if "s" in slots else None
        return Context(
            rows.turns,
            self._tensor(place[rows.tokens]),
            self._tensor(place[rows.targets]),
            len(words),
            heads,
            cuts,
            self.kernel,
            self._routed(slots),
            self.model.loss_chunk_tokens == AUTO,
            None if losses is None else losses.of(rows.sequence, rows.position, rows.turns[0]),
            self._seats(slots),
            self.model.router_temperature,
        )

    def _of_tokens(self, parts: Parts) -> _TokenRows:
        if parts not in self._rows:
            sequence, position = self.tokens.rows(parts)
            cos, sin = rope(torch.from_numpy(position).to(self.device), self.model.head_dim)
            dtype = wide(DTYPES[self.model.element_bytes])
            words = self.words.of(sequence, position)
            self._rows[parts] = _TokenRows(sequence, position, *words, (cos.to(dtype), sin.to(dtype)))
        return self._rows[parts]

    def _tensor(self, array: Ints) -> Tensor:
        return torch.from_numpy(array).to(self.device)

    def _numbers(self, index: str, parts: Parts) -> Ints:
        """Returns the heads or words that parts of an index have."""
        none = [np.zeros(0, np.int64)]
        if not parts:
            return none[0]
        ends = np.cumsum(self.layout.index[index].sizes)
        return np.concatenate(
            none + [np.arange(ends[at] - self.layout.index[index].sizes[at], ends[at]) for at in parts]
        )

    def _heads(self, parts: Parts) -> KvHeads:
        """Returns which kv head each query head reads, among the kv heads of the parts that the map g(h) names."""
        if not parts:
            return KvHeads(None, 0)
        group = self.model.num_heads // self.model.num_kv_heads
        part = next(one.part for one in self.layout.maps if (one.coarse, one.fine) == ("g", "h"))
        kv_heads = self._numbers("g", tuple(np.unique(part[list(parts)]).tolist()))
        reads = np.searchsorted(kv_heads, self._numbers("h", parts) // group)
        each = len(reads) // max(1, len(kv_heads))
        if each * len(kv_heads) == len(reads) and (reads == np.arange(len(reads)) // max(1, each)).all():
            return KvHeads(None, len(kv_heads))
        return KvHeads(self._tensor(reads), len(kv_heads))

    def _routed(self, slots: Mapping[str, Parts]) -> RoutedRows | None:
        """Returns the rows of routed tokens, None of a formula without such."""
        if self.seats is not None:
            return self._of_seats(self.seats, slots)
        if self.routed is None or "t" not in slots or not {"k", "e", "n"} & slots.keys():
            return None
        parts = slots["t"]
        goes = [self.routed.to_slice(parts, one) for one in slots.get("k", ())]
        goes += [self.routed.to_node(parts, one) for one in slots.get("n", ())]
        by_node = "k" in slots and self.routed.nodes is not None
        in_nodes, num_in_nodes = self.routed.in_nodes(parts, slots["k"]) if by_node else ([], 0)
        experts = slots.get("e", ())
        sent = [
            self.routed.to_slice(parts, one)[0] for one in np.unique(self.routed.cut.slice_of[list(experts)]).tolist()
        ]
        return RoutedRows(
            self._tensor(self.routed.of(parts)),
            tuple(self._tensor(tokens) for tokens, _ in goes),
            tuple(torch.from_numpy(inside).to(self.device) for _, inside in goes),
            tuple((self._tensor(rows), self._tensor(to)) for rows, to in self.routed.to_experts(parts, experts)),
            sum(len(tokens) for tokens in sent),
            DTYPES[self.model.lse_bytes],
            self.routed.padding is not None or (self.routed.aligned and "n" in slots),
            tuple(map(self._tensor, in_nodes)),
            num_in_nodes,
        )

    def _of_seats(self, every: SeatParts, slots: Mapping[str, Parts]) -> RoutedRows | None:
        """Returns the rows of seats that are computed where experts are, None of a formula without such."""
        if "e" not in slots:
            return None
        slices = tuple(np.unique(every.slices[list(slots["e"])]).tolist())
        if every.counted:  # blocks, until it is known how many rows each has
            every = replace(every, room=np.ones_like(every.room))
        part, _ = every.rows(slots["a"], slices)
        mine = [self._tensor(np.flatnonzero(part == one)) for one in slots["e"]]
        none = torch.zeros(0, 1, dtype=torch.int64, device=self.device)
        of_experts = tuple((rows, torch.zeros_like(rows)) for rows in mine)
        return RoutedRows(none, (), (), of_experts, len(part), DTYPES[self.model.lse_bytes])

    def _seats(self, slots: Mapping[str, Parts]) -> Seats | None:
        """Returns the seats of tokens at home, or of rows that are passed on, None of a formula without such."""
        if self.seats is None or not slots.keys() & {"t", "a"} or not slots.keys() <= {"t", "a", "k", "n"}:
            return None
        return Seats.of(self.seats, slots, self.model.experts_per_token, DTYPES[self.model.lse_bytes], self.device)

    def _cuts(self, queries: Parts, keys: Parts) -> Cuts:
        (found,) = self.tokens.segments([(queries, keys)])
        if not len(found.queries):
            return Cuts(None, None, None)
        cuts = self.kernel.cut(found.queries, found.before, found.diagonal, found.left)
        counts = [int(self.tokens.sizes[list(parts)].sum()) for parts in (queries, keys)]
        rows = [
            None if len(one) == count and (one == np.arange(count)).all() else self._tensor(one)
            for one, count in zip((found.q_rows, found.kv_rows), counts, strict=True)
        ]
        return Cuts(rows[0], rows[1], cuts)
