"""Checks before a job starts that this machine can take it: memory, cores and disk against zbench.run.checks.price. An
edge.

A job whose ranks are processes of this machine needs what a rank holds (zbench.runtime.job.footprint), for each of
them; one that torchrun or Slurm started knows its machines better than this.
"""

from collections.abc import Sequence
from os import environ
from pathlib import Path

from zbench.cost.cost import Cost
from zbench.cost.loss import chunked_bytes, wide_bytes
from zbench.describe.degrees import WORLD, degrees_of
from zbench.describe.units import with_noun
from zbench.interfaces.abilities import PlansPipelines, PlansPipelinesAlone
from zbench.interfaces.dealt import undealt
from zbench.run.cases import RunCase
from zbench.run.checks.machine import cores, free_disk, free_memory
from zbench.run.checks.price import check_memory_here, check_record, priced
from zbench.run.parts import Parts
from zbench.run.request import Request
from zbench.run.settings import Settings
from zbench.runtime.attention_executor import TorchAttention
from zbench.runtime.job.footprint import LEVELS, kept_layer_bytes, training_state_bytes, working_bytes
from zbench.runtime.job.settings import kind_of, no_gpu
from zbench.runtime.processes.world import found
from zbench.runtime.step_executor import Torch
from zbench.simulated.executor import Simulated
from zbench.simulated.recomputation import recomputing
from zbench.step.passes.parameters.weights import weight_elements

# What is known to work: 64 ranks of model tiny took their steps on two cores, none waiting executor.timeout's 30 s:
#   python -m zbench executor=torch cluster.num_nodes=32 tokens_per_gpu=256 workload=pystdlib baseline=null steps=1
RANKS_PER_CORE = 32
PROCESS = 50e6  # of a rank, torch's pages shared: Pss in /proc/PID/smaps_rollup of 16 ranks of model tiny, 52 MB each


def admit(settings: Settings, parts: Parts, own: RunCase, baseline: RunCase | None) -> None:
    """Refuses a job that this machine cannot take, or whose systems plan what it cannot be run with.

    Raises:
        ValueError: this machine has not what the job needs; one sentence with both numbers and the key to change.
    """
    check_plans_of_pipelines(parts, [case for case in (own, baseline) if case is not None])
    if isinstance(parts.executor, (TorchAttention, Torch)) and found(environ) is None:
        systems = [case.system for case in (own, baseline) if case is not None]
        may = any(isinstance(one, PlansPipelines) and one.plans_pipelines for one in systems)
        check_ranks_here(parts, settings.tokens_per_gpu, may and parts.pipelines)
    ranks = parts.cluster.num_ranks
    keys = (f"cluster.num_nodes={parts.cluster.num_nodes:,}", f"tokens_per_gpu={settings.tokens_per_gpu:,}")
    for key, case in (("system", own), ("baseline", baseline)):
        if case is not None:
            price = priced(case.system, parts.workload, parts.tokens, ranks, parts.executor)
            may_group = isinstance(parts.executor, Simulated) and parts.cost.tp == 1
            check_memory_here(
                price, free_memory(), f"{key}={case.start['config']['choices']['system']}", *keys, may_group
            )
    check_record(settings.steps, 1 if baseline is None else 2, ranks, settings.out, free_disk(Path(settings.out)))


def check_plans_of_pipelines(parts: Parts, cases: Sequence[RunCase]) -> None:
    """Refuses systems whose plans all have pipelines where whole steps with these cannot be as the run has them.

    Raises:
        ValueError: they cannot; the system is named.
    """
    if not (parts.pipelines and isinstance(parts.executor, (Simulated, Torch))):
        return
    for case in cases:
        system = undealt(case.system)
        if isinstance(system, PlansPipelinesAlone) and system.plans_pipelines_alone:
            try:
                parts.executor.steps.check_pipelines()
            except ValueError as error:
                raise ValueError(f"system={case.name}: {error}") from None


