"""A price of homes of tokens, for models with experts on several GPUs: the seconds of a step with a batch's plans in
closed form, in a hundredth of the time that playing takes, to choose among homes and not to predict.

Experts begin when the last of their tokens has come. So a layer takes as long as what is computed at home and attention
with its messages take on the rank where that is most, and then what the rank with most to send to experts sends, out
and home again: messages go in turns, in which all wait for the longest. Homes change all of that, and in different
directions (docs/dispatch.md). What is the same with all homes is left out or taken as it is on average.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats
from zbench.describe.batch import Batch
from zbench.describe.links import NIC
from zbench.describe.strategies.step_strategy import StepStrategy
from zbench.plans.area import work
from zbench.plans.plan import TRANSFER, Ops, Plan
from zbench.simulator.estimate.expert_layer import with_messages
from zbench.simulator.estimate.expert_rows import send_seconds
from zbench.step.passes.routing import ExpertParallel

# How often the seconds of a message of attention between nodes are waited for: it meets tokens of other ranks, and
# gathers, on its NICs, on its way there and back. 1, 1.5, 2, 2.5 and 3 were tried on steps that were played
# (docs/dispatch.md, "A price of homes"): from 2.5 on it ranks them best.
NIC_WAITS = 2.5


@dataclass(frozen=True, slots=True)
class HomePrices:
    """Prices homes of plans for a job. cost: of the machine that plans are for; strategy: of its whole steps."""

    cost: Cost
    strategy: StepStrategy

    def seconds(self, batch: Batch, plans: Sequence[Plan]) -> float:
        """Returns the price of a batch's plans, in seconds of all layers."""
        layers, again, found = self.cost.layers, self.cost.again_layers, 0.0
        for plan in plans:
            sent = self.rows_sent(batch, plan)
            found += (layers + again) * self._pass_seconds(plan, plan.forward, sent)
            found += layers * self._pass_seconds(plan, plan.backward, sent)
            found += float(self.cost.head_seconds(plan.tokens_per_rank).max())
        return found

    def _pass_seconds(self, plan: Plan, ops: Ops, sent: Floats) -> float:
        """Returns the seconds of a layer's forward or backward. sent: seconds of each rank's tokens to experts."""
        cost, model = self.cost, self.cost.model
        tokens, exchanged = plan.tokens_per_rank.astype(np.float64), 2 * float(sent.max())
        of_experts = model.experts_per_token * model.ffn_params / model.layer_matmul_params
        linear = cost.gradient_seconds if ops is plan.backward else cost.linear_seconds
        home = (1 - of_experts) * linear(tokens) + self._attention_seconds(plan, ops)
        experts = of_experts * float(linear(np.array([tokens.mean()]))[0])
        together = with_messages(np.array([exchanged]), np.array([experts]), self.strategy.experts.exchanges)
        return float(home.max()) + float(together[0])

    def _attention_seconds(self, plan: Plan, ops: Ops) -> Floats:
        """Returns the seconds of each rank's attention in one list, and of its messages: those inside nodes are beside
        it, those between nodes before it or after it."""
        cost, cluster, ranks = self.cost, self.cost.cluster, plan.num_ranks
        at, amount = work(plan, ops)
        attend = cost.attend_seconds(plan, ops, at, amount, ops is plan.backward)
        computed = np.bincount(ops.src[at], weights=attend, minlength=ranks)
        moved = np.flatnonzero(ops.kind == TRANSFER)
        src, dst, via = ops.src[moved].astype(np.int64), ops.dst[moved].astype(np.int64), ops.via[moved] >= 0
        size, link = cost.message_bytes(plan, ops)[moved], cluster.link_of(src, dst)
        seconds, nic = cost.transfer_seconds(size, link), link == NIC
        near = [np.bincount(end[~nic], weights=seconds[~nic], minlength=ranks) for end in (src, dst)]
        pairs = np.zeros((ranks, ranks))
        direct = nic & ~via
        np.add.at(pairs, (src[direct], dst[direct]), size[direct])
        every, one = cost.transfer_seconds(pairs, NIC), cost.message_seconds(pairs, NIC)
        far = np.zeros(ranks)
        for axis, end in ((1, src), (0, dst)):
            far += np.maximum(every.sum(axis), one.max(axis))  # a peer alone has one channel
            spread = np.bincount(cluster.node_of[end[nic & via]], seconds[nic & via], cluster.num_nodes)
            far += spread[cluster.node_of] / cluster.nics_per_node  # of what is routed, by all NICs of a node
        return np.maximum(computed, np.maximum(*near)) + NIC_WAITS * far

    def rows_sent(self, batch: Batch, plan: Plan) -> Floats:
        """Returns the seconds for which each rank's busiest port sends its tokens to experts once, float64 [ranks]: as
        many as are expected of the law by which experts are drawn."""
        strategy, gpus = self.strategy, self.cost.gpus.cluster
        degrees = strategy.expert_parallel, strategy.expert_tensor_parallel
        how = ExpertParallel.chosen(*degrees, strategy.experts, gpus.gpus_per_node).of(batch)
        return send_seconds(self.cost, how, plan.tokens_per_rank)
