"""The functions of formulas of a router that chooses while the step runs, in torch, at the homes of tokens.

Choices are made of the logits of all tokens of a GPU, and say of each seat of an expert which of these tokens is in it,
-1 where none is (zbench.runtime.steps.seats). Among equal logits the expert with the lower number comes first, and
among equal tokens the first, so the same logits have the same choices on every device. What goes to experts is as many
rows as there are seats, so what is computed there is as with rows that were drawn (zbench.runtime.handlers.experts).

A token chooses experts by its logits, and where an expert has too few seats the first tokens in their order have them
(Lepikhin et al. 2021, arXiv 2006.16668). An expert chooses tokens by their shares of a softmax over all experts (Zhou
et al. 2022, arXiv 2202.09368).

Shapes: t tokens of parts of t, a tokens of their GPU, x experts, r rows: seats.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zbench.describe.model import SIGMOID, SOFTMAX_ALL
from zbench.runtime.handlers.formats import Fields
from zbench.runtime.steps.instructions import Parts
from zbench.runtime.steps.seats import SeatParts
from zbench.step.layers import SHARES


@dataclass(frozen=True)
class Seats:
    """The seats of a compute, and the tokens that may be in them.

    expert: int64 [r], whose seat each row is. first: int64 [r], the number of the first token of its GPU among a.
    position: int64 [t], numbers of the tokens among a; row: int64 [a], numbers of a's tokens among t, -1 of others.
    of_expert: the rows of each expert, in which no token is twice. spans: of each GPU the first of its tokens, the one
    after its last, and the seats of an expert. pieces: of the rows in their order, the number of a GPU, the first of
    some experts and the one after their last. per_token: experts of a token. dtype: of shares. alike: the slices of
    experts, where all have the same ones, each some of their columns; else 0.
    """

    expert: Tensor
    first: Tensor
    position: Tensor
    row: Tensor
    of_expert: tuple[Tensor, ...]
    spans: tuple[tuple[int, int, int], ...]
    pieces: tuple[tuple[int, int, int], ...]
    per_token: int
    dtype: torch.dtype
    alike: int = 0

    @staticmethod
    def of(
        seats: SeatParts, parts: Mapping[str, Parts], per_token: int, dtype: torch.dtype, device: torch.device
    ) -> "Seats":
        """Returns the seats of a compute. parts: of its slots t or a, and k or n."""
        groups = parts["a"] if "a" in parts else seats.groups(parts["t"])
        slices = seats.of_nodes(parts["n"]) if "n" in parts else parts.get("k", ())
        part, group = seats.rows(groups, slices)
        ends = np.cumsum(seats.tokens[list(groups)])
        begins = ends - seats.tokens[list(groups)]
        position = seats.positions(parts.get("t", ()), groups)
        row = np.full(int(ends[-1]), -1, np.int64)
        row[position] = np.arange(len(position))
        every = [torch.from_numpy(one).to(device) for one in (seats.experts[part], begins[group], position, row)]
        of_expert = [torch.from_numpy(np.flatnonzero(part == one)).to(device) for one in seats.parts_of(slices)]
        room = seats.room[list(groups)].tolist()
        spans = tuple(zip(begins.tolist(), ends.tolist(), room, strict=True))
        runs = [seats.experts[seats.parts_of((one,))].tolist() for one in slices]
        pieces = tuple((gpu, run[0], run[-1] + 1) for run in runs for gpu in range(len(groups)))
        alike = len(slices) if all(run == runs[0] for run in runs) else 0
        return Seats(every[0], every[1], every[2], every[3], tuple(of_expert), spans, pieces, per_token, dtype, alike)

    def tokens(self, to: Tensor) -> Tensor:
        """Returns the token of t in each seat, -1 where none of t is."""
        found = self.row[self.first + to.clamp(min=0)]
        return torch.where(to < 0, to, found)


def _seats(at: Any) -> Seats:
    assert at.seats is not None, "a formula of seats has slots of tokens or of all of a GPU, and of slices of experts"
    found: Seats = at.seats
    return found


def _collect(at: Any, r: Fields) -> Tensor:
    """Returns the logits of a GPU's tokens together, zeros of those that are not of the compute."""
    seats = _seats(at)
    return r[0].new_zeros(len(seats.row), r[0].shape[1]).index_copy_(0, seats.position, r[0])


def _tops(r: Tensor, per_token: int) -> Tensor:
    """Returns which experts tokens choose, bool [tokens, x]: those with the largest logits."""
    largest = r.sort(dim=1, descending=True, stable=True).indices[:, :per_token]
    return torch.zeros_like(r, dtype=torch.bool).scatter_(1, largest, True)


def _choose_experts(at: Any, ra: Fields) -> Tensor:
    seats = _seats(at)
    wanted = [_tops(ra[0][begin:end], seats.per_token) for begin, end, _ in seats.spans]
    return _seated(seats, wanted)


def _choose_tokens(at: Any, ra: Fields) -> Tensor:
    seats, wanted = _seats(at), []
    for begin, end, room in seats.spans:
        scores = ra[0][begin:end].softmax(1, dtype=seats.dtype)
        largest = scores.sort(dim=0, descending=True, stable=True).indices[:room]
        wanted.append(torch.zeros_like(scores, dtype=torch.bool).scatter_(0, largest, True))
    return _seated(seats, wanted)


