"""A layer whose experts are on several GPUs, as planners play it: what of it goes with a token's home, and where ranks
meet.

Projections, router and shared experts are computed where tokens live, and so is what is sent to experts. Rows of
experts are equal by routing, wherever their tokens live, on all GPUs that hold the experts together; these begin when
the last of them has sent, and tokens come home when the last is done. A rank sends as soon as it is ready, and goes on
when its own tokens are home: so a layer takes as long as what attention, home and the way to experts take together on
the rank where that is most, then experts, and then every rank its own way home.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats, Ints
from zbench.describe.expert_schedule import AUTO, ExpertSchedule
from zbench.simulator.estimate.expert_rows import send_seconds
from zbench.step.passes.routing import ExpertParallel

OPEN_CHUNKS = 2  # of tokens to experts where a schedule chooses: a guess


class RoutedSeconds(NamedTuple):
    """Seconds of a layer's forward on every rank, float64 [ranks] each.

    before: modules before attention, of a rank's own tokens. after: those behind it, without experts. out: the way of
    its tokens to experts, and as much home. experts: their matmuls. again: of these, what selective recomputation runs
    again.
    """

    before: Floats
    after: Floats
    out: Floats
    experts: Floats
    again: Floats


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """The layers of a job whose experts are on several GPUs. how: where experts are, and how tokens choose them; ranks:
    so many that follow one another hold all experts together."""

    cost: Cost
    how: ExpertParallel
    ranks: int

    @staticmethod
    def of(cost: Cost) -> "ExpertLayer | None":
        """Returns the layers of a job; None where tokens have all experts at home. Popularity that drifts is that of
        the first step where the job is of no step in particular."""
        ranks = cost.expert_gpus // cost.tp
        if cost.model.num_experts == 1 or ranks <= 1:
            return None
        degrees = cost.expert_gpus // cost.expert_cut, cost.expert_cut
        how = ExpertParallel.chosen(*degrees, cost.experts, cost.gpus.cluster.gpus_per_node)
        seed, step = cost.draw
        return ExpertLayer(cost, replace(how, seed=seed, step=step or 0), ranks)

    @property
    def home_share(self) -> float:
        """The share of a layer's linear modules that is computed at home."""
        return 1 - self.cost.model.experts_per_token * self.cost.model.ffn_params / self.cost.model.layer_matmul_params

    def seconds(self, tokens: Ints | Floats, projected: float) -> RoutedSeconds:
        """Returns the seconds of a layer. tokens: [ranks], at home on each; projected: the share of linear modules that
        is before attention."""
        linear, mean = self.cost.linear_seconds(tokens), self.mean(np.asarray(tokens, np.float64))
        return RoutedSeconds(
            before=projected * linear,
            after=(self.home_share - projected) * linear,
            out=send_seconds(self.cost, self.how, tokens),
            experts=(1 - self.home_share) * self.cost.linear_seconds(mean),
            again=self.cost.again_seconds(mean),
        )

    def busy_seconds(self, tokens: Ints | Floats) -> Floats:
        """Returns the seconds that every rank computes and sends to experts in a layer, forward and backward, beside
        attention and without recomputation, float64 [ranks]."""
        home, mean = self.home_share * self.cost.linear_seconds(tokens), self.mean(np.asarray(tokens, np.float64))
        experts = (1 - self.home_share) * self.cost.linear_seconds(mean)
        return np.asarray(3 * (home + experts) + 4 * send_seconds(self.cost, self.how, tokens), np.float64)

    def least_exchange(self, tokens: float) -> float:
        """Returns the seconds for which a layer's tokens are on their way to experts and home, forward and backward,
        where every rank has so many."""
        even = np.full(self.cost.cluster.num_ranks, tokens)
        return 4 * float(send_seconds(self.cost, self.how, even).max())

    def most(self, each: Floats) -> Floats:
        """Returns, for every rank, the most of any that it holds experts with."""
        return np.repeat(each.reshape(-1, self.ranks).max(axis=1), self.ranks)

    def mean(self, each: Floats) -> Floats:
        """Returns, for every rank, the mean of those that it holds experts with."""
        return np.repeat(each.reshape(-1, self.ranks).mean(axis=1), self.ranks)

    def exchange(self, out: Floats, experts: Floats) -> Floats:
        """Returns the seconds from when all tokens of a rank's group are ready to when all are home again. out: the way
        of every rank's tokens to experts."""
        return with_messages(2 * self.most(out), experts, self.cost.experts.exchanges)


def with_messages(exchanged: Floats, experts: Floats, schedule: ExpertSchedule) -> Floats:
    """Returns the seconds of messages to experts and home, `exchanged`, and of experts' matmuls, as a schedule has
    them: chunks hide matmuls behind messages, or these behind matmuls, but for the first and the last one."""
    chunks = OPEN_CHUNKS if schedule.is_open and schedule.degree == AUTO else schedule.chunks.forward
    return np.maximum(exchanged + experts / chunks, exchanged / chunks + experts)
