"""The price of a change of pipelines, cheap enough for planners: what moves between two strategies, on the links.

zbench.simulated.switching plays the change itself, a message for each tensor, layers with the same holders and pair of
GPUs, as a step that is built and proven. Here no step is built. A tensor is a line, of which each GPU of a strategy has
intervals; where intervals of both strategies overlap and have different GPUs, that much is a message. Parameters and
their state go together, and norms' gains, a ten thousandth of a layer, are left out. The messages are played by
zbench.simulator.clock, in the order of zbench.step.passes.parameters.switch. State in host memory, and gradients that
wait there for the next step, go with the message where that is to another node, and are nothing elsewhere; links to
hosts carry them and the parameters that they update beside that (zbench.step.passes.parameters.switch_hosts), so a
change takes as long as the slower of both.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from zbench.cost.cost import Cost
from zbench.describe.arrays import Ints
from zbench.describe.degrees import degrees_of
from zbench.describe.model import Model
from zbench.plans.dataflow import Edges
from zbench.plans.pipelines import Layout
from zbench.simulator.clock import Free, run_hops
from zbench.simulator.hop_graph import hop_graph
from zbench.simulator.hops import RX, TX, Hops, num_queues, ports
from zbench.step.elements import PIECES
from zbench.step.passes.memory.at_hosts import HostLayers, OnHosts
from zbench.step.passes.parameters.weights import WHOLE, outer_weights, weight_elements, weights_of_layers
from zbench.step.passes.parameters.zero import GRADIENT_BYTES, MOMENT_BYTES

_NO_EDGES = Edges(np.zeros(0, np.int32), np.zeros(0, np.int32))
_LAYERS, _FIRST, _LAST = "layers", "first stages", "last stages"  # where in pipelines a tensor is


class TensorLine(NamedTuple):
    """A tensor of whole parameters. stages: of pipelines that have it. pieces: in which a slice lies. begin: of its
    elements among `together`, which ordinary shards cut as one."""

    stages: str
    pieces: int
    begin: int
    size: int
    together: int


class Intervals(NamedTuple):
    """The pieces of a line that GPUs have. edges: int64 [intervals + 1]; pipeline, gpu: int64 [copies, intervals], of
    every copy its pipeline, and the GPU if it is on the first stage."""

    edges: Ints
    pipeline: Ints
    gpu: Ints


class ChangeMessages(NamedTuple):
    """The messages of a change, in order, int64 [messages] each. size: bytes; hosted: of these, bytes of state and
    gradients that come from host memory; arriving: those that go there, parameters among them."""

    src: Ints
    dst: Ints
    size: Ints
    hosted: Ints
    arriving: Ints


@dataclass(frozen=True, slots=True, eq=False)
class _Strategy:
    """The pipelines of a layout, each beginning after the one before. ordinary: there are none, and shards are of all
    GPUs. whole: every pipeline keeps all of it, as without ZeRO."""

    lead: Ints
    tp: Ints
    pp: Ints
    ordinary: bool
    whole: bool

    @staticmethod
    def of(layout: Layout, cost: Cost) -> "_Strategy":
        whole = degrees_of(cost.model.sharding).optimizer == 1
        if not layout:
            ranks = np.arange(cost.cluster.num_ranks)
            return _Strategy(ranks, np.ones_like(ranks), np.ones_like(ranks), True, whole)
        lead, tp, pp = (np.array(column, np.int64) for column in layout)
        order = np.argsort(lead)
        return _Strategy(lead[order], tp[order], pp[order], False, whole)

    def intervals(self, line: TensorLine) -> Intervals:
        """Returns who has what of a line."""
        slices, number = int(np.lcm.reduce(self.tp)), len(self.tp)
        share, every, rows = np.arange(slices), np.arange(number), np.arange(line.pieces)
        gpu = self.lead + share[:, None] // (slices // self.tp)  # [slices, pipelines]
        if self.ordinary and not self.whole:
            each = -(-line.together // number)
            cut = np.clip(np.arange(number + 1) * each - line.begin, 0, line.size)
            return Intervals(cut, every[None], gpu)
        piece = line.size // slices // line.pieces
        if self.whole:
            edges = np.arange(line.pieces * slices + 1) * piece
            holds = np.tile(gpu.T, line.pieces)
            return Intervals(edges, np.repeat(every[:, None], holds.shape[1], axis=1), holds)
        cut = np.cumsum(self.tp * self.pp) * (line.pieces * piece) // int(self.tp @ self.pp)
        ends = np.clip(cut - rows[:, None] * piece, 0, piece)[:, None]  # [pieces, 1, pipelines]
        edges = ((rows[:, None] * slices + share) * piece)[:, :, None] + ends
        holds = np.tile(gpu.reshape(-1), line.pieces)
        return Intervals(np.append(0, edges), np.tile(every, line.pieces * slices)[None], holds[None])

    def stage_starts(self, stages: str, layer: int, layers: int) -> Ints:
        """Returns how many GPUs after its first one each pipeline has a tensor: a layer's, or one of other stages."""
        at = {_LAYERS: layer * self.pp // layers, _FIRST: 0 * self.pp, _LAST: self.pp - 1}[stages]
        return np.asarray(at * self.tp, np.int64)


@dataclass(slots=True, eq=False)
class ChangePrices:
    """The seconds of changes on `cost`, of each pair of strategies once."""

    cost: Cost
    known: dict[tuple[Layout, Layout], float] = field(default_factory=dict, repr=False)

    def seconds(self, before: Layout, after: Layout) -> float:
        """Returns the seconds in which parameters and optimizer state get from where `before` leaves them to where
        `after` wants them. (): of plans without pipelines."""
        if before == after:
            return 0.0
        if (before, after) not in self.known:
            self.known[before, after] = _played(self.moves(before, after), self.cost)
        return self.known[before, after]

    def moves(self, before: Layout, after: Layout) -> ChangeMessages:
        """Returns the messages of a change."""
        one, other = (_Strategy.of(layout, self.cost) for layout in (before, after))
        model, cluster, found = self.cost.model, self.cost.cluster, list[ChangeMessages]()
        for line in _lines(model):
            both = one.intervals(line), other.intervals(line)
            for layers, kind in _kinds(line.stages, model):
                on_hosts, state = kind.state, MOMENT_BYTES + GRADIENT_BYTES * kind.gradients
                for starts, count in _places(one, other, line.stages, layers, model.num_layers):
                    sent = _sent(*both, starts, cluster.num_ranks)
                    across = on_hosts & (cluster.node_of[sent.src] != cluster.node_of[sent.dst])
                    elements = sent.size * count
                    params, hosted = elements * model.element_bytes, elements * state * across
                    size = params + elements * (0 if on_hosts else MOMENT_BYTES) + hosted
                    found.append(sent._replace(size=size, hosted=hosted, arriving=hosted + params * across))
        return ChangeMessages(*(np.concatenate(column) for column in zip(*found, strict=True)))


def _kinds(stages: str, model: Model) -> list[tuple[Sequence[int], OnHosts]]:
    """Lists layers, and what of their optimizer state and gradients is in host memory; of what is of no layer, one."""
    resting = HostLayers(model.num_layers, model.layers_updated_on_hosts, carried=model.layers_carried)
    if stages != _LAYERS:
        return [(range(1), resting.outside(stages == _LAST))]
    kinds: dict[OnHosts, list[int]] = defaultdict(list)
    for layer in range(model.num_layers):
        kinds[resting.of_layer(layer)].append(layer)
    return [(layers, kind) for kind, layers in kinds.items()]


def _lines(model: Model) -> list[TensorLine]:
    """Lists the tensors in the order of their names."""
    elements, found = weight_elements(model), list[tuple[str, TensorLine]]()
    for names, of_layers in ((weights_of_layers(model), True), (outer_weights(model.kind_of_head), False)):
        names = tuple(name for name in names if name not in WHOLE)
        begin, together = 0, sum(elements[name] for name in names)
        for name in names:
            stages = _LAYERS if of_layers else _FIRST if name == "we" else _LAST
            found.append((name, TensorLine(stages, PIECES.get(name, 1), begin, elements[name], together)))
            begin += elements[name]
    return [line for _, line in sorted(found, key=lambda one: one[0])]


def _places(
    one: _Strategy, other: _Strategy, stages: str, which: Sequence[int], layers: int
) -> list[tuple[tuple[Ints, Ints], int]]:
    """Lists (of both strategies how far from their first stages pipelines have it, for how many layers). which: the
    layers that it is for."""
    alike: dict[bytes, tuple[tuple[Ints, Ints], int]] = {}
    for layer in which:
        starts = one.stage_starts(stages, layer, layers), other.stage_starts(stages, layer, layers)
        key = starts[0].tobytes() + starts[1].tobytes()
        alike[key] = starts, 1 + (alike[key][1] if key in alike else 0)
    return list(alike.values())


def _sent(has: Intervals, wants: Intervals, starts: tuple[Ints, Ints], ranks: int) -> ChangeMessages:
    """Returns the messages of a line, in turns: first those to the next GPU, then those to the one after that. size: of
    elements. Of several copies GPU p asks number p, counted round."""
    edges = np.union1d(has.edges, wants.edges)
    edges = edges[edges <= min(has.edges[-1], wants.edges[-1])]  # where slices are not even they end before the line
    here = np.searchsorted(has.edges, edges[:-1], side="right") - 1
    there = np.searchsorted(wants.edges, edges[:-1], side="right") - 1
    src = (has.gpu + starts[0][has.pipeline])[:, here]
    dst = (wants.gpu + starts[1][wants.pipeline])[:, there]
    asked = np.take_along_axis(src, dst % len(src), axis=0)
    lacks = (src[:, None] != dst).all(axis=0)
    pairs, which = np.unique((asked * ranks + dst)[lacks], return_inverse=True)
    size = np.bincount(which, np.broadcast_to(np.diff(edges), dst.shape)[lacks], len(pairs)).astype(np.int64)
    src, dst = np.divmod(pairs, ranks)
    order = np.lexsort((src, (dst - src) % ranks))
    return ChangeMessages(src[order], dst[order], size[order], 0 * order, 0 * order)


def _played(moves: ChangeMessages, cost: Cost) -> float:
    """Returns the seconds of messages on their links, each GPU's in order."""
    count, cluster = len(moves.src), cost.cluster
    if not count:
        return 0.0
    link, queues, none = cluster.link_of(moves.src, moves.dst), num_queues(cluster), np.full(count, -1)
    port, channels = ports(cluster), np.array([one.channels for one in cluster.links])[link]
    parts = Hops(
        op=np.arange(count),
        rank=moves.src,
        queue_a=moves.src * queues + 4 * link + TX,
        queue_b=moves.dst * queues + 4 * link + RX,
        link_a=port[link, moves.src],
        link_b=port[link, moves.dst] + 1,
        link_class=link,
        bytes=moves.size,
        channels=channels,
        whole=channels == 1,
        after=none,
        first=np.arange(count + 1),
        last=np.ones(count, bool),
        queues=queues,
    )
    graph = hop_graph(parts, cost.message_seconds(moves.size, link), cost.latency_seconds(link), _NO_EDGES)
    done = float(run_hops(graph, np.zeros(cluster.num_ranks), Free.zero(cluster)).done.max())
    return max(done, _host_seconds(moves, cost))


def _host_seconds(moves: ChangeMessages, cost: Cost) -> float:
    """Returns the seconds in which links to hosts carry state and gradients, away from there and to there, with the
    parameters that hosts get with these."""
    if cost.cluster.host is None or not moves.hosted.any():
        return 0.0
    ways = (moves.src, moves.hosted), (moves.dst, moves.arriving)
    size = np.array([max(np.bincount(at, sizes, cost.cluster.num_ranks).max() for at, sizes in ways)])
    return float(cost.message_seconds(size, np.array([cost.cluster.host]))[0])
