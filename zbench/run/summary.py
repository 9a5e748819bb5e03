"""Sentences below a run's table: where its figures come from, whether they count, and where they are kept."""

from collections.abc import Mapping, Sequence
from math import prod

from zbench.describe.degrees import ShardDegrees
from zbench.describe.expert_schedule import DROPLESS, FLAT
from zbench.describe.layers.on_hosts import ACROSS_STEPS
from zbench.describe.overlap import USUAL
from zbench.describe.units import with_noun
from zbench.describe.worlds import NOMINAL
from zbench.interfaces.abilities import PlansPipelines, PlansStages
from zbench.interfaces.dealt import undealt
from zbench.record.metrics import counted
from zbench.record.record import Run
from zbench.record.rows import label
from zbench.record.words import cluster_words, convention_words
from zbench.run.cases import RunCase
from zbench.run.notes.strategy import (
    idle_stages,
    in_one_level,
    unmoved_tokens,
    untrained_router,
    unused_micro_batches,
)
from zbench.run.open_layers import open_words
from zbench.run.parts import Parts
from zbench.run.settings import PRECISIONS, Settings
from zbench.runtime.attention_executor import TorchAttention
from zbench.runtime.driver import LIMITS
from zbench.runtime.step_executor import SWAPPED, Torch
from zbench.simulated.executor import Simulated

# What systems' keys have plans wait for besides data (docs/plan.md, waits).
_WAITS = {"wait": "published", "run_ahead": "published", "routed_transfers": "serial"}

_OF_PIPELINES = "strategy"  # a note of plans that have pipelines of their own (docs/systems/hydraulis.md)
_NOT_OF_PIPELINES = ("zero2", "zero3")


def about_words(own: RunCase, parts: Parts, done: Sequence[Run]) -> list[str]:
    """Says where the runs' figures come from, and whether they count."""
    where = cluster_words(own.start["facts"])
    if own.start["config"].get("planners_see") == NOMINAL:
        where += "; planners know the nominal machine alone"
    chosen = [
        f"{label(run.start, 'system')}: {run.start['chosen']['words']}." for run in done if run.start.get("chosen")
    ]
    chosen += (
        _other_parallelism(done) + _without_pipelines(own) + _kept_for_the_step(own, done) + _in_one_level(own, parts)
    )
    chosen += open_words(parts) + _across_steps(done) + _too_wide(done) + _micro_batches(own, done)
    chosen += untrained_router(parts.model) + _skew(own, parts)
    if parts.simulated:
        return [f"SIMULATED on {where}. Nothing here was measured on hardware.", *chosen]
    measured = f"MEASURED, executor {own.start['config']['choices']['executor']}; plans made for {where}."
    systems = ", ".join(dict.fromkeys(label(run.start, "system") for run in done))
    says = (
        "rank sent and received what the step says of every queue"
        if isinstance(parts.executor, Torch)
        else "rank and NIC sent and received what the simulator charges"
    )
    checks = [f"{systems}: {line}" for line in _checks(done, says)]
    return [
        measured,
        *chosen,
        *_not_counted(parts),
        *_not_split(parts),
        *_not_waited(own, parts),
        *checks,
        *_invalid(done),
    ]


def _across_steps(done: Sequence[Run]) -> list[str]:
    """Says what a run begins and ends with where CPUs update with gradients of the step before."""
    lines = []
    for run in done:
        if (run.start["config"].get("memory") or {}).get("host_updates") != ACROSS_STEPS:
            continue
        end = run.end or {}
        if "last_update" not in end:
            continue
        name, last = label(run.start, "system"), f"{end['last_update']['seconds']:.4g} s"
        if "first_step" in end:
            lines.append(
                f"{name}: every step begins with gradients of the one before, as in the midst of training; a run's "
                f"first step has none and takes {end['first_step']['seconds']:.4g} s, and the updates behind its last "
                f"one {last}."
            )
        else:
            first = "step 0 had no gradients to begin with, and " if run.steps[0]["step"] == 0 else ""
            lines.append(
                f"{name}: {first}what the last step left to update took {last} behind it, which no figure above has."
            )
    return lines


def _too_wide(done: Sequence[Run]) -> list[str]:
    """Says with which window steps that are out of memory are not."""
    lines = []
    for run in done:
        if found := (run.end or {}).get("window"):
            given = run.start["config"]["sharding"].get("window", 1)  # as StepOverlap has it where a yaml is silent
            lines.append(
                f"{label(run.start, 'system')}: sharding.window is {given}; the plans of step {found['step']}, the "
                f"fullest that is out of memory, fit with at most {found['fits']}."
            )
    return lines


