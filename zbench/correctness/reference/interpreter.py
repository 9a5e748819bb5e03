"""Executes a plan literally, one operation after another, in numpy float64: what a plan *means*. Pure: no torch.

It shares nothing with zbench.plans.area, zbench.plans.dataflow or zbench.proof.verify. Every rank is a dictionary from
(tensor, block, head) to an array; an operation takes what it needs out of dictionaries and raises
`Broken` if it is not there. All of a plan's kv heads are given per query head (grouped queries share
values, and their gradients are summed at the end), so a head range is a loop.

Shapes: T tokens of a block, D head_dim. q [T, D]; kv [2, T, D]; a partial o is (o [T, D], lse [T]);
do is (do [T, D], lse [T], row sum of do * o [T]).
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from zbench.describe.arrays import Flags, Floats
from zbench.describe.mask import CAUSAL, Mask
from zbench.plans.plan import Attend, Ints, Plan, Transfer

Key = tuple[str, int, int]  # tensor, block, head
Rank = dict[Key, Any]  # an array of a copied tensor, a list of partial sums of a summed one

COPIES = ("q", "kv", "do")


class Broken(Exception):
    """An operation used what was not there, or a result did not come home."""


@dataclass
class Tensors:
    """Inputs of attention per query head and token of the batch (sequences one after another): [num_heads, num_tokens,
    D] each."""

    q: Floats
    k: Floats
    v: Floats
    do: Floats

    @staticmethod
    def random(num_heads: int, num_kv_heads: int, num_tokens: int, head_dim: int, seed: int = 0) -> "Tensors":
        """Draws standard normal inputs; grouped heads' keys and values are repeated to one a query head."""
        rng = np.random.default_rng(seed)
        q, do = (rng.standard_normal((num_heads, num_tokens, head_dim)) for _ in range(2))
        k, v = (rng.standard_normal((num_kv_heads, num_tokens, head_dim)) for _ in range(2))
        group = num_heads // num_kv_heads
        return Tensors(q, k.repeat(group, axis=0), v.repeat(group, axis=0), do)


@dataclass
class Results:
    """Outputs and gradients, shaped as the inputs; dk and dv per query head (sum over a group for grouped queries)."""

    o: Floats
    dq: Floats
    dk: Floats
    dv: Floats

    def difference(self, other: "Results") -> float:
        """Returns the largest difference in any of the four tensors, relative to the largest value or 1."""
        pairs = [(getattr(self, name), getattr(other, name)) for name in ("o", "dq", "dk", "dv")]
        return max(float(np.abs(a - b).max() / max(np.abs(b).max(), 1.0)) for a, b in pairs)


def dense_attention(lengths: Ints, given: Tensors, mask: Mask = CAUSAL) -> Results:
    """Computes the single-process answer: every sequence by itself, all of its scores at once."""
    out = Results(*(np.zeros_like(given.q) for _ in range(4)))
    stop = np.cumsum(lengths)
    for begin, end in zip(stop - lengths, stop, strict=True):
        q, k, v, do = (getattr(given, name)[:, begin:end] for name in ("q", "k", "v", "do"))
        scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
        places = np.arange(end - begin)
        scores = np.where(_seen(places, places, mask), scores, -np.inf)
        p = np.exp(scores - scores.max(axis=2, keepdims=True))
        p /= p.sum(axis=2, keepdims=True)
        dp = do @ v.swapaxes(1, 2)
        ds = p * (dp - (dp * p).sum(axis=2, keepdims=True)) / np.sqrt(q.shape[-1])
        out.o[:, begin:end], out.dv[:, begin:end] = p @ v, p.swapaxes(1, 2) @ do
        out.dq[:, begin:end], out.dk[:, begin:end] = ds @ k, ds.swapaxes(1, 2) @ q
    return out


def _seen(rows: Ints, columns: Ints, mask: Mask) -> Flags:
    """Returns whether the queries of one sequence at positions `rows` see the keys at `columns`, bool [rows,
    columns]."""
    back = rows[:, None] - columns
    seen: Flags = back == back
    if mask.causal:
        seen &= back >= 0
    if mask.window:
        seen &= back < mask.window
    return seen


