"""Published measurements against predictions: bounds, a hold on today's errors, and the plans behind them."""

import json
import subprocess
import sys
from collections.abc import Sequence

import numpy as np
import pytest

from zbench.anchors import attention, flexsp, hybrid, steps
from zbench.anchors.__main__ import GROUPS, anchors, main
from zbench.anchors.anchor import Anchor, published
from zbench.anchors.packs import packs
from zbench.anchors.presets import cluster, workload
from zbench.anchors.summary import summary
from zbench.cost import Cost
from zbench.plan import ATTEND
from zbench.simulate import programs
from zbench.verify import verify

# Errors in percent, in the order of the tables. A change of the cost model has to say here what it did to them.
HELD = {
    "flexsp": [5.6, 3.1, 3.5, -8.0, 8.5, 13.9, -11.2, 4.7],
    # a line for each mask, size and pass: ulysses, ring_p2p, ring_allgather, usp, loongtrain, hybrid_dcp
    "attention": [
        6.1, 5.3, 6.9, 10.8, 11.1, 6.0,
        2.4, 1.2, -0.4, 3.5, 3.6, 1.5,
        9.5, 0.6, 10.4, 9.1, 9.4, 0.8,
        2.2, -3.1, -1.6, 1.2, 3.1, -2.8,
        -2.4, 3.1, 1.3, -1.0, -0.9, 2.6,
        -3.4, 1.4, -2.7, -1.7, -0.8, 2.4,
        1.5, -4.4, 5.1, 4.2, 4.8, -5.0,
        0.0, -7.4, -2.7, 0.8, 4.7, -7.0,
        -5.5, 13.9, -4.4, -1.5, -1.0, -3.8,
        -1.1, 21.0, 3.5, 0.1, 1.2, 3.4,
        3.6, 23.0, -3.8, 8.8, 8.2, -5.0,
        1.2, 10.3, 20.0, 6.4, 19.3, -7.3,
        -10.2, 19.1, -4.1, -4.3, -3.7, -14.4,
        -4.1, 31.2, 8.1, -2.0, -0.8, 3.0,
        3.2, 37.0, -2.3, 13.1, 12.7, -12.2,
        2.1, 32.7, 22.7, 10.3, 34.3, -10.2,
    ],
    "training": [13.4, 2.4, 2.9, 5.9, 6.0],
    "steps": [-13.8, -41.8, -36.1],
    "unhidden": [7.2, -10.8, 1.7],
}  # fmt: skip
POINTS = 2.0
METHODS = ("ulysses", "ring_p2p", "ring_allgather", "usp", "loongtrain", "hybrid_dcp")
# LoongTrain's plan is USP's where the ring has two rows; the benchmark's code for its backward is 11 to 18 % slower.
SAME_PLAN = {("varlen_full bwd 16 GPUs usp", "varlen_full bwd 16 GPUs loongtrain"),
             ("varlen_causal bwd 16 GPUs usp", "varlen_causal bwd 16 GPUs loongtrain"),
             ("varlen_causal bwd 16 GPUs ulysses", "varlen_causal bwd 16 GPUs loongtrain")}  # fmt: skip


@pytest.fixture(scope="module")
def found() -> list[Anchor]:
    return anchors()


