"""Costs of a stage of a tp x pp pipeline, and the parameters that pipelines need.

In a stage heads, matmuls and tokens are split over tp ranks as in Megatron-LM's tensor parallelism with sequence
parallelism (Korthikanti et al. 2022, arXiv 2205.05198): a layer gathers [tokens, hidden] before attention and before
the feed-forward and reduces and scatters it behind them, likewise backward, where the inputs are gathered once more,
behind matmuls.

Planners alone ask for these seconds (hydraulis and zbench.simulator.estimate.pipelined); `refusal` and `in_whole_steps`
say to all which pipelines there are. A whole job's own stages are zbench.cost.ranks_of_gpus.
"""

from dataclasses import dataclass, replace

import numpy as np

from zbench.cost import gathers
from zbench.cost.cost import Cost
from zbench.cost.linear import HIDDEN, SHOWN
from zbench.cost.recompute import is_selective
from zbench.describe.arrays import Floats
from zbench.describe.degrees import ShardDegrees
from zbench.describe.links import NIC
from zbench.describe.model import CUT_BY_SLICES, Model
from zbench.describe.units import with_noun
from zbench.plans.pipelines import Pipelines
from zbench.plans.plan import Ints


def refusal(tp: int, pp: int, cost: Cost) -> str:
    """Returns why the cluster and the model can have no pipeline of this shape; "" if they can."""
    model, cluster = cost.model, cost.cluster
    if tp < 1 or pp < 1 or tp * pp > cluster.num_ranks:
        return f"it has to have 1 to {with_noun(cluster.num_ranks, 'rank')}"
    if model.num_heads % tp:
        return f"tp has to divide model.num_heads={model.num_heads}"
    if model.num_kv_heads % tp and tp % model.num_kv_heads:
        return f"tp has to divide model.num_kv_heads={model.num_kv_heads} or be a multiple of it"
    if model.num_layers % pp:
        return f"pp has to divide model.num_layers={model.num_layers}"
    if cluster.gpus_per_node % tp and tp % cluster.gpus_per_node:
        return f"tp has to divide cluster.gpus_per_node={cluster.gpus_per_node} or be a multiple of it"
    return _no_slices(tp, pp, model) if cost.even_slices else ""


def _no_slices(tp: int, pp: int, model: Model) -> str:
    """Returns why whole steps have no pipeline of this shape (zbench.step.passes.side_by_side), "" if they have."""
    for name in CUT_BY_SLICES:
        if getattr(model, name) % tp:
            return f"tp has to divide model.{name}={getattr(model, name)}, of which whole steps cut even slices"
    if model.tied_embeddings and pp > 1 and (model.layers_updated_on_hosts or model.parameters_on_hosts):
        return "model.tied_embeddings is true, and no host updates a table on two stages of one of several pipelines"
    return ""