def check_ranks_here(parts: Parts, tokens_per_gpu: int, pipelines: bool = False) -> None:
    """Refuses ranks that this machine cannot hold as its processes. pipelines: as of gpu_bytes.

    Raises:
        ValueError: there are too many for its cores, or they need more memory than is free.
    """
    executor, cluster, model = parts.executor, parts.cluster, parts.model
    assert isinstance(executor, (TorchAttention, Torch))
    ranks, most = cluster.num_ranks, RANKS_PER_CORE * cores()
    now = f"cluster.num_nodes={cluster.num_nodes:,} and cluster.gpus_per_node={cluster.gpus_per_node:,}"
    if ranks > most:
        raise ValueError(
            f"cluster is {cluster.name} with {with_noun(ranks, 'rank')}, each a process of this machine, whose "
            f"{cores()} cores take at most {most:,}: use less than {now}, as in cluster=local_2x2, or "
            "start them by torchrun or Slurm"
        )
    if executor.device != "cpu" and no_gpu(environ) is None:
        return  # their memory is the GPU's, which a rank asks
    if isinstance(executor, TorchAttention):
        state, activations = rank_bytes(parts.cost, executor, tokens_per_gpu)
    else:
        cost = recomputing(parts.cost, "none") if executor.adaptive_recompute else parts.cost
        experts = executor.expert_parallel * executor.expert_tensor_parallel
        state, activations = gpu_bytes(cost, tokens_per_gpu, experts, pipelines)
    needed, free = ranks * (state + activations + PROCESS), free_memory()
    if needed > free:
        tokens = f"tokens_per_gpu={tokens_per_gpu:,}"
        of_model = (f"model is {model.name} with {tokens}", "parameters, gradients and optimizer state")
        of_tokens = (f"tokens_per_gpu is {tokens_per_gpu:,} with model={model.name}", "activations")
        larger, other = sorted(
            [(state, *of_model, _smaller(model.name)), (activations, *of_tokens, f"less than {tokens}")], reverse=True
        )
        raise ValueError(
            f"{larger[1]} on {with_noun(ranks, 'rank')}, which are processes of this machine; they need an estimated "
            f"{needed / 2**30:,.1f} GiB (each {larger[0] / 2**30:,.1f} of {larger[2]}, {other[0] / 2**30:,.1f} of "
            f"{other[2]}), and {free / 2**30:,.1f} GiB are free: use {larger[3]}, or less than {now}, or {other[3]}"
        )


def _smaller(model: str) -> str:
    return "a smaller model" if model == "tiny" else "a smaller model, as in model=tiny"


def rank_bytes(cost: Cost, executor: TorchAttention, tokens: int) -> tuple[float, float]:
    """Returns the bytes of a rank, (state, activations of that many tokens), with the recomputation that keeps least of
    what is asked for.

    Activations are no more than the described device has left: systems know its memory, and divide a batch by it.
    """
    level = LEVELS[-1] if executor.recompute == "auto" else executor.recompute or cost.model.recompute
    state = training_state_bytes(cost, kind_of(executor.parameters, cost.model), level)
    at_work = max(chunked_bytes(cost.model, tokens), working_bytes(cost.model, level) * tokens)
    activations = cost.model.num_layers * kept_layer_bytes(cost.model, level) * tokens + at_work
    return state, min(activations, max(0.0, cost.cluster.device.memory_bytes - state))


def gpu_bytes(cost: Cost, tokens: int, expert_gpus: int = 1, pipelines: bool = False) -> tuple[float, float]:
    """Returns the bytes of a GPU of a whole step, (state, activations of that many tokens): parameters and gradients of
    its slice of its stage, or its shards of them with ZeRO-3 (of gradients with ZeRO-2, too); master copies and
    moments, or its shards of them; and of a batch's activations as much as it has of the tokens. expert_gpus: those
    that hold all experts together. pipelines: whether a planner may have some of its own; then parameters and gradients
    stay on each for the whole step, with any sharding, and one of a single GPU has all of them.
    """
    model, groups = cost.gpus.model, cost.cluster.num_ranks
    elements = weight_elements(model)
    layers = model.num_layers - model.dense_layers if model.num_experts > 1 else 0  # that have experts
    of_experts = layers * (elements["ez"] + elements["ed"])
    own = ((model.placed_params - of_experts) / cost.tp + of_experts / expert_gpus) / cost.pp
    wide = wide_bytes(model)
    shard, cut = model.placed_params / cost.tp / cost.pp / groups, degrees_of(model.sharding)
    parameters, gradients, moments = (
        own if degree == 1 else shard if degree == WORLD else shard * groups / degree
        for degree in (*((1, 1) if pipelines else (cut.secondary, cut.gradients)), cut.optimizer)
    )
    state = model.element_bytes * parameters + wide * gradients + 3 * wide * moments
    again, rest = model.recomputed_layers, model.num_layers - model.recomputed_layers
    activations = (again * kept_layer_bytes(model, model.recompute) + rest * kept_layer_bytes(model, "none")) * tokens
    return state, min(activations, max(0.0, cost.gpus.cluster.device.memory_bytes - state))


def unchosen_words(request: Request, parts: Parts) -> Sequence[str]:
    """Tells which cluster and model the executor's yaml chose, where the user did not."""
    if parts.simulated or not request.unchosen:
        return ()
    chosen = " and ".join(f"{group}={request.choices.get(group)}" for group in request.unchosen)
    return (
        f"executor={request.choices.get('executor')} chose {chosen}; {with_noun(parts.cluster.num_ranks, 'rank')}.",
    )
