"""Judges a step's plans twice: by code that shares nothing with the verifier, and by the verifier. Pure: no torch.

A step is wrong if a rule of its arrays is broken (zbench.correctness.reference.plain_rules), if attention's outputs or
gradients are not those of dense attention (zbench.correctness.reference.interpreter), if its bytes are not those of the
law (zbench.correctness.reference.byte_law), or if something that runs plans fails at it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from zbench.correctness.reference.byte_law import Bytes, layer_traffic, step_traffic
from zbench.correctness.reference.interpreter import Broken, Results, Tensors, dense_attention, execute
from zbench.correctness.reference.plain_rules import check_plan, check_sequences
from zbench.correctness.reference.step_check import has_whole_step, step_faults
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.model import Model
from zbench.plans.plan import Plan
from zbench.proof.verify import PlanError, verify_step
from zbench.runtime.program.compiler import Compiler
from zbench.runtime.program.phases import with_message_batches
from zbench.simulated.executor import Simulated
from zbench.simulator.attention import programs
from zbench.simulator.hops import Hops
from zbench.simulator.steps.play import play_step
from zbench.step.passes.own_plans import plans_of_layouts

TOLERANCE = 1e-9  # relative; what is right is within 1e-12 (tests/plans/test_exact.py), a missing token far outside
Plans = tuple[Plan, ...]
Verifier = Callable[[Batch, Plans, Cost], None]


@dataclass(frozen=True, slots=True)
class CorrectStep:
    """A correct step: what `system` plans for `batch` on the cluster and model of `cost`."""

    system: str
    cost: Cost
    batch: Batch
    plans: Plans


@dataclass(frozen=True, slots=True)
class PlanVerdict:
    """The verdicts on a step's plans. wrong: why the step is wrong, "" if it is right. rejected: what the verifier
    says, "" if it accepts the step."""

    wrong: str
    rejected: str

    @property
    def missed(self) -> bool:
        """Whether the step is wrong and the verifier accepts it."""
        return bool(self.wrong) and not self.rejected


def verifier(batch: Batch, plans: Plans, cost: Cost) -> None:
    """Verifies a step as a run does."""
    verify_step(batch, plans, cost, memory=False)


def judge(case: CorrectStep, plans: Plans, verify: Verifier = verifier) -> PlanVerdict:
    """Judges `plans` in place of the case's own: what they are, and what `verify` says of them.

    What it accepts is simulated and compiled, if it is not known to be wrong.
    """
    wrong = _fault(case, plans)
    try:
        verify(case.batch, plans, case.cost)
    except PlanError as error:
        return PlanVerdict(wrong, str(error))
    except Exception as error:  # a verifier that stumbles has not rejected anything
        return PlanVerdict(wrong or f"the verifier fails: {_told(error)}", "")
    return PlanVerdict(wrong or _running(case.batch, plans, case.cost), "")


def _fault(case: CorrectStep, plans: Plans) -> str:
    """Tells why the plans are no correct step, "" if they are; by plain rules, numbers and the law of bytes alone.

    Plans that are the case's own are right, unless they are all of them.
    """
    own = [] if plans is case.plans else [id(plan) for plan in case.plans]
    try:
        check_sequences(case.batch, plans, case.cost.model.mask)
        for plan in plans:
            if id(plan) not in own:
                check_plan(plan, case.cost)
                _check_numbers(plan, case.cost)
    except Broken as error:
        return str(error)
    return ""


def _check_numbers(kept: Plan, cost: Cost) -> None:
    """Executes a plan whose arrays are sound, and counts its bytes; raises Broken if either is not as it has to be."""
    # The same arrays without what was derived from them before, such as sizes of blocks.
    plan = kept.with_(blocks=replace(kept.blocks), lists=replace(kept.lists), lanes=replace(kept.lanes))
    given, wanted = _dense(tuple(plan.lengths.tolist()), cost.model)
    off = execute(plan, given).difference(wanted)
    if not off < TOLERANCE:
        raise Broken(f"outputs or gradients are off by {off:.1e}")
    for ops in (plan.forward, plan.backward):
        layer_traffic(plan, ops, cost)


@lru_cache(maxsize=64)
def _dense(lengths: tuple[int, ...], model: Model) -> tuple[Tensors, Results]:
    """Makes inputs, and what dense attention under the model's mask makes of them."""
    given = Tensors.random(model.num_heads, model.num_kv_heads, sum(lengths), 3)
    return given, dense_attention(np.array(lengths, np.int64), given, model.mask)


