"""Plans of simpler systems, for batches and networks where nodewise's own are no faster.

nodewise shares heads inside nodes and keys between them. Where networks are narrow, sharing heads between nodes, too,
or keeping sequences where they are, may be sooner done, and other systems have such plans. They are planned and played
as a whole training step, parameters and gradients included, only where nodewise's own step is far from the ceiling:
what is between ceiling and bound, gathers and reductions take of any plan like these. Of pipelines they take less, as
these keep a step's parameters. But from other plans to pipelines all parameters and optimizer state move, which takes
as long as a step where networks are narrow, and a planner sees one batch: so what is usual is settled before a run, by
batches like the run's (`system.rival_pipelines`), or else a matter of the network. Where pipelines are usual, a batch
is planned otherwise only where it gains the way there and back.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np

from zbench.cost.bound import ceiling_seconds
from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.cost.expert_gathers import expert_collectives
from zbench.describe.batch import Batch
from zbench.interfaces.protocols import System
from zbench.plans.plan import Plan
from zbench.simulator.estimate.expert_layer import ExpertLayer
from zbench.simulator.estimate.step import StepEstimate
from zbench.systems.common.mesh_groups import Method
from zbench.systems.common.micro_batches import need_bytes
from zbench.systems.flexsp.planner import FlexSP
from zbench.systems.hydraulis.planner import Hydraulis
from zbench.systems.loongtrain import LoongTrain
from zbench.systems.mesh import Mesh
from zbench.systems.nodewise.trial import seconds_of_all
from zbench.systems.zeppelin.planner import Zeppelin

Plans = tuple[Plan, ...]
# Judgements, to keep planning short: loongtrain and meshes were faster from FAR on only, where tried, and so was flexsp
# but on MANY_RANKS and more (docs/planner.md).
NEAR, FAR = 0.96, 0.6  # of the ceiling: a step nearer has no rival worth its planning; one farther has all of them
MANY_RANKS, FAR_OF_MANY = 256, 0.75  # ranks, and what FAR is for flexsp on so many
# Linear modules' seconds over those of gathers and reductions. Below it a network is one of pipelines: a judgement, by
# the mean of eight batches in 30 cells (docs/planner.md); lengths have no part in it, so that batches agree.
COVERED = 0.5
EITHER = 0.75  # below it a run settles by its lengths; at 0.94 no pipelines were faster on six batches
MOST_RANKS = 256  # beyond it rivals but flexsp take longer to plan than all the rest
NEVER, USUAL = "never", "usual"  # what `system.rival_pipelines` takes


@dataclass(slots=True, eq=False)
class Rivals:
    """Holds simpler systems on `cost`; each is made when it is first asked, as some count what every group costs.

    settled: whether batches are pipelines, USUAL or NEVER; None: USUAL on a network of these (`narrow`), else NEVER.
    routed: experts on several GPUs, with which plans are compared; None: as if all of a layer were at home.
    """

    cost: Cost
    settled: str | None = None
    routed: ExpertLayer | None = None
    made: dict[str, System] = field(default_factory=dict, repr=False)
    made_pipelines: Hydraulis | None = field(default=None, repr=False)

    def fastest(self, own: Plans, batch: Batch, predicted: float | None) -> Plans:
        """Returns `own`, or what a simpler system plans where a step of that takes less and fits memory.

        predicted: seconds of a layer of `own`, all its micro-batches together, as trials play them
        (zbench.systems.nodewise.trial); None if it was not played. By them it is known, mostly, that no rival is
        faster; only where one may be are steps played.
        """
        even = self._even(own, batch, predicted)
        usual = self.settled or (USUAL if narrow(batch.num_tokens, self.cost) else NEVER)
        return even if usual == NEVER or not self.cost.pipelines else self._unusual_or_pipelines(even, batch)

    def _even(self, own: Plans, batch: Batch, predicted: float | None) -> Plans:
        """Returns `own`, or what a system without pipelines plans where a step of that takes less."""
        step = self._step_seconds(own, predicted)
        below = predicted if self.routed is None else None  # zeppelin's estimate has all of a layer at home
        near = nearness(batch, step, self.cost, self.routed)
        asked = (_plan_below(rival, batch, below) for rival in self.asked(near))
        found = [plans for plans in asked if plans is not None]
        return min((own, *found), key=self._judged) if found else own

    def _unusual_or_pipelines(self, even: Plans, batch: Batch) -> Plans:
        """Returns pipelines, unless a step of `even` shards and the way there and back take less. Both are told by
        planners' estimate, which has no gathers beside messages."""
        system, estimate = self.pipelines(), StepEstimate(self.cost)
        plans = system.plan(batch)
        change, layout = system.prices.seconds, plans[0].pipelines.layout if plans[0].pipelines else ()
        seconds = estimate.seconds(plans) + change(system.usual, layout)
        leaving = estimate.seconds(even) + change(system.usual, ()) + change((), system.usual)
        return plans if (not estimate.fits(batch, plans), seconds) < (not estimate.fits(batch, even), leaving) else even

    def _judged(self, plans: Plans) -> tuple[bool, float]:
        """Whether plans need more memory than there is, and the seconds of their step. Those of jobs with stages are
        planners' estimate, which has the collectives of ZeRO-1 once a step."""
        lacks = max(need_bytes(plan, self.cost) for plan in plans) > self.cost.cluster.device.memory_bytes
        if self.cost.pp > 1:
            return lacks, StepEstimate(self.cost).seconds(plans)
        return lacks, predicted_seconds(plans, seconds_of_all(plans, self.cost, self.routed), self.cost)

    def _step_seconds(self, own: Plans, predicted: float | None) -> float:
        """The seconds of a step of `own`: played where no prediction of them is at hand. With stages, which wait for
        one another, a layer's seconds do not tell."""
        if predicted is None or self.cost.pp > 1:
            return StepEstimate(self.cost).seconds(own)
        return predicted_seconds(own, predicted, self.cost)

    def asked(self, near: float) -> Iterator[System]:
        """Makes the systems that may be faster than a step so near the ceiling."""
        ranks = self.cost.cluster.num_ranks
        if near < NEAR and ranks <= MOST_RANKS:
            yield self._system("zeppelin", Zeppelin)
        if near < (FAR_OF_MANY if ranks >= MANY_RANKS else FAR):
            yield self._system("flexsp", FlexSP)
        if near < FAR and ranks <= MOST_RANKS:
            yield self._system("loongtrain", LoongTrain)
            yield self._system("all-to-alls", lambda cost: _inside(cost, "ulysses"))
            yield self._system("rings", lambda cost: _inside(cost, "ring"))

    def pipelines(self) -> Hydraulis:
        """Makes the system whose plans are pipelines."""
        if self.made_pipelines is None:
            self.made_pipelines = Hydraulis(self.cost)
        return self.made_pipelines

    def _system(self, name: str, make: Callable[[Cost], System]) -> System:
        if name not in self.made:
            self.made[name] = make(self.cost)
        return self.made[name]