@dataclass
class Interpreter:
    """Executes a plan on tensors that ranks hold. tokens[b]: the block's tokens as indices into the batch;
    ranks[r][tensor, block, head]: what rank r holds."""

    plan: Plan
    given: Tensors
    tokens: list[Ints] = field(default_factory=list)
    ranks: dict[int, Rank] = field(default_factory=dict)

    def __post_init__(self) -> None:
        plan, blocks = self.plan, self.plan.blocks
        start_of = np.cumsum(plan.lengths) - plan.lengths
        self.sequence = np.repeat(np.arange(len(plan.lengths)), plan.lengths)
        parts: list[list[int]] = [[] for _ in range(len(blocks))]
        for seq, start, stop, block in zip(blocks.seq, blocks.start, blocks.stop, blocks.block, strict=True):
            if not 0 <= start <= stop <= plan.lengths[seq]:
                raise Broken(f"block {block} has tokens outside sequence {seq}")
            parts[block] += range(start_of[seq] + start, start_of[seq] + stop)
        self.tokens = [np.array(part, np.int64) for part in parts]
        if sorted(token for part in parts for token in part) != list(range(int(plan.lengths.sum()))):
            raise Broken("a token is in two blocks or in none")
        self.ranks = {rank: {} for rank in range(plan.num_ranks)}
        for block, home in enumerate(blocks.home):
            mine = self.tokens[block]
            for head in range(plan.num_heads):
                self.ranks[home]["q", block, head] = self.given.q[head, mine]
                self.ranks[home]["kv", block, head] = np.stack([self.given.k[head, mine], self.given.v[head, mine]])

    def run(self) -> Results:
        """Runs the forward, then the backward; returns what every home then has.

        Raises:
            Broken: an operation used what was not there, or something did not come home.
        """
        plan = self.plan
        kept = []
        for op, keep in zip(plan.views(plan.forward), plan.forward.keep, strict=True):
            self._do(op, backward=False)
            if keep:
                if not isinstance(op, Transfer) or op.tensor not in COPIES:
                    raise Broken(f"{op} brings no copy that could be kept")
                kept += [(op.dst, op.tensor, block, head) for block in op.blocks for head in range(*op.heads)]
        out = Results(*(np.zeros_like(self.given.q) for _ in range(4)))
        final = self._collect("o", out)
        self._forget_all_but(kept)
        for (block, head), (o, lse) in final.items():
            do = self.given.do[head, self.tokens[block]]
            self.ranks[plan.blocks.home[block]]["do", block, head] = (do, lse, (do * o).sum(axis=1))
        for op in plan.views(plan.backward):
            self._do(op, backward=True)
        self._collect("dq", out)
        self._collect("dkv", out)
        return out

    def _do(self, op: Transfer | Attend, backward: bool) -> None:
        if not (op.q_blocks and op.kv_blocks if isinstance(op, Attend) else op.blocks):
            raise Broken(f"{op} has no blocks")
        if isinstance(op, Attend):
            seen = self._visible(op)
            for head in range(*op.heads):
                (self._attend_backward if backward else self._attend)(op, head, seen)
        else:
            for head in range(*op.heads):
                self._transfer(op, head)

    def _transfer(self, op: Transfer, head: int) -> None:
        src, dst = self.ranks[op.src], self.ranks[op.dst]
        for block in op.blocks:
            key = (op.tensor, block, head)
            if key not in src:
                raise Broken(f"{op}: {key} is not on rank {op.src}")
            if op.tensor in COPIES:
                if key in dst:
                    raise Broken(f"{op}: {key} is on rank {op.dst} already")
                dst[key] = src[key]
            else:
                dst.setdefault(key, []).extend(src.pop(key))

    def _read(self, op: Attend, tensor: str, blocks: tuple[int, ...], head: int) -> list[Any]:
        rank = self.ranks[op.rank]
        for block in blocks:
            if (tensor, block, head) not in rank:
                raise Broken(f"{op}: {tensor} of block {block}, head {head}, is not on rank {op.rank}")
        return [rank[tensor, block, head] for block in blocks]

    def _visible(self, op: Attend) -> Flags:
        """Returns which keys of an operation each of its queries sees."""
        rows = np.concatenate([self.tokens[block] for block in op.q_blocks])
        columns = np.concatenate([self.tokens[block] for block in op.kv_blocks])
        seen: Flags = self.sequence[rows][:, None] == self.sequence[columns]
        return seen & _seen(rows, columns, self.plan.mask)

    def _scores(self, op: Attend, head: int, seen: Flags) -> tuple[Floats, Floats, Floats, Floats]:
        """Returns (scores with -inf where nothing is seen, q, k, v)."""
        q = np.concatenate(self._read(op, "q", op.q_blocks, head))
        k, v = np.concatenate(self._read(op, "kv", op.kv_blocks, head), axis=1)
        return np.where(seen, q @ k.T / np.sqrt(q.shape[1]), -np.inf), q, k, v

    def _add(self, op: Attend, tensor: str, blocks: tuple[int, ...], head: int, columns: tuple[Floats, ...]) -> None:
        """Cuts token-indexed arrays by block and adds each part to the rank's sums."""
        cuts = np.cumsum([len(self.tokens[block]) for block in blocks])[:-1]
        for block, *parts in zip(blocks, *(np.split(column, cuts) for column in columns), strict=True):
            self.ranks[op.rank].setdefault((tensor, block, head), []).append(tuple(parts))

    def _attend(self, op: Attend, head: int, seen: Flags) -> None:
        scores, _, _, v = self._scores(op, head, seen)
        top = scores.max(axis=1)
        p = np.exp(scores - np.where(np.isfinite(top), top, 0.0)[:, None])
        total = p.sum(axis=1)
        lse = np.where(total > 0, np.log(np.where(total > 0, total, 1.0)) + top, -np.inf)
        self._add(op, "o", op.q_blocks, head, (p @ v / np.where(total > 0, total, 1.0)[:, None], lse))

    def _attend_backward(self, op: Attend, head: int, seen: Flags) -> None:
        scores, q, k, v = self._scores(op, head, seen)
        do, lse, delta = (np.concatenate(c) for c in zip(*self._read(op, "do", op.q_blocks, head), strict=True))
        p = np.exp(scores - lse[:, None])
        ds = p * (do @ v.T - delta[:, None]) / np.sqrt(q.shape[1])
        self._add(op, "dq", op.q_blocks, head, (ds @ k,))
        self._add(op, "dkv", op.kv_blocks, head, (ds.T @ q, p.T @ do))

    def _collect(self, tensor: str, out: Results) -> dict[tuple[int, int], tuple[Floats, Floats]]:
        """Merges every home's partial sums into `out`; for o also returns (o, lse) by (block, head)."""
        final = {}
        for block, home in enumerate(self.plan.blocks.home):
            for head in range(self.plan.num_heads):
                parts = self.ranks[home].pop((tensor, block, head), None)
                if not parts:
                    raise Broken(f"no {tensor} of block {block}, head {head}, came home to rank {home}")
                mine = self.tokens[block]
                if tensor == "o":
                    lse = np.logaddexp.reduce([part[1] for part in parts], axis=0)
                    if not np.isfinite(lse).all():
                        raise Broken(f"a query of block {block}, head {head}, has seen no key")
                    merged = sum(part[0] * np.exp(part[1] - lse)[:, None] for part in parts)
                    out.o[head, mine] = merged
                    final[block, head] = (merged, lse)
                elif tensor == "dq":
                    out.dq[head, mine] = sum(part[0] for part in parts)
                else:
                    out.dk[head, mine] = sum(part[0] for part in parts)
                    out.dv[head, mine] = sum(part[1] for part in parts)
        for index, rank in self.ranks.items():
            for key in rank:
                if key[0] == tensor:
                    raise Broken(f"{key} stays on rank {index}")
        return final

    def _forget_all_but(self, kept: list[tuple[int, str, int, int]]) -> None:
        """Drops, between forward and backward, all that a rank holds but its own blocks and the copies marked
        `keep`."""
        homes = self.plan.blocks.home
        allowed = set(kept)
        for index, rank in self.ranks.items():
            for key in list(rank):
                if homes[key[1]] != index and (index, *key) not in allowed:
                    del rank[key]


def execute(plan: Plan, given: Tensors) -> Results:
    """Executes the plan on the given inputs and returns what comes of it."""
    return Interpreter(plan, given).run()