def _running(batch: Batch, plans: Plans, cost: Cost) -> str:
    """Simulates the plans' whole step and compiles them for every rank; returns what goes wrong, "" if nothing."""
    try:
        if has_whole_step(plans, cost) and (fault := played_fault(batch, plans, cost)):
            return fault
        if plans[0].pipelines is not None:
            return ""
        law, charged = step_traffic(plans, cost), charged_bytes(plans, cost)
        for name in Bytes.__dataclass_fields__:
            if (getattr(law, name) != getattr(charged, name)).any():
                return f"the simulator charges {name} {getattr(charged, name)}, by the law it is {getattr(law, name)}"
        for plan in plans:
            for rank in range(cost.cluster.num_ranks):
                compiler = Compiler(plan, rank, cost, index=lambda rows: rows, cut=lambda *_: None)
                with_message_batches(plan, cost, compiler.compile())
    except Exception as error:  # whatever it is, the verifier has let it through
        return f"what runs plans fails: {_told(error)}"
    return ""


def played_fault(batch: Batch, plans: Plans, cost: Cost) -> str:
    """Builds, proves and plays the whole step of plans, and returns what is wrong with its account of seconds, bytes
    and memory, "" if nothing.

    Raises:
        zbench.step.proof.prove.StepError: the step is wrong.
    """
    executor = Simulated(cost)
    step = executor.built(batch, plans)
    played = play_step(step, plans_of_layouts(plans), cost.gpus)
    result = executor.result(batch, plans, played, executor.ceiling_seconds(batch, plans[0].pipelines is not None))
    for fault in step_faults(result, cost):
        return fault
    if plans[0].pipelines is not None:
        return ""
    law = step_traffic(plans, cost)
    for name, told, by_law in (
        ("NICs send", played.nic_tx["attention"], law.nic_tx),
        ("NICs receive", played.nic_rx["attention"], law.nic_rx),
        ("ports inside nodes send", played.inside["attention"], law.inside_tx.sum()),
    ):
        if np.any(told != by_law):
            return f"of attention's bytes {name} {told}, by the law it is {by_law}"
    shared = [sum(size for name, size in by.items() if name != "attention") for by in (played.nic_tx, played.nic_rx)]
    if len(set(np.concatenate(shared).tolist())) > 1:
        return f"of parameters and gradients NICs have other shares than each other: {shared}"
    return ""


def charged_bytes(plans: Plans, cost: Cost) -> Bytes:
    """Counts what the simulator charges attention's messages of a step with, link by link."""
    total, model = Bytes.none(cost.cluster), cost.model
    for plan in plans:
        forward, backward = programs(plan, cost)
        for hops, times in ((forward.hops, 2 if model.recompute == "full" else 1), (backward.hops, 1)):
            _charge(total, hops, times * model.num_layers)
    return total


def _charge(total: Bytes, hops: Hops, times: int) -> None:
    """Adds the bytes of hops to the links that carry them; links are numbered in pairs, sending and receiving: NVLink
    ports of all ranks, NICs, ports to each domain."""
    ranks, nics = total.inside_tx.shape[1], len(total.nic_tx)
    counters = ((hops.link_a, total.inside_tx, total.nic_tx), (hops.link_b, total.inside_rx, total.nic_rx))
    for links, port, nic in counters:
        moves = links >= 0
        count = np.zeros(total.inside_tx.size + nics, np.int64)
        np.add.at(count, links[moves] // 2, times * hops.bytes[moves])
        port += np.delete(count, np.s_[ranks : ranks + nics]).reshape(port.shape)
        nic += count[ranks : ranks + nics]


def _told(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
