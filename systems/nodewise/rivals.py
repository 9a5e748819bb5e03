"""Plans of simpler systems, for batches and networks where nodewise's own are no faster.

nodewise shares heads inside nodes and keys between them. Where networks are narrow, sharing heads between nodes, too,
or keeping sequences where they are, may be sooner done, and other systems have such plans. They are planned and played
as a whole training step, parameters and gradients included, only where nodewise's own step is far from the ceiling:
what is between ceiling and bound, gathers and reductions take of any plan like these. Of pipelines they take less, as
these keep a step's parameters; so where that is much, pipelines are planned and played, too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from zbench.cost.bound import bound_seconds, ceiling_seconds
from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.interfaces.protocols import System
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan
from zbench.simulator.simulate import SimulatedAttention, programs
from zbench.systems.common.mesh_groups import Method
from zbench.systems.common.micro_batches import need_bytes
from zbench.systems.flexsp.planner import FlexSP
from zbench.systems.hydraulis.planner import Hydraulis
from zbench.systems.loongtrain import LoongTrain
from zbench.systems.mesh import Mesh
from zbench.systems.nodewise.trial import seconds_of
from zbench.systems.zeppelin.planner import Zeppelin

Plans = tuple[Plan, ...]
# Judgements, to keep planning short: flexsp, loongtrain and meshes were faster from FAR on only, where tried.
NEAR, FAR = 0.96, 0.6  # of the ceiling: a step nearer has no rival worth its planning; one farther has all of them
SHARING = 0.95  # bound over ceiling: below it gathers and reductions cost so much that pipelines are looked at
CLEARLY = 0.95  # of own seconds: pipelines that need more are not worth a change of layout now and then (a guess)
MOST_RANKS = 256  # beyond it rivals take longer to plan than all the rest


@dataclass(slots=True, eq=False)
class Rivals:
    """Holds simpler systems on `cost`; each is made when it is first asked, as some count what every group costs."""

    cost: Cost
    made: dict[str, System] = field(default_factory=dict, repr=False)

    def fastest(self, own: Plans, batch: Batch, predicted: float | None) -> Plans:
        """Returns `own`, or what a simpler system plans where a step of that takes less and fits memory.

        predicted: seconds of a layer of `own`, all its micro-batches together, as trials play them
        (zbench.systems.nodewise.trial); None if it was not played. By them it is known, mostly, that no rival is
        faster; only where one may be are steps played.
        """
        if self.cost.cluster.num_ranks > MOST_RANKS:
            return own
        step = self._step_seconds(own, batch, predicted)
        asked = (_plan_below(rival, batch, predicted) for rival in self.asked(*shares(batch, step, self.cost)))
        found = [plans for plans in asked if plans is not None and self._may_win(plans, own, batch)]
        return min((own, *found), key=lambda plans: self._judged(plans, own, batch)) if found else own

    def _may_win(self, plans: Plans, own: Plans, batch: Batch) -> bool:
        """Whether plans are to be compared: of pipelines those that are ahead by attention's clock alone, which has no
        gathers beside messages, as what tells of `own` has."""
        if plans[0].pipelines is None:
            return True
        mine = SimulatedAttention(self.cost).step(batch, own).seconds
        return self._judged(plans, own, batch)[1] < mine

    def _judged(self, plans: Plans, own: Plans, batch: Batch) -> tuple[bool, float]:
        """Whether plans need more memory than there is, and the seconds that count for their step. Pipelines, and all
        with stages, are played by attention's clock; pipelines with the change from `own`."""
        if plans[0].pipelines is None and self.cost.pp == 1:
            need = max(need_bytes(plan, self.cost) for plan in plans)
            layer = sum(seconds_of(plan, programs(plan, self.cost), self.cost) for plan in plans)
            return need > self.cost.cluster.device.memory_bytes, predicted_seconds(plans, layer, self.cost)
        executor = SimulatedAttention(self.cost)
        if plans[0].pipelines is not None:
            executor.step(batch, own)
        result = executor.step(batch, plans)
        return result.out_of_memory, step_seconds(plans, result)

    def _step_seconds(self, own: Plans, batch: Batch, predicted: float | None) -> float:
        """The seconds of a step of `own`: played where no prediction of them is at hand. With stages, which wait for
        one another, a layer's seconds do not tell."""
        if predicted is None or self.cost.pp > 1:
            return SimulatedAttention(self.cost).step(batch, own).seconds
        return predicted_seconds(own, predicted, self.cost)

    def asked(self, near: float, kept: float) -> Iterator[System]:
        """Makes the systems that may be faster than a step with these `shares`: (near, kept)."""
        if near < NEAR:
            yield self._system("zeppelin", Zeppelin)
        if near < FAR:
            yield self._system("flexsp", FlexSP)
            yield self._system("loongtrain", LoongTrain)
            yield self._system("all-to-alls", lambda cost: _inside(cost, "ulysses"))
            yield self._system("rings", lambda cost: _inside(cost, "ring"))
        if kept < SHARING and self.cost.pipelines:
            yield self._system("hydraulis", Hydraulis)

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


def shares(batch: Batch, step: float, cost: Cost) -> tuple[float, float]:
    """Returns how near the ceiling a step of `step` seconds is, and how near the bound the ceiling is."""
    ceiling = ceiling_seconds(batch, cost, Collectives.of(cost))
    return ceiling / step, bound_seconds(batch, cost) / ceiling


def _inside(cost: Cost, method: Method) -> Mesh:
    """A mesh whose groups are nodes."""
    return Mesh(cost, method, cost.cluster.gpus_per_node, "balanced")


def step_seconds(plans: Plans, result: StepResult) -> float:
    """Returns the seconds that count for a step.

    Pipelines of several kinds are others for every batch and pay for the change; of one kind they may be where they
    were, which a planner does not know, and have to be clearly faster.
    """
    of = plans[0].pipelines
    if of is None or len(set(zip(of.tp.tolist(), of.pp.tolist(), strict=True))) > 1:
        return result.seconds
    return (result.seconds - result.phases["switch"]) / CLEARLY
