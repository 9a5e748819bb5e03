"""FSMoE's closed form against its published planner: numbers of chunks and seconds that this printed."""

import numpy as np
import pytest

from tests.cost.fsmoe_planner import backward_degrees, divided_gradients
from zbench.cost.fsmoe import ExpertLayerSeconds, LinearSeconds, unhidden_gradients
from zbench.describe.expert_schedule import DEGREES

# Milliseconds of what starts and of an element: all-to-all, gather, matmuls, reduction in the node, all-reduce
# (github xpan413/FSMoE 4d4cf36, tools/optim.py, the values that it comes with).
STARTS = (2.3515350484e-01, 0.0549, 5.9194353200e-01, 0.0688, 3.4099276392e-01)
EACH = (1.8543323833e-06, 6.72388e-7, 5.6847387697e-11, 6.70433e-7, 3.4950701465e-06)
ALL_REDUCE = LinearSeconds(STARTS[4] * 1e-3, EACH[4] * 1e-3)


def part(kind: int, elements: float) -> LinearSeconds:
    return LinearSeconds(STARTS[kind] * 1e-3, EACH[kind] * elements * 1e-3)


def layer(
    batch: int, length: int, hidden: int, columns: int, matmuls: int = 2, kept: float = 2.4, shards: int = 8
) -> ExpertLayerSeconds:
    """The planner's layer: its keys B, L, M, H, number_gemm, f and es_size."""
    rows = kept * batch * length * hidden
    experts = part(2, rows * columns / shards * matmuls)
    return ExpertLayerSeconds(part(0, rows / shards), experts, part(1, rows), part(3, rows))


def planned(one: ExpertLayerSeconds, batch: int, length: int, hidden: int, layers: int = 2) -> tuple[int, list[int]]:
    """Returns the chunks that the planner prints, of the forward and of every layer's backward. Its dense part takes
    1.3 ms and a gather and a reduction inside the node."""
    gradient = hidden * hidden // 8 * 3 + hidden // 8 * 3 + hidden * hidden // 8 + hidden
    tokens = batch * length * hidden
    dense = 1.3e-3 + part(1, tokens).of_chunk(1) + part(3, tokens).of_chunk(1)
    forward = 1 if one.is_short() else one.best_degree()
    return forward, backward_degrees(one.backward(), gradient, dense, ALL_REDUCE, layers)


@pytest.mark.parametrize(
    ("keys", "more", "layers", "printed"),
    [
        ((4, 1024, 4096, 14336), {"matmuls": 3}, 2, (8, [8, 8])),  # its defaults
        ((2, 512, 2048, 8192), {}, 2, (4, [2, 2])),
        ((1, 512, 1024, 4096), {}, 2, (1, [1, 1])),
        ((4, 1024, 4096, 14336), {"matmuls": 3, "kept": 1.2}, 4, (8, [8, 8, 8, 8])),
        ((8, 2048, 2048, 2048), {"shards": 4}, 2, (8, [8, 8])),
        ((2, 256, 4096, 14336), {"matmuls": 3}, 3, (4, [2, 1, 1])),  # the planner has the last layer last
    ],
)
def test_golden_values_of_the_published_planner(
    keys: tuple[int, int, int, int], more: dict[str, float], layers: int, printed: tuple[int, list[int]]
) -> None:
    assert planned(layer(*keys, **more), *keys[:3], layers) == printed  # type: ignore[arg-type]


# The same of the paper's two testbeds (arXiv 2501.10714, figure 5); the last number: GPUs over which an expert is cut.
TESTBEDS = {
    "planner": (STARTS, EACH, 8),
    "A": ((0.287, 0.337, 4.26e-2, 0.395), (2.21e-7, 2.32e-6, 2.29e-11, 2.34e-7), 8),
    "B": ((0.175, 3.20e-2, 9.24e-2, 3.91e-2), (3.06e-7, 1.68e-7, 4.42e-11, 1.67e-7), 4),
}


