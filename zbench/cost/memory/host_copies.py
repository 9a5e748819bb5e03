"""Seconds that a layer waits for its copies to and from host memory: what planners have of links to hosts.

A forward sends what the layer before keeps, a backward brings what the layer before needs, beside what is computed, and
a layer begins when the copies of the one two before it are done (zbench.simulator.steps.dataflow.host_copies). So each
takes as long as what it computes, or as the busier direction of its GPU's link: bytes over what the link reaches. Over
the same link come parameters that rest on hosts or were updated there, of each rank its share. Gradients go the other
way, and nothing waits for them but the end of a step (zbench.simulated.host_layers). Docs/cost.md derives it. Layers'
kinds are means: of so many of a stage's layers, as if spread evenly.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from zbench.cost.cost import Cost
from zbench.cost.job import of_parts
from zbench.cost.memory.copies import kept_bytes
from zbench.cost.memory.fewest import least_shares, with_fewest
from zbench.cost.memory.layer_bytes import layer_kept_bytes
from zbench.cost.memory.shares import shares_of_ranks
from zbench.cost.stage import Stage
from zbench.describe.arrays import Floats
from zbench.describe.checks import FEWEST
from zbench.describe.degrees import WORLD, degrees_of
from zbench.plans.plan import Ints, Plan

MANY = 1 << 20  # tokens beside which a start is nothing


class LayerCopies(NamedTuple):
    """Copies of a layer of one pass. kinds: of every kind of layers, its share of a stage's, and the seconds for which
    the busier direction of each rank's link has them, [ranks]."""

    kinds: tuple[tuple[float, Floats], ...]

    def waited(self, computed: Floats | float) -> Floats:
        """Returns the seconds for which a mean layer waits for its copies. computed: what it takes without."""
        return np.asarray(sum(share * np.maximum(seconds - computed, 0.0) for share, seconds in self.kinds), np.float64)

    def beyond(self, seconds: Floats) -> "LayerCopies":
        """Returns what is left of the copies after so many seconds of each rank."""
        return LayerCopies(tuple((share, np.maximum(each - seconds, 0.0)) for share, each in self.kinds))


PassCopies = tuple[LayerCopies | None, LayerCopies | None]  # forward and backward, None where nothing is on hosts


