"""Rates as curves: between sizes, from yamls, in the cost model and its bound."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.cost.bound import least_seconds
from zbench.cost.cost import Cost
from zbench.cost.ranks_of_gpus import grouped
from zbench.describe.cluster import Cluster
from zbench.describe.curve import Curve
from zbench.describe.device import CURVES, Device
from zbench.describe.model import Model
from zbench.passes import reverse
from zbench.plans.area import TILE, Work, work
from zbench.plans.build import Builder
from zbench.plans.patterns import local, ring

RATES = {128: "100 TFLOP/s", 1024: "300 TFLOP/s", 8192: "400 TFLOP/s"}
PLAIN = Device("plain", 1e15, 1e11, 3e12, 3e11, 5e14, 4e14, 3e14, 5e-6, 6e-5)
CURVED = replace(PLAIN, **dict.fromkeys(CURVES, RATES))
MODEL = Model("a model", 2, 512, 8, 2, 64, 1024, 256)


def curves(given: dict[object, object]) -> dict[str, object]:
    return dict.fromkeys(CURVES, given)


def cost_of(device: Device) -> Cost:
    return Cost(Cluster("one", 1, 2, 1, 1e10, 1.0, 0.0, 1e11, 1.0, 0.0, device), MODEL)


def test_a_curve_is_what_was_measured_and_between_as_if_a_piece_had_a_fixed_cost() -> None:
    curve = Curve.of("x", RATES)
    assert 1 / curve.seconds(np.array([128, 1024, 8192])) == pytest.approx([1e14, 3e14, 4e14])
    assert 1 / curve.seconds(np.array([1, 1e9])) == pytest.approx([1e14, 4e14])  # outside as at the ends
    fixed = Curve.of("x", {100: 100 / (2 + 100 * 1e-2), 1000: 1000 / (2 + 1000 * 1e-2)})  # 2 s a piece, 10 ms a unit
    sizes = np.array([100.0, 200.0, 500.0, 1000.0])
    assert sizes * fixed.seconds(sizes) == pytest.approx(2 + sizes * 1e-2)


def test_a_record_has_sizes_as_text() -> None:
    assert Curve.of("x", {str(size): rate for size, rate in RATES.items()}) == Curve.of("x", RATES)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({CURVES[0]: RATES}, f"cluster.device.{CURVES[1]} is not given; the curves of attention are four, or none"),
        (curves({}), f"cluster.device.{CURVES[0]} is {{}}; it takes rates by size"),
        (curves({0: 1e9}), f"cluster.device.{CURVES[0]} has the size 0; it takes numbers above 0"),
        (curves({"short": 1e9}), f"cluster.device.{CURVES[0]} has the size 'short'; it takes numbers"),
        (curves({128: "9 GB"}), f"cluster.device.{CURVES[0]} at 128 is '9 GB'; it takes FLOP/s"),
        (curves({128: -1}), f"cluster.device.{CURVES[0]} at 128 is -1; it has to be above 0"),
        ({**dict.fromkeys(CURVES, RATES), "tile": 1}, "cluster.device.tile is 1; curves of attention are of whole"),
        ({"matmul_by_tokens": 3}, "cluster.device.matmul_by_tokens is 3; it takes curves by model"),
        ({"matmul_by_tokens": {"tiny": 3}}, "cluster.device.matmul_by_tokens.tiny is 3; it takes rates by size"),
    ],
)
def test_a_wrong_curve_is_told(changes: dict[str, object], told: str) -> None:
    with pytest.raises(ValueError) as found:  # noqa: PT011 - the whole text is compared
        replace(PLAIN, **changes)  # type: ignore[arg-type]
    assert str(found.value).startswith(told)


@pytest.mark.parametrize("backward", [False, True])
def test_attention_takes_the_rate_of_its_rows(backward: bool) -> None:
    heads, kv_heads = np.array([8]), np.array([2])
    instant = replace(PLAIN, attention_forward_flops=1e30, attention_backward_flops=1e30)
    for length, keys in ((128, 128), (2048 - 128, 1024), (16384 - 128, 8192)):  # causal: a row sees half on average
        whole = Work.whole(np.array([length]))
        flops = (10 if backward else 4) * whole.tiles[0] * TILE**2 * 8 * 64
        rest = cost_of(instant).stream_seconds(whole, heads, kv_heads, backward)
        taken = cost_of(CURVED).stream_seconds(whole, heads, kv_heads, backward) - rest
        assert flops / taken[0] == pytest.approx(1 / Curve.of("x", RATES).seconds(np.array([keys]))[0])


def test_pieces_of_a_call_are_taken_at_the_mean_of_their_rows() -> None:
    """Exact as long as the pieces are between the same two sizes."""
    lengths = np.array([2048, 4096, 8192])
    each = cost_of(CURVED).whole_seconds(lengths, False).sum()
    works = Work.whole(lengths)
    together = Work(*(np.array([getattr(works, name).sum()]) for name in Work.__dataclass_fields__))
    one = cost_of(CURVED).stream_seconds(together, np.array([8]), np.array([2]), False)
    assert one[0] == pytest.approx(each)


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=6), st.booleans())
def test_segments_have_their_rows_and_triangles(lengths: list[int], cut: bool) -> None:
    builder, seqs = Builder(np.array(lengths, np.int64), 2, 8), np.arange(len(lengths))
    if cut:
        ring(builder, seqs, 0 * seqs, np.array([[0, 1]]))
    else:
        local(builder, seqs, 0 * seqs)
    plan = reverse(builder.build(), "keep")
    _, amount = work(plan, plan.forward)
    assert (amount.triangles <= amount.segments).all()
    assert (amount.rows >= amount.segments).all()
    assert (amount.rows >= amount.queries / TILE).all()
    assert (amount.rows <= amount.queries / TILE + amount.segments).all()
    if not cut:
        assert amount.triangles.sum() == len(lengths)
        assert amount.rows.sum() == sum(-(-length // TILE) for length in lengths)


@given(st.integers(1, 40_000))
def test_the_bound_takes_the_best_rates(length: int) -> None:
    """A ring's rectangles may be faster than the whole sequence; the bound is below both."""
    faster = replace(CURVED, attention_forward_full={128: 9e14}, attention_backward_full={128: 9e14})
    cost = cost_of(faster)
    for backward in (False, True):
        least = least_seconds(np.array([length]), cost, backward)
        fast = replace(PLAIN, attention_forward_flops=9e14, attention_backward_flops=9e14)
        assert least == pytest.approx(least_seconds(np.array([length]), cost_of(fast), backward))
        assert least[0] <= cost.whole_seconds(np.array([length]), backward)[0]


def test_matmuls_take_the_rate_of_their_tokens_and_model() -> None:
    device = replace(PLAIN, matmul_by_tokens={"a model": {64: 1e14, 4096: 4e14}, "another": {64: 1.0}})
    plain, curved = cost_of(PLAIN), cost_of(device)
    for tokens, rate in ((1, 1e14), (64, 1e14), (4096, 4e14), (10**6, 4e14)):
        flops = 2 * MODEL.layer_matmul_params * tokens
        more = curved.linear_seconds(np.array([tokens])) - plain.linear_seconds(np.array([tokens]))
        assert more[0] == pytest.approx(flops / rate - flops / PLAIN.matmul_flops)
    seconds = curved.linear_seconds(np.arange(0, 9000, 7))
    assert (np.diff(seconds) > 0).all()
    assert grouped(curved, 2).cluster.device.matmul_by_tokens == {}  # a group's matmuls have other shapes
