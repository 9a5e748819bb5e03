"""Sentences on a strategy that does less than its words say: stages that wait, numbers of micro-batches that nobody
takes, rows that go in one level, tokens that go nowhere, a router that learns nothing, degrees of a model's yaml that a
choice has replaced. Plain data: zbench.run reads it off a run."""

from collections.abc import Mapping
from typing import Any

from zbench.describe.expert_schedule import FLAT
from zbench.describe.model import SIGMOID, SOFTMAX, SOFTMAX_ALL, Model
from zbench.describe.units import with_noun

_DEGREES = ("tensor_parallel", "pipeline_parallel", "expert_parallel", "expert_tensor_parallel")


def idle_stages(micro_batches: int, stages: int) -> list[str]:
    """Says so where fewer micro-batches go through a pipeline than it has stages."""
    if micro_batches >= stages:
        return []
    return [
        f"{with_noun(micro_batches, 'micro-batch')} for {stages} stages: at any time {stages - micro_batches} or more "
        f"of them wait; model.micro_batches={stages} or more fill the pipeline."
    ]


def unused_micro_batches(asked: int, found: int, stages: int, system: str) -> list[str]:
    """Says so where a job's number of micro-batches is another one's to choose.

    asked: model.micro_batches. found: the most of a step's. system: its name, which chooses it itself where there are
    stages.
    """
    if asked == 1 or asked == found:
        return []
    chooses = f"{system} chooses" if stages > 1 else "without stages a system chooses"
    return [f"model.micro_batches is {asked}, and {chooses} a number by itself, which is {found} at most here."]


def unmoved_tokens(skew: float, degree: int) -> list[str]:
    """Says so where a simulated run makes some experts popular and every GPU has all experts.

    degree: GPUs that hold all experts of a layer together.
    """
    if not skew or degree > 1:
        return []
    return [
        f"experts.skew is {skew:g}, and every GPU has all experts: no token goes to another one, so nothing above "
        "depends on it; parallel.expert_parallel above 1 has tokens go."
    ]


def in_one_level(dispatch: str, degree: int, gpus_per_node: int) -> list[str]:
    """Says so where rows were to go in two steps, and no group of experts has several nodes.

    degree: GPUs that hold all experts of a layer together.
    """
    if dispatch == FLAT or degree > gpus_per_node:
        return []
    return [
        f"experts.dispatch={dispatch}: each group's {degree} GPUs of experts are in one node of {gpus_per_node}, "
        f"so rows go as with {FLAT}."
    ]


def untrained_router(model: Model) -> list[str]:
    """Says so where a token's only share is 1 whatever its logits are, so that they have no gradient.

    Megatron-Core refuses this (its TransformerConfig, since NVIDIA/Megatron-LM issue 894); GShard normalises the gates
    of two experts (Lepikhin et al. 2020, arXiv 2006.16668), Switch Transformers take the one expert's share of all
    (Fedus et al. 2021, arXiv 2101.03961).
    """
    if model.num_experts == 1 or model.experts_per_token > 1 or model.gate not in (SOFTMAX, SIGMOID):
        return []
    return [
        f"model.experts_per_token is 1 and model.gate {model.gate}: a token's share of its one expert is always 1, so "
        f"routers learn nothing (Megatron-Core refuses it); model.gate={SOFTMAX_ALL} is the share that Switch "
        "Transformers take, of all experts."
    ]


def replaced_degrees(
    model: str, own: str, usual: Mapping[str, Any], chosen: str, parallel: Mapping[str, Any]
) -> list[str]:
    """Says so where another choice of `parallel` leaves out degrees that a model's yaml chooses.

    own, usual: the choice of the model's yaml, and what its strategy says with it. chosen, parallel: the run's choice,
    and the group's keys.
    """
    lost = [key for key in _DEGREES if usual[key] > 1 and parallel.get(key, 1) == 1]
    if own == chosen or not lost:
        return []
    left = " and ".join(f"parallel.{key} is 1" for key in lost)
    kept = " ".join(f"parallel.{key}={usual[key]}" for key in lost)
    return [
        f"model={model} chooses parallel={own}, and parallel={chosen} takes its place: {left}; {kept} beside it keeps "
        "what the model's yaml chose."
    ]