@pytest.mark.parametrize(
    ("testbed", "keys", "kept", "matmuls", "gradients", "degree", "told", "best"),
    [
        ("A", (2, 1024, 4096, 16384), 1.2, 2, 4.74, 2, 28.0255, 28.0255),
        ("A", (4, 256, 1024, 4096), 1.2, 3, 0.58, 1, 4.7629, 4.7629),
        ("A", (1, 256, 2048, 8192), 1.2, 3, 3.94, 1, 4.5488, 4.5488),
        ("B", (2, 1024, 4096, 16384), 1.2, 2, 4.74, 4, 9.6782, 9.6782),
        ("B", (8, 512, 2048, 8192), 1.2, 2, 2.27, 4, 6.0333, 6.0333),
        ("B", (4, 256, 1024, 4096), 1.2, 3, 0.58, 2, 1.4725, 1.4725),
        ("planner", (2, 1024, 4096, 16384), 1.2, 2, 4.74, 4, 15.649, 15.649),
        ("planner", (8, 512, 2048, 8192), 1.2, 2, 2.27, 8, 15.5605, 15.5605),
        ("planner", (4, 256, 2048, 6144), 2.4, 2, 3.63, 2, 8.643, 8.4815),  # four chunks take less
        ("planner", (1, 256, 2048, 2048), 2.4, 2, 2.68, 2, 4.2039, 4.1241),  # so does one
    ],
)
def test_golden_seconds_of_the_published_optimiser(
    testbed: str,
    keys: tuple[int, int, int, int],
    kept: float,
    matmuls: int,
    gradients: float,
    degree: int,
    told: float,
    best: float,
) -> None:
    """Milliseconds of a backward with gradients on the links of exchanges, and the chunks that it chose
    (tools/optim.py, optimize_degree): the closed form has the same for these, and at least as good a number."""
    starts, each, shards = TESTBEDS[testbed]
    batch, length, hidden, columns = keys
    rows = kept * batch * length * hidden
    sizes = (rows / shards, rows, rows * columns / shards * matmuls, rows)
    exchange, gather, experts, reduction = (
        LinearSeconds(start, one * size) for start, one, size in zip(starts[:4], each[:4], sizes, strict=True)
    )
    found = ExpertLayerSeconds(exchange, experts, gather, reduction).backward()
    assert found.makespan(degree, gradients) == pytest.approx(told, abs=1e-4)
    assert min(found.makespan(one, gradients) for one in DEGREES) == pytest.approx(best, abs=1e-4)


def test_seconds_are_the_largest_of_four_sums() -> None:
    """By hand, of a layer in which each of them is the largest once."""
    second = LinearSeconds(0.0, 1.0)
    one = ExpertLayerSeconds(second, second.times(4), second.times(0.5), second.times(0.5))
    assert one.makespan(2) == 2 * 0.5 + 0.25 + 0.25 + 4  # experts
    assert one.makespan(2, reduced=9.0) == 2 + 9  # exchanges and gradients
    assert ExpertLayerSeconds(second, second.times(0.1)).makespan(2) == 2  # exchanges
    inside = ExpertLayerSeconds(second, second, second.times(3), second.times(3))
    assert inside.makespan(2) == 2 * 0.5 + 6  # gathers and reductions inside nodes
    assert one.backward().experts == second.times(8)


def test_gradients_in_the_slack_make_a_layer_no_longer() -> None:
    """Until they fill it; a hair more makes it longer, where gathers take as long as reductions."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        starts, work = rng.uniform(0, 1e-4, 4), 10 ** rng.uniform(-4, -2, 4)
        parts = [LinearSeconds(float(one), float(two)) for one, two in zip(starts, work, strict=True)]
        one = ExpertLayerSeconds(parts[0], parts[1], parts[2], parts[2])
        for degree in DEGREES:
            slack, alone = one.slack(degree), one.makespan(degree)
            assert slack >= 0
            assert one.makespan(degree, slack) == pytest.approx(alone, rel=1e-12)
            if one.gather.of_chunk(degree) > one.exchange.of_chunk(degree) or slack > 0:
                assert one.makespan(degree, slack * 1.01 + 1e-6) > alone


def test_what_no_slack_hides_waits_for_a_later_layer_with_slack() -> None:
    each = LinearSeconds(0.1, 1.0)
    assert unhidden_gradients([2.0, 0.0], [1.1, 1.1], each) == pytest.approx([0.0, 0.0])
    assert unhidden_gradients([2.0, 1.0, 0.0], [0.6, 0.0, 1.1], each) == pytest.approx([1.5, 0.0, 0.0])  # last in first
    assert unhidden_gradients([2.0], [0.05], each) == [2.0]  # no room for what a reduction takes in any case
    rng = np.random.default_rng(1)
    sizes, slacks = rng.uniform(0, 2, 9).tolist(), rng.uniform(0, 1, 9).tolist()
    left = unhidden_gradients(sizes, slacks, each)
    assert all(0 <= rest <= size for rest, size in zip(left, sizes, strict=True))


def test_what_is_left_is_divided_as_well_as_by_trying_all() -> None:
    """Against a search through coarse divisions: none that respects what is there is better."""
    one, each = layer(2, 512, 2048, 8192).backward(), ALL_REDUCE
    gap = one.slack(one.best_degree())

    def seconds(inside: list[float], total: float) -> float:
        layers = sum(one.makespan(one.best_degree(gap + each.work * size), gap + each.work * size) for size in inside)
        return layers + each.work * (total - sum(inside))

    left = [3.0e6, 0.0, 1.0e6]
    found = divided_gradients(left, one, each)
    assert (np.cumsum(found) <= np.cumsum(left) * (1 + 1e-9)).all()
    steps = [4.0e6 * at / 16 for at in range(17)]
    others = [
        [a, b, c] for a in steps for b in steps for c in steps if a <= 3.0e6 and a + b <= 3.0e6 and a + b + c <= 4.0e6
    ]
    assert seconds(found, 4.0e6) <= min(seconds(other, 4.0e6) for other in others) * (1 + 1e-9)
    assert divided_gradients([0.0, 0.0], one, each) == [0.0, 0.0]
