"""A step as text with the tokens of its attention: it reads back, is played to the seconds of the run's step, and a
fault in it is told with line and column."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import zbench
from zbench.api.played_text import PlayedText, check_fits
from zbench.describe.worlds import Machine
from zbench.planned.step import StepPlans
from zbench.planned.written_step import WrittenStep
from zbench.simulated.executor import Simulated
from zbench.step.passes.own_plans import plans_of_layouts
from zbench.step.reading.scanner import TextFault

LENGTHS = [3000, 700, 90, 1200, 5, 60]
TINY: dict[str, Any] = {"cluster": "local_2x2", "model": "tiny"}
CASES: dict[str, dict[str, Any]] = {
    "a ring": {**TINY, "system": "ring"},
    "routed transfers": {"system": "nodewise", "cluster": "a800_2x8", "model": "llama_3b", "pipelines": False},
    "tensor-parallel groups": {
        **TINY,
        "system": "zeppelin",
        "strategy": {"sharding": "zero1", "parallel": {"tensor_parallel": 2}},
    },
    "stages, all made again": {
        **TINY,
        "system": "zeppelin",
        "strategy": {"sharding": "zero1", "parallel": {"pipeline_parallel": 2}, "recompute": "full"},
    },
    "pipelines that differ": {"system": "hydraulis", "cluster": "a800_2x8", "model": "llama_3b"},
    "a window, the loss in chunks": {**TINY, "system": "ring", "mask": "window:300", "strategy": {"memory": "loss"}},
    "exchanges beside matmuls": {
        **TINY,
        "system": "ring",
        "strategy": {"parallel": {"tensor_parallel": 2}, "overlap": "async_tp"},
    },
    "queries cut": {
        **TINY,
        "system": "zeppelin",
        "strategy": {"parallel": {"tensor_parallel": 2}, "overlap": "query_split"},
    },
    "experts on several GPUs": {
        "cluster": "a800_2x8",
        "model": "gpt2_moe",
        "system": "ring",
        "strategy": {"parallel": {"expert_parallel": 2}},
    },
    "optimizer state on hosts": {
        "cluster": "h100_4x8",
        "model": "llama_3b",
        "system": "ring",
        "strategy": {"memory": "zero_offload"},
    },
}


@cache
def planned(case: str) -> tuple[StepPlans, WrittenStep]:
    """Returns the plans of a case, and their step as it is written."""
    plans = zbench.plan(LENGTHS, **CASES[case])
    step = Simulated(plans.cost, **plans.strategy.arguments).built(plans.batch, plans.plans)
    return plans, WrittenStep(step, tuple(plans_of_layouts(plans.plans)))


@pytest.mark.parametrize("case", CASES)
def test_a_step_of_its_text_takes_the_seconds_and_bytes_of_the_runs_step(case: str) -> None:
    plans, written = planned(case)
    run = Simulated(plans.cost, **plans.strategy.arguments).step(plans.batch, plans.plans)
    read = WrittenStep.read(written.text)
    machine = Machine(plans.cluster, plans.model)
    check_fits(read, *machine)
    played = PlayedText.of(read, machine, plans.strategy).played
    assert played.seconds == run.seconds
    assert {name: one.tolist() for name, one in played.nic_tx.items() if one.any()} == run.nic_tx_for
    assert played.memory.peak[: plans.cluster.num_ranks].tolist() == run.peak_bytes
    assert read.batch is not None
    assert read.batch.lengths.tolist() == LENGTHS


@pytest.mark.parametrize("case", CASES)
def test_a_text_reads_back_to_itself(case: str) -> None:
    text = planned(case)[1].text
    assert WrittenStep.read(text).text == text


def test_padding_and_waits_are_written_and_read() -> None:
    _, written = planned("a ring")
    (plan,) = written.plans
    padded = plan.with_(padding=np.minimum(plan.lengths - 1, 7), in_rounds=True, until_sent=True)
    text = replace(written, plans=(padded,)).text
    (found,) = WrittenStep.read(text).plans
    assert "  sequence 4 of 5 tokens, 4 of padding" in text
    assert "  in rounds\n  until sent\n" in text
    assert found.own_lengths.tolist() == padded.own_lengths.tolist()
    assert (found.in_rounds, found.until_sent, found.serial_legs) == (True, True, False)


@pytest.mark.parametrize(
    ("old", "new", "column", "wrong"),
    [
        ("sequence 4 of", "sequense 4 of", 3, "it has 'sequense' where it takes tokens or sequence or block"),
        ("sequence 4 of 5 tokens", "sequence 4 of five tokens", 17, "it has 'five' where it takes the tokens"),
        ("sequence 4 of 5 tokens", "sequence 4 of 5 tokens, 5 of padding", 1, "tokens that are no padding"),
        ("of layout 0: 4 heads", "of layout 1: 4 heads", 18, "it has layout 1 where it takes 0"),
        ("4 heads, mask causal", "4 heads, mask round", 35, "mask is 'round'; it takes"),
        ("4 heads, mask", "0 heads, mask", 1, "it has 0 heads"),
        ("  block 0[", "  block 9[", 9, "there is no sequence 9; there are 6 before this"),
        ("  block 0[0:375]", "  block 0[0:37500]", 9, "tokens 0:37500 are none of a sequence of 3000"),
        ("  block 0[0:375]", "  block 0[0-375]", 12, "it has '-375]' where it takes :"),
    ],
)
def test_a_fault_is_told_with_its_place(old: str, new: str, column: int, wrong: str) -> None:
    lines = planned("a ring")[1].text.splitlines()
    at = next(at for at, line in enumerate(lines) if old in line)
    lines[at] = lines[at].replace(old, new)
    with pytest.raises(TextFault) as told:
        WrittenStep.read("\n".join(lines))
    assert f"line {at + 1}, column {column}: " in str(told.value)
    assert wrong in str(told.value)


def test_tokens_that_are_not_those_of_the_step_are_told() -> None:
    text = planned("a ring")[1].text
    blocks = [line for line in text.splitlines() if line.startswith("  block ")]
    for old, new, wrong in (
        (f"{blocks[0]}\n", "", "blocks do not have every token of its sequences once"),
        (blocks[0], blocks[1], "blocks do not have every token of its sequences once"),
        (
            f"{blocks[0]}\n{blocks[1]}",
            f"{blocks[0]}{blocks[1].removeprefix('  block')}",
            "the layout's relation visible",
        ),
        ("mask causal", "mask window:2", "sees other blocks by its tokens than the layout's relation visible says"),
    ):
        with pytest.raises(TextFault, match="before this, of tokens of layout 0, ") as told:
            WrittenStep.read(text.replace(old, new))
        assert wrong in str(told.value)


def test_a_step_without_its_tokens_is_not_played() -> None:
    plans, written = planned("a ring")
    with pytest.raises(ValueError, match="has attention, and no line 'tokens of layout 0"):
        check_fits(WrittenStep(written.step), plans.cluster, plans.model)


def test_a_step_is_refused_on_another_machine() -> None:
    plans, written = planned("a ring")
    cluster, model = plans.cluster, plans.model
    for machine, wrong in (
        ((replace(cluster, num_nodes=4), model), "of 8 GPUs; the step is on 4 GPUs"),
        ((cluster, replace(model, num_layers=3)), "of 3 layers; the step has 2 layers: model.num_layers=2"),
        ((cluster, replace(model, num_heads=8)), "with num_heads=8; the step has 4 heads"),
        ((cluster, replace(model, hidden=2 * model.hidden)), "in the step"),
    ):
        with pytest.raises(ValueError, match=wrong):
            check_fits(written, *machine)
