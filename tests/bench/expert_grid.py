"""FSMoE's closed form over 1,458 layers, and how far from it a played pipeline is.

python tests/bench/expert_grid.py        # half a minute
python tests/bench/expert_grid.py drawn  # seconds: layers that are drawn, and no others

The layers are those of the paper's Table 4 (arXiv 2501.10714): sequences, lengths (half of them on testbed B), widths,
columns, capacities, kinds of experts, and heads, which change nothing here. An expert is cut over a node's GPUs: eight
on testbed A, four on B. It does not say how many experts a token has: two, as in its models; without a limit it has as
many rows. What starts and grows is as its Figure 5 has it for both testbeds, and as its planner comes with
(tools/optim.py, github xpan413/FSMoE), of a testbed that it does not name.
Baselines are models, too: `sequential` hides nothing; `tutel` has exchanges and what is gathered inside nodes one after
another beside matmuls, as many chunks backward as forward, and gradients after each layer; `lina` is that with
gradients in pieces of one size between exchanges, each of which starts anew; `no IIO` is FSMoE without exchanges across
nodes beside those inside (its own ablation).
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from math import ceil

import numpy as np

from zbench.cost.fsmoe import ExpertLayerSeconds, LinearSeconds
from zbench.describe.expert_schedule import DEGREES
from zbench.simulated.gradient_order import LINA_PIECE_BYTES
from zbench.step.passes.parameters.zero import GRADIENT_BYTES
from zbench.step.passes.routing import ExpertParallel

# Milliseconds: all-to-all, gather, matmuls, reduction, all-reduce.
PLANNER = (
    (2.3515350484e-01, 0.0549, 5.9194353200e-01, 0.0688, 3.4099276392e-01),
    (1.8543323833e-06, 6.72388e-7, 5.6847387697e-11, 6.70433e-7, 3.4950701465e-06),
)
# On testbed A a gather takes ten times a reduction of as many elements, which is told nowhere.
TESTBED_A = ((0.287, 0.337, 4.26e-2, 0.395, 0.511), (2.21e-7, 2.32e-6, 2.29e-11, 2.34e-7, 4.95e-6))
TESTBED_B = ((0.175, 3.20e-2, 9.24e-2, 3.91e-2, 8.37e-2), (3.06e-7, 1.68e-7, 4.42e-11, 1.67e-7, 5.99e-7))
Measured = tuple[tuple[float, ...], tuple[float, ...]]
PER_TOKEN = 2  # experts
GRID = {
    "sequences": (1, 2, 4),
    "heads": (8, 16, 32),
    "length": (512, 1024, 2048),
    "hidden": (1024, 2048, 4096),
    "columns": (2, 3, 4),  # of hidden
    "kept": (1.2, 2.4, 1.0),  # of a token's experts, rows that there is room for; 1: as many as there are
    "matmuls": (2, 3),
}


def layer(point: Sequence[float], shards: int, measured: Measured) -> tuple[ExpertLayerSeconds, float, float]:
    """A layer's seconds, and those of reducing the gradients of its dense part, of four matrices over a node's GPUs, at
    once and in Lina's pieces. shards: of an expert, one a GPU of a node."""
    sequences, _, length, hidden, columns, kept, matmuls = point
    starts, each = measured
    rows = PER_TOKEN * kept * sequences * length * hidden

    def part(kind: int, elements: float) -> LinearSeconds:
        return LinearSeconds(starts[kind] * 1e-3, each[kind] * elements * 1e-3)

    experts = part(2, rows * columns * hidden / shards * matmuls)
    found = ExpertLayerSeconds(part(0, rows / shards), experts, part(1, rows), part(3, rows))
    gradient = 4 * hidden * hidden / shards
    pieces, reduction = ceil(GRADIENT_BYTES * gradient / LINA_PIECE_BYTES), part(4, gradient)
    return found, reduction.of_chunk(1), pieces * reduction.of_chunk(pieces)


def serial(one: ExpertLayerSeconds, degree: int, reduced: float) -> float:
    """Exchanges across nodes and inside one after another, beside matmuls alone."""
    moved = 2 * one.exchange.of_chunk(degree) + one.gather.of_chunk(degree) + one.reduce.of_chunk(degree)
    return max(degree * moved + reduced, moved + degree * one.experts.of_chunk(degree))


def best(seconds: Callable[[int], float]) -> tuple[int, float]:
    return min(((degree, seconds(degree)) for degree in DEGREES), key=lambda pair: (pair[1], pair[0]))


def seconds_of(one: ExpertLayerSeconds, reduced: float, in_pieces: float) -> dict[str, float]:
    """Forward and backward of a layer by each schedule."""
    back = one.backward()
    whole = [
        2 * which.exchange.of_chunk(1) + which.gather.of_chunk(1) + which.reduce.of_chunk(1) + which.experts.of_chunk(1)
        for which in (one, back)
    ]
    return {
        "sequential": sum(whole) + reduced,
        "tutel": best(lambda degree: serial(one, degree, 0.0) + serial(back, degree, 0.0))[1] + reduced,
        "lina": best(lambda degree: serial(one, degree, 0.0) + serial(back, degree, in_pieces))[1],
        "no IIO": best(lambda degree: serial(one, degree, 0.0))[1]
        + best(lambda degree: serial(back, degree, reduced))[1],
        "fsmoe": one.makespan(one.best_degree()) + back.makespan(back.best_degree(reduced), reduced),
    }


