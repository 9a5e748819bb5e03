"""Windows and buckets that do not fit a GPU beside what it keeps: one sentence before a run begins."""

from collections.abc import Mapping
from typing import Any

import pytest

import zbench
from tests.helpers.steps import MODEL
from zbench.describe.degrees import ShardDegrees
from zbench.describe.expert_schedule import USUAL_EXPERTS
from zbench.describe.overlap import ALL, END, StepOverlap
from zbench.simulator.steps.account import step_memory
from zbench.simulator.steps.program import StepParts
from zbench.step.passes.build import whole_step
from zbench.step.passes.parameters.room import check_room
from zbench.step.passes.parameters.zero import ShardedParameters
from zbench.step.passes.proven import zero_of
from zbench.step.passes.routing import ExpertParallel

GIB = 2**30


@pytest.mark.parametrize(
    ("model", "sharding", "parallel", "overlap"),
    [
        ("llama_7b", "zero3", {}, StepOverlap(20)),
        ("llama_7b", "hpz", {}, StepOverlap(32)),
        ("llama_7b", "three_level", {}, StepOverlap(32)),
        ("llama_7b", "zero3", {"tensor_parallel": 2}, StepOverlap(32)),
        ("mixtral_8x7b", "zero3", {"expert_parallel": 8}, StepOverlap(32)),
        ("llama_7b", "hpz", {}, StepOverlap(1, END)),
        ("llama_7b", "zero1", {}, StepOverlap(1, 4_000_000_000)),
        ("llama_7b", "zero1", {"pipeline_parallel": 2}, StepOverlap(1, END)),
        ("deepseek_moe_16b", "zero3", {"expert_parallel": 8}, StepOverlap(1, 4_000_000_000)),
        ("deepseek_moe_16b", "zero2", {"expert_parallel": 8}, StepOverlap(1, END)),
    ],
    ids=lambda given: str(given)[:40],
)
def test_what_is_refused_has_no_step_and_what_a_step_takes_is_not(
    model: str, sharding: str, parallel: Mapping[str, Any], overlap: StepOverlap
) -> None:
    """A GPU with the memory of a step of 16 tokens a GPU, by the step's own account, is admitted, and one with a fifth
    less is not."""
    strategy = {"sharding": sharding, "parallel": parallel}
    found = zbench.plan(
        [16] * 16, cluster="a800_2x8", model=model, system="local_packing", strategy=strategy, pipelines=False
    )
    gpus, stages, degree = found.cost.gpus, parallel.get("pipeline_parallel", 1), parallel.get("tensor_parallel", 1)
    how = ExpertParallel.chosen(parallel.get("expert_parallel", 1), 1, USUAL_EXPERTS, 8)
    zero, of = zero_of(gpus.model), gpus.model
    step = whole_step(of, found.plans, degree, zero, overlap, of.recompute, how.of(found.batch), stages)
    most = int(step_memory(StepParts(step, found.plans, gpus)).peak[:16].max())
    parameters = ShardedParameters(of, 16 // degree // stages, degree, zero, overlap, how.degree)
    check_room(parameters, of.num_layers // stages, most)
    with pytest.raises(ValueError, match=r"^sharding\.(window|gradient_bucket) is "):
        check_room(parameters, of.num_layers // stages, 0.8 * most)


def test_the_sentence_has_the_key_what_it_takes_what_is_there_and_the_largest_that_fits() -> None:
    """A window and two buckets of llama_7b are too large for a GPU of 12 GiB."""
    of = zbench.plan([16] * 16, cluster="a800_2x8", model="llama_7b", strategy={"sharding": "zero3"}).cost.gpus.model
    told = {}
    for overlap in (StepOverlap(20), StepOverlap(1, END), StepOverlap(1, 3_000_000_000)):
        with pytest.raises(ValueError, match="GiB on every GPU, of whose 12") as refused:
            check_room(ShardedParameters(of, 16, 1, "3", overlap), 32, 12 * GIB)
        told[overlap] = str(refused.value)
    layer = of.layer_params
    kept = 14 * of.total_params / 16 / GIB  # bfloat16 parameters, and 12 bytes of optimizer state
    window = 12 - kept
    whole, most = 21 * layer * 2 * 15 / 16 / GIB, int(window * GIB / (layer * 2 * 15 / 16)) - 1
    assert told[StepOverlap(20)] == (
        f"sharding.window is 20; the parameters of 21 layers of llama_7b take {whole:.1f} GiB on every GPU, of whose "
        f"12.0 GiB {window:.1f} are left beside parameters and optimizer state: it takes at most {most}"
    )
    check_room(ShardedParameters(of, 16, 1, "3", StepOverlap(most)), 32, 12 * GIB)
    layers = int(window * GIB / (4 * layer))
    assert told[StepOverlap(1, END)].startswith("sharding.gradient_bucket is end; the gradients of 32 layers of llama")
    assert told[StepOverlap(1, END)].endswith(
        f"it takes layer, or less than {(layers + 1) * layer} parameters, {layers} layers"
    )
    check_room(ShardedParameters(of, 16, 1, "3", StepOverlap(1, (layers + 1) * layer - 1)), 32, 12 * GIB)
    assert told[StepOverlap(1, 3_000_000_000)].startswith("sharding.gradient_bucket is 3000000000; the gradients of 14")


@pytest.mark.parametrize(
    ("zero", "overlap", "memory"),
    [
        ("1", StepOverlap(ALL), 1.0),  # whatever the window, all parameters are there when a forward ends
        ("3", StepOverlap(2), 1.0),  # not even one layer fits, so what is refused is the model
        ("3", StepOverlap(2), 1e9),
        (ShardDegrees(2, 2, 4, 4), StepOverlap(2), 1e9),
    ],
    ids=str,
)
def test_what_is_not_the_cause_is_not_refused(zero: str | ShardDegrees, overlap: StepOverlap, memory: float) -> None:
    check_room(ShardedParameters(MODEL, 4, 1, zero, overlap), MODEL.num_layers, memory)
