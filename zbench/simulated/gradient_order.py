"""The pieces in which a layer's gradients are reduced between experts' messages, and how many go where.

Lina's are of one size, and one begins wherever no experts' message is on its way, until the next message does; which
ones that are is only known when it runs, and a plan has an order, so it is told from a profile here. FSMoE divides
seconds by its closed form (zbench.cost.fsmoe); its shares are eighths here.
"""

from dataclasses import dataclass
from math import ceil, lcm

from zbench.cost.fsmoe import ExpertLayerSeconds, LinearSeconds, gradient_shares
from zbench.describe.expert_schedule import FSMOE, LINA, MOST_PIECES, ExpertSchedule, GradientPieces
from zbench.simulator.steps.least.traffic import LAYER, StepTraffic
from zbench.step.passes.parameters.zero import GRADIENT_BYTES, ShardedParameters

LINA_PIECE_BYTES = 30e6  # of gradients on a GPU: as FSMoE's authors have it for Lina (arXiv 2501.10714, section 6.4)
_EIGHTHS = 8  # a judgement: each one more is a cell more of every parameter on every GPU
# Shares among which whoever plays steps looks: all of it between messages, more and less of it inside.
EVERY_SHARE = tuple(GradientPieces(_EIGHTHS, inside, _EIGHTHS - inside, apart=False) for inside in range(0, 9, 2))


@dataclass(frozen=True, slots=True)
class GradientSeconds:
    """The gradients of a layer in the micro-batch that reduces them.

    seconds: in which their reduction is on the busiest NIC; start: of any reduction. dense: seconds of a layer's
    backward without experts, in which it is hidden. size: bytes of them on a GPU.
    """

    seconds: float
    start: float
    dense: float
    size: float

    @staticmethod
    def of(traffic: StepTraffic, dense: float) -> "GradientSeconds":
        """Returns the seconds of a step's gradients. dense: of all of a layer's backward but experts, some of which is
        there to hide gathers of parameters."""
        nics = traffic.cost.cluster.num_nics
        reduced, gathered = traffic.reduce(LAYER), traffic.gather_again(LAYER)
        seconds, others = (float(one.ports[:, :nics].sum(axis=0).max(initial=0.0)) for one in (reduced, gathered))
        start, size = float(reduced.latency.max(initial=0.0)), _gradient_bytes(traffic.of)
        return GradientSeconds(seconds, start, max(0.0, dense - others), size)

    def in_fixed_pieces(self, slack: float) -> GradientPieces:
        """Returns pieces of one size, each a message. slack: seconds in which no experts' message is on its way while
        tokens are with their experts; the last piece that begins then goes on."""
        count = _fixed_pieces(self.size)
        each = max(self.seconds / count, self.start)
        inside = min(count, ceil(slack / each)) if each else count
        beside = min(count - inside, ceil(self.dense / each)) if each else 0
        return GradientPieces(count, inside, beside)

    def shares(self, layer: ExpertLayerSeconds, degree: int) -> tuple[float, float]:
        """Returns the shares of gradients that are reduced beside experts and beside attention, by FSMoE's partition.
        layer: of the backward, in `degree` chunks."""
        if not self.seconds:
            return 0.0, 1.0
        return gradient_shares(layer, degree, 1.0, self.dense, LinearSeconds(self.start, self.seconds))

    def pieces(self, inside: float, beside: float) -> GradientPieces:
        """Returns shares as pieces, those of one place a message together."""
        first = round(_EIGHTHS * inside)
        return GradientPieces(_EIGHTHS, first, min(round(_EIGHTHS * beside), _EIGHTHS - first), apart=False)


def common_pieces(schedule: ExpertSchedule, parameters: ShardedParameters) -> int:
    """Returns the least number that every number of pieces divides which a schedule may choose for a batch: workers
    that train apart cut their parameters in as many, so that they have the same cells whatever each of them chooses."""
    if not schedule.reduces_between:
        return 1
    fixed = _fixed_pieces(_gradient_bytes(parameters))
    return {LINA: fixed, FSMOE: _EIGHTHS}.get(schedule.name, lcm(fixed, _EIGHTHS))


def _gradient_bytes(parameters: ShardedParameters) -> float:
    """Returns the bytes of a layer's gradients on a GPU."""
    return float(parameters.layer_elements * max(GRADIENT_BYTES, parameters.model.element_bytes))


def _fixed_pieces(size: float) -> int:
    """Returns in how many pieces of Lina's size so many bytes are."""
    return min(max(1, ceil(size / LINA_PIECE_BYTES)), MOST_PIECES)