def _plan_below(rival: System, batch: Batch, predicted: float | None) -> Plans | None:
    """What a rival plans, if need be; None where it says that no layer of that takes less than `predicted` seconds."""
    if predicted is not None and isinstance(rival, Zeppelin):
        return rival.plan_below(batch, predicted)
    return rival.plan(batch)


def predicted_seconds(plans: Plans, layer: float, cost: Cost) -> float:
    """Returns the seconds of a step of `plans`. layer: of a layer in all micro-batches together."""
    head = sum(float(cost.head_seconds(plan.tokens_per_rank).max()) for plan in plans)
    return cost.layers * layer + head + cost.optimizer_seconds()


def nearness(batch: Batch, step: float, cost: Cost, routed: ExpertLayer | None = None) -> float:
    """Returns the ceiling over a step of `step` seconds; with experts on several GPUs (routed), what tokens are on
    their way there at least is added to it."""
    if routed is None:
        return ceiling_seconds(batch, cost, Collectives.of(cost)) / step
    sent = cost.layers * routed.least_exchange(batch.num_tokens / cost.cluster.num_ranks)
    return (ceiling_seconds(batch, cost, expert_collectives(cost)) + sent) / step


def narrow(tokens: int, cost: Cost, below: float = COVERED) -> bool:
    """Returns whether pipelines may be worth their changes on a network, with batches of so many tokens."""
    return cost.cluster.num_ranks <= MOST_RANKS and covered(tokens, cost) < below


def covered(tokens: int, cost: Cost) -> float:
    """Returns the seconds of a batch's linear modules over those of the gathers and reductions of a micro-batch."""
    of, even = Collectives.of(cost), np.array([tokens / cost.cluster.num_ranks])
    moving = of.gather * (of.every_step + of.every_micro_batch) + of.reduce
    return float(cost.linear_seconds(even)[0]) * cost.layers * of.passes / moving if moving else np.inf


def _inside(cost: Cost, method: Method) -> Mesh:
    """A mesh whose groups are nodes."""
    return Mesh(cost, method, cost.cluster.gpus_per_node, "balanced")
