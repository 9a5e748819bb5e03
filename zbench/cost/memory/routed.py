"""The rows that a rank has of a layer's experts for each of its tokens, where all ranks have as many: the most of any.

Where routing is even they are as many as are expected. Else they come from where the pass that routes takes them
(zbench.step.passes.routing, zbench.step.passes.router.seats): room of a capacity, which is filled with rows of padding
or which a router has seats for, is of tokens alone (zbench.describe.routing.room); where popular experts are drawn, the
GPU that has most of them is sent as many rows as are expected of the law (zbench.describe.routing.choices), and some
more (zbench.cost.memory.spread).
"""

from math import comb, sqrt
from typing import NamedTuple

from zbench.cost.cost import Cost
from zbench.cost.recompute import chunk_routed_bytes, rows_of_token
from zbench.describe.expert_schedule import DEGREES, DRAWN, DROPLESS, USUAL_EXPERTS
from zbench.describe.model import WHOLE, Model
from zbench.describe.routing.choices import SliceRows, busiest_slice
from zbench.describe.routing.popularity import Popularity
from zbench.describe.routing.room import SEAT_BYTES, room_of_token


class ExpertRows(NamedTuple):
    """Rows of a token. experts: of all columns of an expert, as a token has of its own experts where routing is even;
    rows: that are sent, each to every GPU over which its expert is cut; shares: bytes beside each. late: rows of
    experts that go with the last chunk of tokens, whatever that has. home: bytes at a token's home beside its logits.
    relayed: whether GPUs over which an expert is cut pass rows on. passing: of gradients of rows one of so many parts
    is on its way at a time, beside those that are there or still to be sent; 0: less than what comes of them. rounded:
    rows that every expert may have more, one for each GPU that sends some.
    counts: bytes of numbers of rows, whatever there are of tokens, which stay though a layer is made again;
    counts_of_chunks: of each token, where each chunk has such numbers. deviations: standard ones of rows and of
    experts, times the square root of tokens."""

    experts: float
    rows: float
    shares: float
    late: float = 0.0
    home: float = 0.0
    relayed: bool = False
    passing: int = 0
    rounded: float = 0.0
    counts: float = 0.0
    counts_of_chunks: float = 0.0
    deviations: tuple[float, float] = (0.0, 0.0)

    @staticmethod
    def of(cost: Cost) -> "ExpertRows":
        """Returns the rows of a job's ranks."""
        experts, is_dense = cost.experts, cost.model.num_experts == 1
        if experts == USUAL_EXPERTS or is_dense:
            return _even(cost)
        if experts.routing != DRAWN or experts.padded:
            return _of_room(cost)
        return _of_law(cost) if experts.skew or experts.capacity != DROPLESS else _even(cost)

    def kept_bytes(self, model: Model) -> float:
        """Returns the bytes of a token that a layer keeps of what is sent to experts: rows, what is beside them, and at
        home logits, and numbers of seats."""
        row = model.element_bytes * model.hidden + self.shares
        return self.rows * row + model.element_bytes * model.num_experts + self.home

    def more_columns(self, model: Model) -> float:
        """Returns the bytes of one column's worth of experts' feed-forwards that a token has more than by even
        routing; there are three."""
        return model.element_bytes * model.ffn_hidden * (self.experts - model.experts_per_token)

    def chunk_kept_bytes(self, model: Model) -> float:
        """Returns `kept_bytes` where feed-forwards go by chunks of tokens, of rows as if each were on a GPU of its own,
        and of one of the GPUs over which an expert is cut."""
        usual, shares = chunk_routed_bytes(model), model.experts_per_token * model.lse_bytes
        row, even = model.element_bytes * model.hidden, model.experts_per_token
        more = self.experts * (row + self.shares) - even * (row + shares)
        return usual + more + self.home + self.counts_of_chunks

    def fixed_bytes(self, model: Model, cut: int) -> float:
        """Returns the bytes of a layer, of a GPU, whatever tokens it has, but for numbers of rows."""
        row = cut * (model.element_bytes * model.hidden + self.shares)
        columns = 3 * model.element_bytes * model.ffn_hidden
        return self.rounded * model.num_experts * (row + columns)


def draws_rows(cost: Cost) -> bool:
    """Returns whether the most rows that a GPU is sent for its experts are other ones in every batch."""
    experts, groups = cost.experts, cost.expert_gpus // cost.expert_cut
    by_law = experts.routing == DRAWN and experts.skew > 0
    return cost.model.num_experts > 1 and by_law and (groups > 1 or experts.capacity != DROPLESS)


