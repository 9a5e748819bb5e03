"""Plans of simpler systems, for batches and networks where nodewise's own are no faster.

nodewise shares heads inside nodes and keys between them. Where networks are narrow, sharing heads between nodes, too,
or keeping sequences where they are, may be sooner done, and other systems have such plans. They are planned and played
as a whole training step, parameters and gradients included, only where nodewise's own step is far from the ceiling:
what is between ceiling and bound, gathers and reductions take of any plan like these. Of pipelines they take less, as
these keep a step's parameters; so where that is much, pipelines are planned and played, too.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.interfaces.protocols import System
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan
from zbench.simulator.simulate import Simulated
from zbench.systems.common.mesh_groups import Method
from zbench.systems.flexsp.planner import FlexSP
from zbench.systems.hydraulis.planner import Hydraulis
from zbench.systems.loongtrain import LoongTrain
from zbench.systems.mesh import Mesh
from zbench.systems.zeppelin.planner import Zeppelin

Plans = tuple[Plan, ...]
# Judgements, to keep planning short: flexsp, loongtrain and meshes were faster from FAR on only, where tried.
NEAR, FAR = 0.96, 0.86  # of the ceiling: a step nearer has no rival worth its planning; one farther has all of them
SHARING = 0.95  # bound over ceiling: below it gathers and reductions cost so much that pipelines are looked at
CLEARLY = 0.95  # of own seconds: pipelines that need more are not worth a change of layout now and then (a guess)
MOST_RANKS = 256  # beyond it rivals take longer to plan than all the rest


@dataclass(slots=True, eq=False)
class Rivals:
    """Holds simpler systems on `cost`; each is made when it is first asked, as some count what every group costs."""

    cost: Cost
    made: dict[str, System] = field(default_factory=dict, repr=False)

    def fastest(self, own: Plans, batch: Batch) -> Plans:
        """Returns `own`, or what a simpler system plans where a step of that takes less and fits memory."""
        if self.cost.cluster.num_ranks > MOST_RANKS:
            return own
        executor = Simulated(self.cost)
        result = executor.step(batch, own)
        best, least = own, (result.out_of_memory, result.seconds)
        for rival in self.asked(*shares(result)):
            plans = rival.plan(batch)
            result = executor.step(batch, plans)  # of pipelines with the change from ranks that work each for itself
            seconds = step_seconds(plans, result)
            if (result.out_of_memory, seconds) < least:
                best, least = plans, (result.out_of_memory, seconds)
        return best

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


def shares(result: StepResult) -> tuple[float, float]:
    """Returns how near the ceiling a step is, and how near the bound the ceiling is."""
    assert result.ceiling_seconds is not None, "a simulated step has a ceiling"
    return result.ceiling_seconds / result.seconds, result.bound_seconds / result.ceiling_seconds


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