def _seated(seats: Seats, wanted: list[Tensor]) -> Tensor:
    """Returns the tokens in seats: of each expert the first tokens that go there, until its seats are full. wanted: of
    each GPU, bool [its tokens, x]."""
    tables = []
    for goes, (_, _, room) in zip(wanted, seats.spans, strict=True):
        place = goes.cumsum(0) - 1
        column = torch.where(goes & (place < room), place, room).T  # the last one is for all that have no seat
        every = torch.arange(len(goes), device=goes.device).expand(goes.shape[1], -1)
        tables.append(every.new_full((goes.shape[1], room + 1), -1).scatter_(1, column, every)[:, :room])
    return torch.cat([tables[gpu][first:last].reshape(-1) for gpu, first, last in seats.pieces])


def _taken(values: Tensor, rows: Tensor) -> Tensor:
    """Returns the values of rows' tokens, zeros of seats with none (-1)."""
    return values.index_select(0, rows.clamp(min=0)) * (rows >= 0)[:, None]


def _seat(at: Any, m: Fields, to: Fields) -> Tensor:
    return _taken(m[0], _seats(at).tokens(to[0]))


def _unseat(at: Any, v: Fields, to: Fields) -> Tensor:
    """Returns the sum of what is in the seats of each token, one expert after another."""
    seats = _seats(at)
    tokens = seats.tokens(to[0])
    found = v[0].new_zeros(len(seats.position), *v[0].shape[1:])
    for rows in seats.of_expert:
        mine = tokens[rows]
        found.index_add_(0, mine.clamp(min=0), v[0][rows] * (mine >= 0)[:, None])
    return found


def _shares(gate: str, seats: Seats, r: Tensor) -> Tensor:
    """Returns the share of every expert in what its token is given, [t, x], 0 of those that it did not choose."""
    if gate == SOFTMAX_ALL:
        return r.softmax(1, dtype=seats.dtype)
    chosen = _tops(r, seats.per_token)
    if gate == SIGMOID:
        scores = r.to(seats.dtype).sigmoid() * chosen
        return scores / scores.sum(1, keepdim=True)
    return r.masked_fill(~chosen, -torch.inf).softmax(1, dtype=seats.dtype)


def _share(gate: str, at: Any, r: Fields, to: Fields) -> Tensor:
    seats = _seats(at)
    tokens = seats.tokens(to[0])
    picked = _shares(gate, seats, r[0])[tokens.clamp(min=0), seats.expert]
    return (picked * (tokens >= 0))[:, None]


def _share_d0(gate: str, at: Any, dp: Fields, r: Fields, to: Fields) -> Tensor:
    seats, shares = _seats(at), _shares(gate, _seats(at), r[0])
    tokens = seats.tokens(to[0])
    given = shares.new_zeros(len(shares), shares.shape[1] + 1)  # the last column is for seats with no token
    column = torch.where(tokens >= 0, seats.expert, shares.shape[1])
    given[tokens.clamp(min=0), column] = dp[0][:, 0].to(given.dtype)
    given = given[:, :-1]
    found = shares * (given - (given * shares).sum(1, keepdim=True))
    if gate == SIGMOID:
        found = found * (-r[0]).to(found.dtype).sigmoid()
    return found.to(r[0].dtype)


def _replicate(at: Any, rows: Fields, *numbers: Fields) -> Tensor:
    """Returns the rows of a group of slices for each of these. numbers: of rows, which are known by now."""
    count = _seats(at).alike
    assert count, "rows are passed on to slices with the same experts"
    return torch.cat([rows[0]] * count)


def _sum_parts(at: Any, rows: Fields, *numbers: Fields) -> Tensor:
    """Returns the sum of what a group's slices make of their columns, one slice after another."""
    count = _seats(at).alike
    assert count, "rows come of slices with the same experts"
    first, *others = rows[0].split(len(rows[0]) // count) if len(rows[0]) else (rows[0],)
    found: Tensor = first.clone()
    for one in others:
        found += one
    return found


_TO_EACH = ("replicate", "sum_parts_d0", "replicate_counted", "sum_parts_counted_d0", "replicate_counts")
_OF_EACH = ("sum_parts", "replicate_d0", "sum_parts_counted", "replicate_counted_d0")
SEAT_FUNCTIONS: Mapping[str, Callable[..., Any]] = MappingProxyType({
    **{f"{name}_of_seats": partial(_share, gate) for gate, name in SHARES.items()},
    **{f"{name}_of_seats_d0": partial(_share_d0, gate) for gate, name in SHARES.items()},
    "collect": _collect, "choose_experts": _choose_experts, "choose_tokens": _choose_tokens, "seat": _seat,
    "seat_d0": _unseat, "unseat": _unseat, "unseat_d0": _seat,
    **dict.fromkeys(_TO_EACH, _replicate), **dict.fromkeys(_OF_EACH, _sum_parts),
})  # fmt: skip
