"""The rows that a GPU may be sent for its experts beyond those expected, where experts are drawn.

A GPU has rows of the tokens of all GPUs that hold all experts together. Each of these has its rows, and its experts
there, with a chance of its own, so sums of n tokens lie around their mean by standard deviations that grow with the
square root of n. Planners reckon with DEVIATIONS of them: of normal numbers one in 31,000 is more than 4 of them above
its mean.
"""

from math import sqrt
from typing import NamedTuple

from zbench.cost.cost import Cost
from zbench.cost.memory.routed import ExpertRows
from zbench.describe.model import WHOLE

DEVIATIONS = 4


class RowSpread(NamedTuple):
    """Bytes that a rank has more of a layer than its mean, times the square root of its tokens. kept: of rows and of
    shares of a token's experts with each. columns: of one column's worth of experts' feed-forwards, of which there are
    three. gradients: of rows one way."""

    kept: float = 0.0
    columns: float = 0.0
    gradients: float = 0.0

    @property
    def layer(self) -> float:
        """The spread of all that a layer keeps without recomputation."""
        return self.kept + 3 * self.columns

    @staticmethod
    def of(cost: Cost) -> "RowSpread":
        """Returns the spread of a job's ranks: none with experts at home, where tokens have all of theirs."""
        model, by_chunks = cost.model, cost.model.mlp_chunk_tokens != WHOLE
        if model.num_experts == 1:
            return RowSpread()
        rows, experts = ExpertRows.of(cost).deviations
        rows = experts if by_chunks else rows  # a row for each of a token's experts there
        if not (rows or experts):
            return RowSpread()
        # A GPU's tokens are the rank's over tp; a rank has the bytes of tp GPUs.
        scale = DEVIATIONS * sqrt(cost.expert_gpus * cost.tp)
        row = model.element_bytes * model.hidden
        shares = model.experts_per_token * model.lse_bytes / cost.tp  # lse_bytes are those of a rank's GPUs together
        return RowSpread(
            scale * rows * (row + shares),
            scale * experts * model.element_bytes * model.ffn_hidden / cost.expert_cut,
            scale * rows * row,
        )