def _micro_batches(own: RunCase, done: Sequence[Run]) -> list[str]:
    """Says so where a key has fewer micro-batches go through a pipeline than it has stages, or none."""
    stages, asked = own.start["facts"].get("pipeline_parallel", 1), own.start["config"].get("model", {})
    count = asked.get("micro_batches", 1)
    chooses = isinstance(system := undealt(own.system), PlansStages) and system.plans_stages
    most = max((step.get("num_micro_batches", 0) for run in done[-1:] for step in run.steps), default=0)
    if chooses or stages == 1:
        return [] if own.start.get("chosen") or not most else unused_micro_batches(count, most, stages, own.name)
    return idle_stages(count, stages) if most == count else []


def _other_parallelism(done: Sequence[Run]) -> list[str]:
    """Says so where a system chose degrees of tensor parallelism or stages in place of the run's."""
    lines = []
    for run in done:
        chosen, asked = (run.start.get("chosen") or {}).get("model") or {}, run.start["config"]["parallel"]
        lines += [
            f"{label(run.start, 'system')} chooses parallel.{key} itself, {chosen[key]} in place of {asked[key]}: "
            f"system=mesh is a static configuration that takes parallel.{key}={asked[key]} as it is."
            for key in ("tensor_parallel", "pipeline_parallel")
            if key in chosen and asked.get(key, 1) not in (1, chosen[key])
        ]
    return lines


def _without_pipelines(own: RunCase) -> list[str]:
    """Says so where a system that may plan pipelines of its own plans without."""
    system = undealt(own.system)
    have = own.parts.pipelines and not own.parts.sync.in_rounds
    if have or not (isinstance(system, PlansPipelines) and system.plans_pipelines):
        return []
    return [f"{own.name} plans without pipelines of its own: {'; '.join(_pipelines_kept_out(own))}."]


def _pipelines_kept_out(own: RunCase) -> list[str]:
    """Says what of a run pipelines of a plan's own do not go with (zbench.cost.stage.in_whole_steps)."""
    parts, executor = own.parts, own.parts.executor
    if parts.sync.in_rounds:
        return [f"with sync={parts.sync.method} workers train apart, each without"]
    if parts.job.has_rollouts:
        return ["a job with rollouts has forwards by themselves, which have none"]
    if not isinstance(executor, (Simulated, Torch)):
        return [f"executor={own.start['config']['choices']['executor']} runs plans of attention, which have none"]
    overlap, cost = executor.steps.overlap, parts.cost
    keys: list[tuple[str, object, object]] = [
        ("sharding.window", overlap.window, USUAL.window),
        ("sharding.gradient_bucket", overlap.gradient_bucket, USUAL.gradient_bucket),
        ("sharding.collectives", overlap.collectives, USUAL.collectives),
        ("overlap.method", overlap.exchanges.method, USUAL.exchanges.method),
        ("parallel.tensor_parallel", cost.tp, 1),
        ("parallel.pipeline_parallel", cost.pp, 1),
    ]
    found = [f"{key} is {given}, which takes {usual} with them" for key, given, usual in keys if given != usual]
    if isinstance(parts.model.sharding, ShardDegrees):
        found.append("sharding.degrees are the run's, which each pipeline would have of its own")
    if parts.model.num_experts > 1:
        found.append(f"{parts.model.name} has experts, which pipelines of different shapes cannot share")
    return found


def _kept_for_the_step(own: RunCase, done: Sequence[Run]) -> list[str]:
    """Says so where a sharding would cut what pipelines of a plan's own keep whole, or let it go between
    micro-batches, of which each pipeline has its own number."""
    if not own.parts.pipelines:
        return []
    found = []
    for run in done:
        strategy = run.start["config"].get("sharding", {}).get("strategy")
        if strategy in _NOT_OF_PIPELINES and any(_OF_PIPELINES in note for note in _notes(run)):
            found.append(
                f"{label(run.start, 'system')}: pipelines of a plan's own have different numbers of micro-batches, and "
                f"keep parameters and gradients for a step; sharding={strategy} is as zero1 with them."
            )
    return found


def _notes(run: Run) -> list[Mapping[str, object]]:
    """Returns the notes of a run's plans."""
    return [note for step in run.steps for note in step.get("plan_notes") or []]


def _skew(own: RunCase, parts: Parts) -> list[str]:
    """Says so where some experts are popular and no token goes to them; measured, ranks compute the rows that come."""
    config = own.start["config"]
    experts = config["experts"]
    if not parts.simulated or experts.get("capacity", DROPLESS) != DROPLESS:  # which has some dropped
        return []
    degree = prod(config["parallel"].get(key, 1) for key in ("expert_parallel", "expert_tensor_parallel"))
    return unmoved_tokens(experts.get("skew", 0), degree)