def played(one: ExpertLayerSeconds, degree: int, reduced: float) -> float:
    """The pipeline as events: links across nodes have all chunks out, gradients, all chunks back; links inside and
    matmuls take what is ready first, gathers before reductions."""
    exchange, gather = one.exchange.of_chunk(degree), one.gather.of_chunk(degree)
    reduce, experts = one.reduce.of_chunk(degree), one.experts.of_chunk(degree)
    ready = [(exchange * (at + 1), 0) for at in range(degree)]
    inside, matmul, done = 0.0, 0.0, []
    while ready:
        first = min(ready, key=lambda pair: (max(pair[0], inside), pair[1], pair[0]))
        ready.remove(first)
        inside = max(inside, first[0]) + (gather if first[1] == 0 else reduce)
        if first[1] == 0:
            matmul = max(matmul, inside) + experts
            ready.append((matmul, 1))
        else:
            done.append(inside)
    across = degree * exchange + reduced
    for moment in done:
        across = max(across, moment) + exchange
    return across


def table(name: str, measured: Measured, shards: int, longest: int) -> None:
    grid = GRID | {"length": tuple(longest >> halves for halves in (2, 1, 0))}
    every = [layer(point, shards, measured) for point in product(*grid.values())]
    found = {key: np.array([seconds_of(*one)[key] for one in every]) for key in seconds_of(*every[0])}
    print(f"{name}: {len(every)} layers")
    for key in ("sequential", "lina", "no IIO", "fsmoe"):
        ratio = found["tutel"] / found[key]
        print(f"  {key:<10} over tutel: mean {ratio.mean():.2f}, {ratio.min():.2f} to {ratio.max():.2f}")
    for key in ("sequential", "lina", "no IIO"):
        ratio = found[key] / found["fsmoe"]
        print(f"  fsmoe over {key}: mean {ratio.mean():.2f}, {ratio.min():.2f} to {ratio.max():.2f}")
    apart = [one.best_degree() != one.backward().best_degree(reduced) for one, reduced, _ in every]
    print(f"  other numbers of chunks backward than forward: {sum(apart)}")
    told(pair for one, reduced, _ in every for pair in ((one, 0.0), (one.backward(), reduced)))


def told(layers: Iterable[tuple[ExpertLayerSeconds, float]]) -> None:
    """Prints how far from the closed form layers are when they are played, beside so many seconds of gradients."""
    model, regret, same = [], [], 0
    for which, beside in layers:
        times = {degree: played(which, degree, beside) for degree in DEGREES}
        chosen, least = which.best_degree(beside), min(times.values())
        model.append(times[chosen] / which.makespan(chosen, beside))
        regret.append(times[chosen] / least - 1)
        same += times[chosen] == least
    low, high = np.percentile(model, (1, 99))
    print(
        f"  played / closed form: {min(model):.2f} to {max(model):.2f}, median {np.median(model):.2f}, "
        f"98 of 100 within {low:.2f} to {high:.2f}"
    )
    print(
        f"  regret of the closed form's choice when played: best in {same / len(regret):.0%}, 95 of 100 within "
        f"{np.percentile(regret, 95):.1%}, at most {max(regret):.1%}"
    )


def drawn(count: int = 2000) -> None:
    """Prints the same of layers whose parts were drawn: work of 0.1 to 10 ms, starts up to 0.1 ms, and gradients of up
    to an exchange. `alike`: a reduction inside a node takes as long as a gather, as on the planner's own testbed."""
    for name, alike in (("a gather as long as a reduction", True), ("each part by itself", False)):
        rng, layers = np.random.default_rng(0), []
        for _ in range(count):
            starts, work = rng.uniform(0, 1e-4, 4), 10 ** rng.uniform(-4, -2, 4)
            parts = [LinearSeconds(float(one), float(two)) for one, two in zip(starts, work, strict=True)]
            one = ExpertLayerSeconds(parts[0], parts[1], parts[2], parts[2] if alike else parts[3])
            layers.append((one, float(rng.uniform(0, 1)) * one.exchange.of_chunk(1)))
        print(f"{count} drawn layers, {name}")
        told(layers)


def crossing(model: tuple[int, int], degree: int, gpus_per_node: int, tokens: int = 20000) -> tuple[float, float]:
    """Rows a token that go to other nodes, one a GPU and one a node, of a group that begins a node."""
    num_experts, per_token = model
    rng = np.random.default_rng(0)
    odds = ExpertParallel(degree).odds(num_experts) + rng.gumbel(size=(tokens, num_experts))
    gpus = np.argpartition(-odds, per_token - 1)[:, :per_token] * degree // num_experts
    home = rng.integers(0, degree, tokens) // gpus_per_node
    each = [np.unique(row[row // gpus_per_node != at]) for row, at in zip(gpus, home, strict=True)]
    return float(np.mean([len(row) for row in each])), float(np.mean([len(set(row // gpus_per_node)) for row in each]))


def main() -> None:
    drawn()
    if sys.argv[1:] == ["drawn"]:
        return
    table("testbed A", TESTBED_A, 8, 2048)
    table("testbed B", TESTBED_B, 4, 1024)
    table("testbed B's layers with the constants of the published planner", PLANNER, 4, 1024)
    print("rows a token that cross nodes, one for each GPU or one for each node:")
    for name, model, degree, gpus in (
        ("8 experts, 2 a token, 8 GPUs of 2 nodes", (8, 2), 8, 4),
        ("64 experts, 6 a token, 32 GPUs of 4 nodes", (64, 6), 32, 8),
        ("64 experts, 6 a token, 64 GPUs of 8 nodes", (64, 6), 64, 8),
        ("256 experts, 8 a token, 64 GPUs of 8 nodes", (256, 8), 64, 8),
    ):
        flat, once = crossing(model, degree, gpus)
        print(f"  {name}: {flat:.2f}, {once:.2f} ({1 - once / flat:.0%} less)")


if __name__ == "__main__":
    main()