@dataclass(frozen=True, slots=True)
class HostCopies:
    """Copies between a rank and its host memory, of the layers of a stage, seconds of its link in one direction.

    kinds: of every kind of layers its share of the stage's, and the seconds for what it keeps of a token; some may have
    nothing there. byte: of a byte. brought: of a layer's parameters that rest there, in a forward; again: in a
    backward, none where parts of them stay on GPUs for it; updated: of those that come back updated, beside activations
    that a backward brings.
    """

    kinds: tuple[tuple[float, float], ...]
    byte: float
    brought: float
    again: float
    updated: float

    @staticmethod
    def of(cost: Cost, tp: int = 1, layers: int | None = None, again: int | None = None) -> "HostCopies | None":
        """Returns the copies of a job's stage, of the fewest layers; None where no layer waits for hosts, no link is
        described, or the cost model does not wait for them. tp, layers: of a stage of a pipeline that a planner
        chooses; again: of its layers, how many first ones are recomputed, if not the model's share. Layers whose number
        is open are as many as can be, and tokens whose share is open all."""
        model, link = cost.model, cost.cluster.host
        if not (model.layers_on_hosts or model.parameters_on_hosts) or not cost.waits_for_hosts or link is None:
            return None
        layers = cost.layers if layers is None else layers
        byte = 1 / cost.cluster.links[link].rate
        again = min(model.recomputed_layers * layers // model.num_layers, layers) if again is None else again
        some = model.offloaded_layers(layers)
        kept, kept_again = layer_kept_bytes(cost, tp)
        if not isinstance(model.offload_tokens, str):
            kept, kept_again = kept * model.offload_tokens, kept_again * model.offload_tokens
        kinds = (min(some, again), kept_again), (max(some - again, 0), kept), (layers - some, 0.0)
        resting = model.params_of_first(model.parameters_on_hosts)
        updated = model.params_of_last(model.layers_updated_on_hosts)
        share = model.element_bytes / model.num_layers / cost.cluster.num_ranks * byte
        return HostCopies(
            tuple((count / layers, size * byte) for count, size in kinds if count),
            byte,
            resting * share,
            resting * share * (degrees_of(model.sharding).secondary == WORLD),
            updated * share,
        )

    def of_tokens(self, tokens: Ints | Floats, backward: bool, received: Ints | Floats | float = 0.0) -> LayerCopies:
        """Returns the copies of layers of a forward or backward. tokens: of every rank, [ranks]; received: bytes of q
        and kv that it received and keeps, of a layer."""
        kept = np.asarray(received) * self.byte
        found = []
        for share, token in self.kinds:
            activations = token * np.asarray(tokens, np.float64) + (kept if token else 0.0)
            come = activations + self.again + self.updated if backward else np.maximum(activations, self.brought)
            found.append((share, np.asarray(come, np.float64)))
        return LayerCopies(tuple(found))

    def waited(self, forward: Floats, backward: Floats, tokens: Ints | Floats) -> Floats:
        """Returns the seconds for which a mean layer waits in both passes together, as parts of a batch do by
        themselves, [n]: for what it keeps of them, as parameters are of all. forward, backward: what it computes, [n];
        a forward that runs again is the backward's."""
        tokens = np.asarray(tokens, np.float64)
        copies = LayerCopies(tuple((share, token * tokens) for share, token in self.kinds))
        return copies.waited(forward) + copies.waited(backward)


def plan_copies(plan: Plan, cost: Cost) -> PassCopies:
    """Returns the copies of a plan's layers, of a job's stage; of as few layers as the plan fits with where their
    number is open, and of as few tokens where their share is."""
    (found,) = _pass_copies(plan, cost, [with_fewest(plan, cost)])
    return found


def copies_of_stages(plan: Plan, cost: Cost) -> list[PassCopies]:
    """Returns the `plan_copies` of every stage. cost: of the job, whose stages together tell whether a plan fits."""
    chosen = with_fewest(plan, cost)
    return _pass_copies(plan, cost, [chosen.of_stage(stage) for stage in range(cost.pp)])


def _pass_copies(plan: Plan, cost: Cost, stages: Sequence[Cost]) -> list[PassCopies]:
    """Returns the copies of each of some stages. cost: of the job; stages: with the layers that have something on
    hosts."""
    every = [HostCopies.of(stage) for stage in stages]
    if all(one is None for one in every):
        return [(None, None)] * len(every)
    share = cost.model.offload_tokens
    some = shares_of_ranks(plan, least_shares(plan, cost)) if share == FEWEST else 1.0
    tokens = np.asarray(some * plan.tokens_per_rank, np.float64)
    received = np.asarray((some if isinstance(share, str) else share) * kept_bytes(plan, cost), np.float64)
    return [
        (None, None) if one is None else (one.of_tokens(tokens, False, received), one.of_tokens(tokens, True, received))
        for one in every
    ]


def waiting(cost: Cost, tokens: Ints | Floats, forward: Floats, backward: Floats) -> Floats | float:
    """Returns the seconds for which a layer of a job waits for its copies, both passes, as parts of a batch do that are
    a rank's alone, [n]: 0.0 where nothing is on hosts. Starts of kernels, which parts share, hide nothing.

    tokens: of each part on a rank. forward, backward: seconds of its attention there, without recomputation.
    """
    copies = HostCopies.of(cost)
    if copies is None:
        return 0.0
    tokens = np.asarray(tokens, np.float64)
    part = of_parts(cost)
    linear, again = (_of_token(seconds) * tokens for seconds in (part.linear_seconds, part.again_seconds))
    ahead = np.asarray(forward + linear, np.float64)
    back = np.asarray(backward + 2 * linear + again + cost.model.forwards_again * ahead, np.float64)
    return copies.waited(ahead, back, tokens)


def stage_copies(stage: Stage) -> HostCopies | None:
    """Returns the copies of a stage of a pipeline that a planner chooses, by the tokens of all its ranks; None where
    nothing is on hosts."""
    return HostCopies.of(stage.cost, stage.tp, stage.layers)


def stage_waiting(stage: Stage, tokens: Ints, forward: Floats, backward: Floats) -> Floats:
    """Returns the seconds for which a layer of a stage waits for its copies, both passes, as sequences do that are the
    stage's alone, [n]; starts, which they share, hide nothing. forward, backward: attention's of as many tokens,
    without a forward that runs again."""
    copies = stage_copies(stage)
    if copies is None:
        return np.zeros(len(tokens))
    many = stage.tp * np.array([MANY, 2 * MANY])
    each = (stage.linear_seconds, stage.again_seconds, stage.gather_seconds)
    linear, remade, gather = (float(np.diff(of(many))[0]) / (stage.tp * MANY) * tokens for of in each)
    (ahead, back, _), again = stage.gathers(), stage.cost.model.forwards_again
    begun = forward + linear + ahead * gather
    left = backward + again * forward + (2 + again) * linear + remade + back * gather
    return copies.waited(begun, left, tokens)


def _of_token(seconds: Callable[[Ints], Floats]) -> float:
    """Returns the seconds of one token more."""
    return float(np.diff(seconds(np.array([MANY, 2 * MANY])))[0]) / MANY