def in_whole_steps(cost: Cost) -> bool:
    """Returns whether whole steps (zbench.step.passes.side_by_side) have pipelines that a planner chooses: in a job
    without tensor parallelism, stages and sharding by degrees of its own, of a model without experts. Which ones,
    `refusal` says."""
    nested = isinstance(cost.model.sharding, ShardDegrees)
    return cost.model.num_experts == 1 and cost.tp == 1 and cost.pp == 1 and not nested


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage of a tp x pp pipeline on `cost`'s cluster; seconds and bytes of a micro-batch of so many tokens.

    layers: of the stage. heads, kv_heads: of a rank (kv heads fewer than tp are replicated). per_byte, hops: a
    gather of n bytes over the stage's ranks takes per_byte n + hops seconds. nodes: that a stage covers.
    """

    cost: Cost
    tp: int
    pp: int
    layers: int
    heads: int
    kv_heads: int
    per_byte: float
    hops: float
    nodes: int

    @staticmethod
    def of(cost: Cost, tp: int, pp: int) -> "Stage":
        """Works out a stage's constants from a cost model."""
        model, cluster = cost.model, cost.cluster
        nodes = -(-tp // cluster.gpus_per_node)
        gpus = tp // nodes
        own = cluster.part(nodes, gpus, min(cluster.nics_per_node, gpus))
        alone, size = replace(cost, cluster=own), float(1 << 40)
        hops = gathers.hop_seconds(alone) if tp > 1 else 0.0
        per_byte = (gathers.gather_seconds(alone, size) - hops) / size
        kv_heads = max(model.num_kv_heads // tp, 1)
        return Stage(cost, tp, pp, model.num_layers // pp, model.num_heads // tp, kv_heads, per_byte, hops, nodes)

    def hidden_bytes(self, tokens: Floats | Ints) -> Floats:
        """Returns the bytes that the stage's ranks gather together: a hidden state of every token."""
        model = self.cost.model
        return np.asarray(tokens, np.float64) * (model.hidden * model.element_bytes)

    def gather_seconds(self, tokens: Floats | Ints) -> Floats:
        """Returns the seconds of one gather (or reduction) of a layer; 0 without tokens."""
        return self.per_byte * self.hidden_bytes(tokens) + self.hops * (np.asarray(tokens) > 0)

    def nic_seconds(self) -> float:
        """Returns the seconds for which a token's gathers, both ways, in all layers, keep each of the stage's NICs
        busy.

        They are collectives, which have all of a link's channels.
        """
        passing = (self.nodes - 1) / self.nodes / self.cost.cluster.nics_per_node
        size = self.layers * sum(self.gathers()) * passing * self.hidden_bytes(np.array([1]))
        return self.cost.nic_transfer_seconds(float(size[0]))

    def linear_seconds(self, tokens: Ints) -> Floats:
        """Returns the seconds of a layer's linear modules, forward: every rank has 1 / tp of the matmuls and of the
        tokens."""
        return self.cost.linear_seconds(-(-tokens // self.tp), slices=self.tp)

    def gradient_seconds(self, tokens: Ints) -> Floats:
        """Returns the seconds of a layer's linear modules, backward, without anything that is made again."""
        return self.cost.gradient_seconds(-(-tokens // self.tp), self.tp)

    def again_seconds(self, tokens: Ints) -> Floats:
        """Returns the seconds of what selective recomputation runs again in a layer's backward."""
        return self.cost.again_seconds(-(-tokens // self.tp), self.tp)

    def head_seconds(self, tokens: Ints) -> Floats:
        """Returns the seconds of output projection and loss, split over the vocabulary, forward and backward."""
        return np.asarray(self.cost.head_seconds(-(-tokens // self.tp), self.tp), np.float64)

    def hop_seconds(self, tokens: Ints) -> Floats:
        """Returns the seconds of a micro-batch's messages from stage to stage, one way.

        Every rank sends its share of the hidden states to the rank with its place in the next stage, over the slowest
        of the links that those of a stage take; those of a node that are tied to one NIC take turns with it.
        """
        cost, cluster = self.cost, self.cost.cluster
        first = self.tp * np.arange(self.pp)
        ranks = first[:-1, None] + np.arange(self.tp)
        links = cluster.link_of(ranks, ranks + self.tp)
        slowest = cost.transfer_seconds(np.ones(links.shape), links).argmax(axis=1)
        link = np.take_along_axis(links, slowest[:, None], axis=1)[:, 0]
        gpus = min(self.tp, cluster.gpus_per_node)
        nics = np.array([len(np.unique(cluster.nic_of[at : at + gpus])) for at in first[:-1].tolist()])
        sharing = np.where(link == NIC, gpus / np.maximum(nics, 1), 1.0)
        share = self.hidden_bytes(tokens) / self.tp
        together = cost.transfer_seconds(sharing[:, None] * share, link[:, None])
        seconds = np.maximum(together, cost.message_seconds(share[None], link[:, None]))
        return np.asarray((seconds + cost.latency_seconds(link)[:, None]).sum(axis=0), np.float64)

    def pass_seconds(self, tokens: Ints, forward: Floats, backward: Floats) -> tuple[Floats, Floats]:
        """Returns the seconds of a layer, forward and backward, of micro-batches. tokens: int64 [n]. forward, backward:
        float64 [n], of its attention on every rank, without a forward that runs again."""
        again = 1 if self.cost.model.recompute == "full" else 0
        linear, gather = self.linear_seconds(tokens), self.gather_seconds(tokens)
        gathers, gathers_back, _ = self.gathers()
        made_again = again * linear + self.gradient_seconds(tokens)
        back = backward + again * forward + made_again + self.again_seconds(tokens) + gathers_back * gather
        return forward + linear + gathers * gather, back

    def micro_batch_seconds(self, tokens: Ints, layer: Floats) -> Floats:
        """Returns the seconds of micro-batches on a stage, all of its layers and its share of messages. layer: of one
        of them, both passes.

        A micro-batch makes the round of 2 (pp - 1) messages while pp are under way, so each costs that share of its
        own.
        """
        return self.layers * layer + 2 * self.hop_seconds(tokens) / self.pp

    def gathers(self) -> tuple[int, int, int]:
        """Returns the numbers of a layer's gathers, (forward, backward, behind matmuls in the backward); a forward that
        runs again is backward's."""
        again = 1 if self.cost.model.recompute == "full" else 0
        shown = int(is_selective(self.cost.model))  # one of the gathers that were behind matmuls
        return SHOWN, (1 + again) * SHOWN + shown, HIDDEN - shown


def held(pipelines: Pipelines, cost: Cost) -> gathers.Held:
    """Returns the shares of the parameters that ranks and nodes need: their pipelines' stages and shares of tensors."""
    cluster, layers = cost.cluster, cost.model.num_layers
    rank = float((1 / (pipelines.tp * pipelines.pp)).max())
    shares = int(np.lcm.reduce(pipelines.tp))  # those of every pipeline are unions of these
    grid = np.zeros((cluster.num_nodes, layers, shares), bool)
    of, first = pipelines.stages()
    stage = (first - pipelines.lead[of]) // pipelines.tp[of]
    for i, at, s in zip(of.tolist(), first.tolist(), stage.tolist(), strict=True):
        tp, each = int(pipelines.tp[i]), layers // int(pipelines.pp[i])
        for begin in range(at, at + tp, cluster.gpus_per_node):  # the part of a stage that is on one node
            end = min(at + tp, begin + cluster.gpus_per_node)
            lo, hi = (begin - at) * shares // tp, (end - at) * shares // tp
            grid[begin // cluster.gpus_per_node, s * each : (s + 1) * each, lo:hi] = True
    return gathers.Held(rank, grid.mean(axis=(1, 2)))