def _in_one_level(own: RunCase, parts: Parts) -> list[str]:
    """Says so where rows were to go in two steps, and no group of experts has several nodes."""
    config = own.start["config"]
    dispatch = config["experts"].get("dispatch", FLAT)
    if dispatch == FLAT:
        return []
    parallel = config["parallel"]
    degree = parallel["expert_parallel"] * parallel.get("expert_tensor_parallel", 1)
    return in_one_level(dispatch, degree, parts.cost.gpus.cluster.gpus_per_node)


def _not_counted(parts: Parts) -> list[str]:
    """Says so where attention's messages alone are counted, between nodes."""
    if not isinstance(parts.executor, TorchAttention) or parts.cluster.num_nodes == 1 or parts.executor.nic_counters:
        return []
    return [
        "What NICs send for is not told: attention's messages are counted, and bytes of parameters and gradients "
        "computed, as their collectives' messages are gloo's or NCCL's own; executor=torch counts all."
    ]


def _not_split(parts: Parts) -> list[str]:
    """Says so where ZeRO-1 is asked for and every rank has all of the optimizer's state."""
    if (
        not isinstance(parts.executor, TorchAttention)
        or parts.model.sharding != "zero1"
        or parts.cluster.num_ranks == 1
    ):
        return []
    if parts.executor.parameters == "sharded":
        return []
    return [
        "sharding=zero1 is not split here: every rank has all of the optimizer's state and sends what sharding=none "
        "does; executor=torch splits it."
    ]


def _not_waited(own: RunCase, parts: Parts) -> list[str]:
    """Says so where a system's plans have waits, which real executors do not do."""
    system = own.start["config"]["system"]
    keys = [key for key, value in _WAITS.items() if system.get(key) == value]
    if not keys or parts.simulated:
        return []
    return [f"system.{' and system.'.join(keys)}: no rank waits for more than data here; only clocks play such waits."]


def run_words(own: RunCase, settings: Settings, reused: Run | None, known: Run | None) -> list[str]:
    """Says how to read the figures of a run, and where they are."""
    lines = [convention_words("zbench")]
    if reused and reused.line:
        lines.append(f"Baseline {settings.baseline} was not run again: the record has it, from line {reused.line} on.")
    elif reused:
        lines.append(f"Baseline {settings.baseline} was not run again: this sweep measured it, {reused.start['run']}.")
    if known:
        lines.append(f"{own.name} was not run again: the record has it, from line {known.line} on.")
    return lines + file_words(settings)


def file_words(settings: Settings) -> list[str]:
    """Says where the record is, and the trace if there is one."""
    traced = f"Trace of the first step: {settings.trace} (open it in ui.perfetto.dev)"
    return [f"Record: {settings.out}", *([traced] if settings.trace else [])]


def _invalid(done: Sequence[Run]) -> list[str]:
    """Says which runs have steps that do not count."""
    counts = [(label(run.start, "system"), len(run.steps) - len(counted(run.steps)), len(run.steps)) for run in done]
    return [
        f"INVALID: {bad} of {all_} steps of {name}, in which this machine was too busy for ranks' work or messages; "
        "no figure above has them."
        for name, bad, all_ in counts
        if bad
    ]


def _checks(done: Sequence[Run], says: str) -> list[str]:
    """Says what the checks of every step found, over all runs. says: of what the bytes are right, and who says so."""
    found = [step["checks"] for run in done for step in run.steps if step.get("checks")]
    lines = []
    bits = [run.start["config"]["sharding"].get("bits") or {} for run in done if run.steps]
    beyond = " beyond what transfers in fewer bits may lose" if any(one.get("gradients") for one in bits) else ""
    for check, limit in LIMITS.items():
        if worst := [checks[check] for checks in found if check in checks]:
            lines.append(
                f"check={check} holds: loss and every gradient within {max(worst):.2g} of the dense model's{beyond} in "
                f"{with_noun(len(worst), 'step')} (relative, float{8 * PRECISIONS[check]}; {limit:g} is allowed)."
            )
    if swapped := [checks[SWAPPED] for checks in found if SWAPPED in checks]:
        equal = f", but for {sum(swapped):,.0f} between equal logits" if sum(swapped) else ""
        lines.append(f"routers chose: the dense model's own logits have the same choices{equal}.")
    if sizes := [checks["bytes"] for checks in found if "bytes" in checks]:
        lines.append(
            f"check=bytes holds: every {says} in {with_noun(len(sizes), 'step')} "
            f"({sum(sizes) / len(sizes) / 1e6:,.3f} MB a step)."
        )
    return lines
