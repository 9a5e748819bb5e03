"""Bytes of a layer on a rank, of a token: what it keeps, and what its backward makes.

Of a hidden state a rank of a stage has its share, and all of it where tensor parallelism gathers.
"""

from typing import NamedTuple

from zbench.cost.cost import Cost
from zbench.cost.memory.routed import ExpertRows
from zbench.cost.recompute import (
    again_activation_bytes,
    chunk_activation_bytes,
    chunk_gradient_bytes,
    chunk_routed_bytes,
    layer_activation_bytes,
)
from zbench.describe.model import WHOLE


class LayerBytes(NamedTuple):
    """Bytes a token of a layer on a rank of a stage. layer: that it keeps without recomputation. own: of the rank's
    share of a hidden state. whole: of one that is not cut, of every GPU that a rank stands for. q, kv: of attention's
    inputs. ffn: a column's worth of the feed-forward, of which it has three. rows: what is sent to experts, and kept;
    gradients: of rows one way; relayed: of rows that are on their way to the GPUs over which an expert is cut. shared:
    the share of columns that shared experts have. gathers: whether what the feed-forward computes with is whole on
    every GPU of a group, as it is but for experts that tokens choose. passing: gradients of rows that are on their way
    beside all others, where that is a moment of its own. again: what recomputation of the feed-forward makes again.
    fixed: bytes of a layer, however many tokens it has; counts: bytes of numbers of rows, which stay though the layer
    is made again, however many tokens it has and of each. By chunks of tokens, beside what is kept: chunk_again, what
    is made again for a chunk, by recomputation that makes some of it again; chunk_gradients, at its fullest moment;
    late, both of rows that go with the last chunk."""

    layer: float
    own: float
    whole: float
    q: float
    kv: float
    ffn: float
    rows: float = 0.0
    gradients: float = 0.0
    relayed: float = 0.0
    shared: float = 0.0
    gathers: bool = True
    passing: float = 0.0
    again: float = 0.0
    fixed: float = 0.0
    counts: tuple[float, float] = (0.0, 0.0)
    chunk_again: float = 0.0
    chunk_gradients: float = 0.0
    late: float = 0.0

    @staticmethod
    def of(cost: Cost, tp: int) -> "LayerBytes":
        """Returns those of a layer on one of a stage's `tp` ranks."""
        model, e = cost.model, cost.model.element_bytes
        copies = max(tp - model.num_kv_heads, 0) / tp  # k and v that this rank has and another has too
        more = 2 * copies * model.head_dim * e
        q, kv = (e * model.head_dim * heads / tp for heads in (model.num_heads, 2 * model.num_kv_heads))
        of = ExpertRows.of(cost)
        wider = of.more_columns(model)
        hidden, columns = e * model.hidden, (e * model.active_ffn + wider) / tp
        sizes = hidden / tp, hidden * cost.tp, q, kv + more, columns
        again = (again_activation_bytes(model) + 3 * wider) / tp
        fixed, counts = cost.tp * of.fixed_bytes(model, cost.expert_cut), (of.counts, of.counts_of_chunks)
        if model.num_experts == 1 or model.mlp_chunk_tokens != WHOLE:  # where they are a chunk's they are counted there
            # An expert that is cut has its rows on each of its GPUs.
            routed, others = of.chunk_kept_bytes(model), cost.expert_cut - 1
            sent = routed - chunk_routed_bytes(model)
            layer = (layer_activation_bytes(model) + 3 * wider + sent) / tp + more + others * routed / tp
            is_full, made = model.recompute == "full", float(chunk_activation_bytes(model))
            made += 3 * wider if made else 0.0
            chunk_again = (made + sent * is_full) / tp + is_full * others * routed / tp
            gradients = (chunk_gradient_bytes(model, of.experts) + 2 * others * routed) / tp
            late = of.late * e * (5 * model.ffn_hidden + (2 + is_full) * cost.expert_cut * model.hidden) / tp
            found = LayerBytes(layer, *sizes, again=again, fixed=fixed, counts=counts)
            return found._replace(chunk_again=chunk_again, chunk_gradients=gradients, late=late)
        rows = of.kept_bytes(model) / tp
        layer = (layer_activation_bytes(model) + 3 * wider) / tp + more + rows
        gradients = of.rows * (hidden + of.shares) / tp
        relayed = gradients / cost.expert_cut if of.relayed else 0.0
        passing = gradients / of.passing if of.passing else 0.0
        shared = model.shared_experts / (model.shared_experts + of.experts)
        return LayerBytes(layer, *sizes, rows, gradients, relayed, shared, shared > 0, passing, again, fixed, counts)

    def kept_recomputed(self, level: str) -> float:
        """Returns the bytes that a layer keeps which is recomputed by a level."""
        return self.own + self.counts[1] if level == "full" else self.layer - self.again

    @property
    def other(self) -> float:
        """The bytes of a whole hidden state that other ranks have too."""
        return self.whole - self.own


def layer_kept_bytes(cost: Cost, tp: int) -> tuple[float, float]:
    """Returns the bytes of a token that a layer keeps on one of a stage's `tp` ranks, (as it is, recomputed); of
    layers whose inputs alone are on hosts, these."""
    of, model = LayerBytes.of(cost, tp), cost.model
    if model.layers_on_hosts and not model.activations_on_hosts:
        return of.own, of.own
    return of.layer, of.kept_recomputed(model.recompute)