def _even(cost: Cost) -> ExpertRows:
    """Returns the rows that are expected where all experts are as popular and take all tokens."""
    model, groups = cost.model, cost.expert_gpus // cost.expert_cut
    count, chosen = model.num_experts, model.experts_per_token
    rows, shares = rows_of_token(model, cost.expert_gpus, cost.expert_cut), chosen * model.lse_bytes
    relayed = cost.expert_gpus > cost.expert_cut > 1
    if count == 1 or groups == 1:  # tokens have all of their experts at home, or on the same GPUs
        return ExpertRows(chosen, rows, shares, relayed=relayed)
    own = count / groups
    sent = 1 - comb(count - int(own), chosen) / comb(count, chosen)  # a token's chance to have a row there
    experts = sqrt(chosen * (own / count) * (1 - own / count) * (count - chosen) / (count - 1))  # hypergeometric
    return ExpertRows(chosen, rows, shares, relayed=relayed, deviations=(sqrt(sent * (1 - sent)), experts))


def _of_law(cost: Cost) -> ExpertRows:
    """Returns the rows that are expected of the law by which experts are drawn, of the GPU that has most."""
    model, groups = cost.model, cost.expert_gpus // cost.expert_cut
    of, shares = _drawn(cost), model.experts_per_token * model.lse_bytes
    deviations = sqrt(of.rows_variance), sqrt(of.experts_variance)
    rows, (relayed, passing) = cost.expert_cut * groups * of.rows, _way(cost, groups > 1)
    own = groups * of.experts
    return ExpertRows(own, rows, shares, relayed=relayed, passing=passing, deviations=deviations)


def _drawn(cost: Cost) -> SliceRows:
    """Returns what is drawn for the GPU that has most of all experts."""
    model, experts = cost.model, cost.experts
    capacity = None if isinstance(experts.capacity, str) else experts.capacity
    room = None if capacity is None else room_of_token(model.experts_per_token, model.num_experts, capacity)
    popularity = Popularity(experts.popularity, experts.skew, experts.drift, *cost.draw)
    groups = cost.expert_gpus // cost.expert_cut
    return busiest_slice(popularity, model.num_experts, groups, model.experts_per_token, room)


def _of_room(cost: Cost) -> ExpertRows:
    """Returns the rows that all experts have room for, with a token or without."""
    model, experts, cut = cost.model, cost.experts, cost.expert_cut
    count, chosen = model.num_experts, model.experts_per_token
    capacity = None if isinstance(experts.capacity, str) else experts.capacity
    rows = count * room_of_token(chosen, count, capacity, experts.counted)
    rounded = 0.0 if capacity is None else 1.0
    if experts.routing == DRAWN:
        late = 0.0 if model.mlp_chunk_tokens == WHOLE else rows - _drawn(cost).least * (cost.expert_gpus // cut)
        way = _way(cost, cost.expert_gpus > cut)
        return ExpertRows(rows, cut * rows, chosen * model.lse_bytes, max(late, 0.0), 0.0, *way, rounded)
    # Of a rank's GPUs together, as lse_bytes are.
    shares, home, counts, each = model.lse_bytes / cost.tp, SEAT_BYTES * rows, 0.0, 0.0
    if experts.counted:  # of every GPU that sends some, at home and at experts, and of a group and its GPUs
        one = cost.tp * SEAT_BYTES * count * (2 * cut + (2 if cut > 1 else 0))
        schedule = experts.exchanges
        counts = one * (max(*DEGREES, schedule.chunks.forward) if schedule.is_open else schedule.chunks.forward)
        if model.mlp_chunk_tokens != WHOLE:
            each = counts / cost.tp / int(model.mlp_chunk_tokens)
    return ExpertRows(rows, cut * rows, shares, 0.0, home, *_way(cost, True), rounded, counts, each)


def _way(cost: Cost, passed_on: bool) -> tuple[bool, int]:
    """Returns relayed and passing of ExpertRows. passed_on: whether GPUs over which an expert is cut pass rows on."""
    relayed = passed_on and cost.expert_cut > 1
    if cost.expert_gpus == 1:
        return relayed, 0
    return relayed, cost.expert_cut if relayed else cost.expert_gpus