def orders(broken: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    return {(high.split(",")[0], low.split(",")[0]) for high, low in broken}


def of(found: Sequence[Anchor], group: str) -> list[Anchor]:
    return [anchor for anchor in found if anchor.anchor == group]


def test_every_published_number_is_predicted_once(found: list[Anchor]) -> None:
    """But steps, which are predicted with and without what layers hide."""
    names = ("all_to_all", "compute", "attention", "training", "steps")
    once = [anchor for anchor in found if anchor.anchor != "unhidden"]
    assert len(once) == sum(len(published(name)) for name in names) == 112
    assert len({anchor.case for anchor in once}) == len(once)
    assert [one.case for one in of(found, "unhidden")] == [one.case for one in of(found, "steps")]
    assert {anchor.anchor for anchor in found} == set(GROUPS)
    assert all(row["source"] for name in (*names, "documents") for row in published(name))


def test_flexsp_is_within_its_bounds(found: list[Anchor]) -> None:
    for anchor in of(found, "flexsp"):
        assert abs(anchor.error) < (0.20 if "all-to-all" in anchor.case else 0.15), anchor


def test_attention_is_within_its_bounds(found: list[Anchor]) -> None:
    members = of(found, "attention")
    s = summary(members)
    assert s.median < 0.20
    assert np.mean([abs(anchor.error) < 0.50 for anchor in members]) >= 0.9
    # Hybrid context parallelism's documents of one GPU are predicted 12 % too slow, which puts it below Ulysses once.
    assert orders(s.broken) == SAME_PLAN | {
        ("varlen_causal fwd 16 GPUs hybrid_dcp", "varlen_causal fwd 16 GPUs ulysses")
    }
    assert s.pairs == 153


@pytest.mark.parametrize("method", METHODS)
def test_every_method_is_within_its_bounds(found: list[Anchor], method: str) -> None:
    errors = [abs(anchor.error) for anchor in of(found, "attention") if f" {method}," in anchor.case]
    assert len(errors) == 16
    assert np.median(errors) < 0.20
    assert max(errors) < 0.40


def test_loongtrain_and_usp_are_one_plan_there(found: list[Anchor]) -> None:
    """With a ring of one or two rows the benchmark's double ring is a single ring: the differences are all measured."""
    by_case = {anchor.case: anchor.predicted for anchor in found}
    assert all(by_case[case] == by_case[case.replace("loongtrain", "usp")] for case in by_case if "loongtrain" in case)


def test_training_is_within_its_bounds(found: list[Anchor]) -> None:
    assert all(abs(anchor.error) < 0.20 for anchor in of(found, "training"))


def test_steps_with_documents_keep_their_order(found: list[Anchor]) -> None:
    """Too short with collectives hidden behind layers, right with nothing hidden (docs/claims.md)."""
    for group, low, high in (("steps", -0.5, 0.0), ("unhidden", -0.15, 0.15)):
        members = of(found, group)
        assert not summary(members).broken
        assert summary(members).pairs == 3
        assert all(low < anchor.error < high for anchor in members)


def test_steps_are_of_the_published_set_up() -> None:
    cost = steps.cost_of(cluster)
    assert (cost.cluster.num_ranks, cost.cluster.device.memory_bytes) == (64, 28e9)
    for step in range(2):
        one = steps.batch(workload("wikipedia"), step)
        assert len(one.lengths) == 512
        assert one.lengths.max() <= 192 * 1024
    states = 16 * cost.model.total_params / 64
    holds = [degree for degree in (1, 2, 4, 8, 16, 32, 64) if states + 4.48e6 * steps.LONGEST / degree <= steps.BUDGET]
    assert min(holds) == steps.STATIC


@pytest.mark.parametrize("group", list(GROUPS))
def test_errors_stay_where_they_are(found: list[Anchor], group: str) -> None:
    members = of(found, group)
    moved = [
        f"{anchor.case}: {anchor.error:+.1%}, was {held:+.1f}%"
        for anchor, held in zip(members, HELD[group], strict=True)
        if abs(100 * anchor.error - held) > POINTS
    ]
    assert not moved, "\n".join(moved)


def test_predictions_are_a_function_of_the_sources_alone(found: list[Anchor]) -> None:
    again = flexsp.anchors(cluster) + attention.anchors(cluster)
    assert again == [anchor for anchor in found if anchor.anchor in ("flexsp", "attention")]


@pytest.mark.parametrize("seed", [2, 3])
def test_bounds_hold_for_other_packs(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(attention, "SEED", seed)
    s = summary(attention.anchors(cluster))
    assert s.median < 0.10
    assert s.p90 < 0.30
    assert orders(s.broken) == SAME_PLAN


@pytest.mark.parametrize("total", [8192, 65536, 131072])
def test_packs_follow_the_table(total: int) -> None:
    drawn = packs(total, 200, seed=0)
    assert all(pack.sum() == total and pack.min() > 0 and pack.max() <= total // 4 for pack in drawn)
    assert all((a == b).all() for a, b in zip(drawn, packs(total, 200, seed=0), strict=True))
    rows = published("documents")
    middle = np.array([(int(row["low"]) + int(row["high"])) // 2 for row in rows])
    count = np.array([int(row["documents"]) for row in rows], float)
    tail = middle % (total // 4)
    squares = (count * ((middle // (total // 4)) * (total // 4.0) ** 2 + tail**2)).sum() / (count * middle).sum()
    # Cutting documents at a pack's end makes pieces shorter, more so in small packs.
    assert 0.75 < np.mean([(pack.astype(float) ** 2).sum() / total for pack in drawn]) / squares < 1.05


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_nodes", [1, 2])
@pytest.mark.parametrize("method", METHODS[:-1])
def test_the_benchmarks_plans_are_correct(method: str, num_nodes: int, causal: bool) -> None:
    on = cluster("h100_4x8", num_nodes=num_nodes)
    lengths = np.concatenate([packs(8192 * on.num_ranks, 1, seed=5)[0], [1, 3, 17, 40]])
    plan = attention.plan_of(method, lengths, causal, on)
    verify(plan)
    attends = np.bincount(plan.forward.src[plan.forward.kind == ATTEND], minlength=on.num_ranks)
    rows = {"ulysses": 1, "ring_p2p": on.num_ranks, "ring_allgather": 2, "usp": num_nodes, "loongtrain": num_nodes}
    assert (attends == rows[method]).all()


@pytest.mark.parametrize("causal", [False, True])
def test_hybrid_rounds_are_correct_and_single_gpus_unstaged(causal: bool) -> None:
    on = cluster("h100_4x8", num_nodes=1)
    lengths = np.array([9000, 20_000, 3000, 3000, 8192, 100, 1, 22_000])
    plans = hybrid.plans(lengths, causal, on, attention.MODEL)
    assert sorted(np.concatenate([plan.sequences for plan in plans]).tolist()) == list(range(len(lengths)))
    staged, bare = Cost(on, attention.MODEL, staged=True), Cost(on, attention.MODEL)
    alone = 0
    for plan in plans:
        verify(plan)
        blocks = [len(np.unique(plan.blocks.block[plan.blocks.seq == seq])) for seq in range(len(plan.lengths))]
        mixed, slow, fast = hybrid.mixed_programs(plan, staged), programs(plan, staged), programs(plan, bare)
        for part, high, low in zip(mixed, slow, fast, strict=True):
            plain, wrapped = part.busy == low.busy, part.busy == high.busy
            assert (plain | wrapped).all()
            assert (plain & ~wrapped).sum() == blocks.count(1)
        alone += blocks.count(1)
    assert alone > 0


def test_orders_are_judged_inside_a_family_only() -> None:
    def made(case: str, measured: float, predicted: float, family: str) -> Anchor:
        return Anchor("g", case, measured, predicted, "nowhere", family)

    near = made("d", 1.05, 1.5, "x")
    s = summary([made("a", 1.0, 2.0, "x"), made("b", 2.0, 1.6, "x"), made("c", 9.0, 0.5, "y"), near])
    assert s.broken == [("b", "a")]
    assert s.pairs == 2
    assert s.worst == pytest.approx(1.0)


def test_json_is_a_list_of_every_case(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["zbench.anchors", "--json"])
    assert main() == 0
    rows = json.loads(capsys.readouterr().out)
    assert len(rows) == 112 + 3  # steps twice
    assert all(list(row) == ["anchor", "case", "measured", "predicted", "error", "source"] for row in rows)
    assert all(row["error"] == row["predicted"] / row["measured"] - 1 for row in rows)


def test_the_command_prints_tables() -> None:
    done = subprocess.run([sys.executable, "-m", "zbench.anchors"], capture_output=True, text=True, check=True)
    for words in ("measured", "predicted", "error", "source", "torchtitan", "4 of 153 orders broken"):
        assert words in done.stdout
    assert not done.stderr
