"""Runs under masks: what is recorded, told, made again and kept apart."""

from pathlib import Path

import numpy as np
import pytest

from tests.run.test_run import RING, recorded, request
from zbench.compare.gate import run_place
from zbench.describe.batch import Batch
from zbench.describe.mask import Mask
from zbench.plans.plan import Plan
from zbench.proof.verify import PlanError
from zbench.record.flops import Facts, flops
from zbench.record.rows import rows, setting
from zbench.run.parts import Parts
from zbench.run.replay import Replay
from zbench.run.run import run_with_baseline
from zbench.simulated.executor import Simulated
from zbench.systems.ring import Ring

MASKS = ("causal", "full", "window:9")


def test_a_mask_is_recorded_played_and_made_again(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    for mask in MASKS:
        run_with_baseline(request(out, mask=mask, workload={"_target_": "tests.run.test_run.Lengths"}))
    found = recorded(out)
    assert [one.start["config"]["mask"] for one in found] == list(MASKS)
    assert ["pairs" in one.steps[0] for one in found] == [False, True, True]
    for one in found:
        replay = Replay.of(one, trust=True)
        assert str(replay.cost.model.mask) == one.start["config"]["mask"]
        for line in one.steps:
            batch, plans = replay.step(line)
            assert Simulated(replay.cost).step(batch, plans).seconds == line["seconds"]
            assert line.get("pairs") in (None, replay.cost.model.mask.pairs(batch.lengths))
    assert len({str(setting(one.start)) for one in found}) == 3
    assert len({run_place(one) for one in found}) == 3
    assert run_place(found[0])[-1] != "mask causal"
    assert run_place(found[2])[-1] == "mask window:9"


def test_a_baseline_under_another_mask_is_none(tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    run_with_baseline(request(out, RING, None, mask="full"))
    other = {**RING, "received_kv": "keep"}
    run_with_baseline(request(out, other, RING, mask="window:9"))
    named = {(row["mask"], row["system"]): row["speedup"] for row in rows(recorded(out))}
    assert len(recorded(out)) == 3  # the baseline was run under the window, too
    assert {mask for mask, _ in named} == {"full", "window:9"}


def test_mfu_counts_visible_pairs(tmp_path: Path) -> None:
    asked = request(tmp_path / "r.jsonl", mask="window:9")
    facts = Facts.of(Parts.of(asked.config, asked.settings).facts())
    lengths = np.array([5, 40])
    tokens, squared = int(lengths.sum()), int((lengths**2).sum())
    seen, causal = (mask.pairs(lengths) for mask in (Mask(window=9), Mask()))
    width = facts.num_layers * facts.num_heads * facts.head_dim
    assert (seen, causal) == (15 + 9 * 40 - 36, (squared + tokens) // 2)
    less = flops(facts, tokens, squared, 0) - flops(facts, tokens, squared, 0, pairs=seen)
    assert less == 12 * width * (causal - seen)
    assert flops(facts, tokens, squared, 0, pairs=causal) == flops(facts, tokens, squared, 0)
    assert flops(facts, tokens, squared, 0, "megatron", seen) == flops(facts, tokens, squared, 0, "megatron")


class Unmasked(Ring):
    """A system that knows no masks."""

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        return tuple(plan.with_(mask=Mask()) for plan in Ring.plan(self, batch))


def test_a_system_that_knows_no_masks_is_told(tmp_path: Path) -> None:
    asked = request(tmp_path / "r.jsonl", {"_target_": "tests.run.test_run_masks.Unmasked"}, mask="full")
    with pytest.raises(PlanError, match=r"plan.mask is causal; a step of this model takes the model's, full"):
        run_with_baseline(asked)
