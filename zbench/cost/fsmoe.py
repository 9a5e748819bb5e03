"""FSMoE's closed form: seconds of a layer of experts by chunks, the best number of chunks, and where gradients go.

FSMoE (ASPLOS 2025, arXiv 2501.10714) has experts across nodes and each of them cut over the GPUs of one: a chunk of
tokens goes by an all-to-all across nodes, is gathered inside the node, computed, reduced there and sent back. Its seven
cases of what a layer waits for are the largest of four sums, which is what is here; its public planner
(github xpan413/FSMoE, tools/optim.py, read for its facts) solves each case by itself.

Pure arithmetic, of seconds that somebody measured or a profile says (zbench.simulated.expert_degrees).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from zbench.describe.expert_schedule import DEGREES

SHORT_EXCHANGE = 1e-3  # seconds of an exchange below which FSMoE's planner does not cut it
_UNITS = 128  # in which what is left of a gradient is divided


@dataclass(frozen=True, slots=True)
class LinearSeconds:
    """Seconds that grow linearly with work. start: of anything, however small; work: of all there is, beside that."""

    start: float
    work: float

    def of_chunk(self, degree: int) -> float:
        """Returns the seconds of one of `degree` equal chunks."""
        return self.start + self.work / degree

    def times(self, factor: float) -> "LinearSeconds":
        """Returns both seconds times a factor."""
        return LinearSeconds(factor * self.start, factor * self.work)


NOTHING = LinearSeconds(0.0, 0.0)


@dataclass(frozen=True, slots=True)
class ExpertLayerSeconds:
    """The seconds of the parts of a layer of experts.

    exchange: of an all-to-all across nodes, there or back. gather, reduce: of what is brought together in a node before
    experts and after them. experts: of their matmuls.
    """

    exchange: LinearSeconds
    experts: LinearSeconds
    gather: LinearSeconds = NOTHING
    reduce: LinearSeconds = NOTHING

    def backward(self) -> "ExpertLayerSeconds":
        """Returns the same of a backward, in which experts have twice the matmuls."""
        return ExpertLayerSeconds(self.exchange, self.experts.times(2), self.gather, self.reduce)

    def makespan(self, degree: int, reduced: float = 0.0) -> float:
        """Returns the seconds of the layer with its tokens in `degree` chunks. reduced: of gradients on the links of
        exchanges meanwhile."""
        exchange, inside = self.exchange.of_chunk(degree), self._inside(degree)
        return max(
            2 * degree * exchange + reduced,
            2 * exchange + inside + degree * self.experts.of_chunk(degree),
            2 * degree * exchange + inside,
            2 * exchange + degree * inside,
        )

    def best_degree(self, reduced: float = 0.0) -> int:
        """Returns the number of chunks with which the layer takes least, the smaller of two that take the same."""
        return min(DEGREES, key=lambda degree: (self.makespan(degree, reduced), degree))

    def is_short(self) -> bool:
        """Returns whether an exchange is too short to be cut, by the rule of FSMoE's planner."""
        return self.exchange.of_chunk(1) < SHORT_EXCHANGE

    def slack(self, degree: int) -> float:
        """Returns for how long gradients may be on the exchanges' links in the layer without making it longer."""
        exchange, inside, experts = self.exchange.of_chunk(degree), self._inside(degree), self.experts.of_chunk(degree)
        between = 2 * (degree - 1) * exchange
        if self.gather.of_chunk(degree) > self.exchange.of_chunk(degree):
            return degree * inside - between + max(0.0, degree * experts - (degree - 1) * inside)
        return inside + max(0.0, degree * experts - between)

    def _inside(self, degree: int) -> float:
        return self.gather.of_chunk(degree) + self.reduce.of_chunk(degree)


def unhidden_gradients(sizes: Sequence[float], slacks: Sequence[float], reduction: LinearSeconds) -> list[float]:
    """Returns what of gradients no slack hides, by the layer that made it: the first step of FSMoE's partition.

    sizes: of the gradients that become ready with each layer, in a backward's order; slacks: seconds of each in which
    reductions are hidden; reduction: seconds of a reduction of size 1 (work) and what any takes (start). A gradient
    that is larger than its layer's slack fills it, and the rest waits; a layer with slack to spare takes what waits,
    what came last first.
    """
    left = [0.0] * len(sizes)
    for at, (size, slack) in enumerate(zip(sizes, slacks, strict=True)):
        room = slack
        for other in range(at, -1, -1):
            wanted = size if other == at else left[other]
            some = min(wanted, max(0.0, room - reduction.start) / reduction.work)
            left[other] = wanted - some
            room -= reduction.start + some * reduction.work if some else 0.0
    return left


def gradient_shares(
    layer: ExpertLayerSeconds, degree: int, gradient: float, dense: float, reduction: LinearSeconds
) -> tuple[float, float]:
    """Returns how much of a layer's gradient is reduced beside experts and beside what is dense, by both steps of
    FSMoE's partition, where all layers are alike and each does the same: what is over is reduced after them.

    layer: of the backward, in `degree` chunks. gradient: the size of each layer's; dense: seconds of a layer's dense
    part in which reductions are hidden. reduction: as of `unhidden_gradients`.
    """
    slacks = [dense, layer.slack(degree)]
    left = unhidden_gradients([gradient, 0.0], slacks, reduction)[0]
    beside = gradient - unhidden_gradients([gradient], slacks[:1], reduction)[0]
    hidden = gradient - beside - left

    def seconds(more: float) -> float:
        inside = hidden + more
        reduced = reduction.start + reduction.work * inside if inside else 0.0
        return layer.makespan(degree, reduced) + reduction.work * (left - more)

    more = min((left * part / _UNITS for part in range(_UNITS + 1)), key=lambda one: (seconds(one), -one))
    return hidden + more, beside
