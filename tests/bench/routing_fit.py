"""Laws of routing beside published loads of experts: the tables of docs/routing.md.

python -m tests.bench.routing_fit trace FOLDER          # a training run: SmartMoE's moe_trace, a minute
python -m tests.bench.routing_fit counts FILE.json ...  # a model in use: fiddler's counts by layer and expert

FOLDER is moe_trace of github.com/thu-pacman/SmartMoE-AE (e19b3a99): table_iter<step>_rank<rank>.log, a line a layer,
and in it rows a micro-batch, columns an expert. FILE is {"expert_popularity": [layers][experts]} as in
benchmarks/results/popularity of github.com/efeslab/fiddler (5e5ed673). Both have two experts a token.

The one number that is fitted of each law is its skew, so that E times the sum of squares of shares, 1 for even ones, is
what was counted. How far the law is off besides is the share of choices that would have to go
elsewhere (total variation) between mean loads by rank. Drift is fitted to each lag by itself.
"""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.expert_schedule import DIRICHLET, ZIPF
from zbench.describe.routing.popularity import Popularity

DRAWS, MOST = 400, 64.0  # of a law; the largest skew that is looked for
PHASES = ((1, 51), (101, 451), (501, 951), (1001, 2451), (2501, 5001))  # training steps
EVERY = 50  # of the trace's steps, which are ten apart
LAGS = (10, 50, 200, 1000, 2000)  # steps
HEADER = (
    "| E x sum of squares | most popular over mean | a fifth has | Zipf: skew, off | Dirichlet: skew, off |\n"
    "|---|---|---|---|---|---|"
)
EARLY, LATE = (1, 451), (2501, 5001)


def shares(loads: Floats) -> Floats:
    """Returns loads over their sum along the last axis, float64 [..., experts]."""
    found = np.asarray(loads, np.float64)
    return np.asarray(found / found.sum(axis=-1, keepdims=True))


def unevenness(of: Floats) -> float:
    """Returns experts times the sum of squares of their shares, over all but the last axis in the mean."""
    return float(of.shape[-1] * (of**2).sum(axis=-1).mean())


def by_rank(of: Floats) -> Floats:
    """Returns mean shares of the most popular expert, of the second, and so on, float64 [experts]."""
    return np.asarray(np.sort(of, axis=-1)[..., ::-1].reshape(-1, of.shape[-1]).mean(axis=0))


def loads_of(odds: Floats) -> Floats:
    """Returns the shares of choices that experts have as expected, float64 [..., experts], where a token has two: its
    first one by the odds, its second one by those of the others. odds: logarithms."""
    first = np.exp(np.maximum(odds - odds.max(axis=-1, keepdims=True), -700.0))
    first = first / first.sum(axis=-1, keepdims=True)
    others = 1 - np.eye(odds.shape[-1])
    rest = first @ others  # and not 1 - first, of which nothing is left where one has nearly all
    after = others * (first[..., None] / rest[..., None, :])  # [..., of the second, of the first one]
    return np.asarray((first + (after @ first[..., None])[..., 0]) / 2)


def law_shares(law: str, skew: float, experts: int) -> Floats:
    """Returns loads of experts by a law, float64 [draws, experts]."""
    draws = range(DRAWS if law == DIRICHLET else 1)
    return loads_of(np.array([Popularity(law, skew, 1, seed, 0).odds(experts) for seed in draws]))


def fitted(law: str, wanted: float, experts: int) -> float:
    """Returns the skew with which a law's loads are as uneven as `wanted`, to a hundredth."""
    return _where(lambda skew: unevenness(law_shares(law, skew, experts)), wanted, MOST, 0.001)


def _where(of: Callable[[float], float], wanted: float, most: float, close: float) -> float:
    """Returns where a function that grows is what is wanted, between 0 and `most`, as close as is said."""
    least = 0.0
    while most - least > close:
        middle = (least + most) / 2
        least, most = (middle, most) if of(middle) < wanted else (least, middle)
    return (least + most) / 2


def law_row(of: Floats) -> str:
    """Returns the cells of a table: how uneven loads are, and each law's skew and how far it is off."""
    experts, ranked = of.shape[-1], by_rank(of)
    fifth = float(ranked[: max(round(experts / 5), 1)].sum())
    cells = [f"{unevenness(of):.2f}", f"{experts * ranked[0]:.1f}", f"{100 * fifth:.0f} %"]
    for law in (ZIPF, DIRICHLET):
        skew = fitted(law, unevenness(of), experts)
        off = np.abs(by_rank(law_shares(law, skew, experts)) - ranked).sum() / 2
        cells.append(f"{skew:.2f}, {100 * off:.0f} %")
    return " | ".join(cells)


@dataclass(frozen=True)
class Trace:
    """Loads of a training run. steps: their numbers; loads: float64 [steps, layers, experts], of all ranks."""

    steps: Sequence[int]
    loads: Floats

    def between(self, first: int, last: int) -> Floats:
        """Returns the shares of steps from `first` to `last`."""
        return shares(self.loads[[at for at, step in enumerate(self.steps) if first <= step <= last]])

    def likeness(self, lag: int, first: int, last: int) -> float:
        """Returns the mean correlation of a layer's shares with those `lag` steps later, of steps between two; nan
        where there are none."""
        where = {step: at for at, step in enumerate(self.steps)}
        pairs = [(where[one], where[one + lag]) for one in where if first <= one <= last - lag and one + lag in where]
        if not pairs:
            return float("nan")
        before, after = (shares(self.loads[list(side)]) for side in zip(*pairs, strict=True))
        return float(correlation(before, after).mean())


def correlation(one: Floats, other: Floats) -> Floats:
    """Returns correlations along the last axis."""
    one, other = (of - of.mean(axis=-1, keepdims=True) for of in (one, other))
    return np.asarray((one * other).sum(axis=-1) / np.sqrt((one**2).sum(axis=-1) * (other**2).sum(axis=-1)))


def read_trace(folder: Path, steps: Sequence[int]) -> Trace:
    """Reads some steps of a trace.

    Raises:
        ValueError: there are no files of a step.
    """
    found = []
    for step in steps:
        files = sorted(folder.glob(f"table_iter{step}_rank*.log"))
        if not files:
            raise ValueError(f"FOLDER is {str(folder)!r}, which has no table_iter{step}_rank*.log")
        found.append(sum(_of_rank(file) for file in files))
    return Trace(steps, np.array(found))


def _of_rank(file: Path) -> Floats:
    lines = [line.split(":", 1)[1] for line in file.read_text().splitlines() if line.strip()]
    return np.array([np.sum(json.loads(line), axis=0) for line in lines])


def law_likeness(skew: float, experts: int, turn: float) -> float:
    """Returns the mean correlation of Zipf's loads after a share `turn` of `experts.drift`."""
    drift, found = 10**6, []
    for seed in range(DRAWS):
        before, after = (
            loads_of(Popularity(ZIPF, skew, drift, seed, step).odds(experts)) for step in (0, round(turn * drift))
        )
        found.append(float(correlation(before, after)))
    return float(np.mean(found))


def drift_of(likeness: float, lag: int, skew: float, experts: int) -> float:
    """Returns the `experts.drift` with which loads are as like after `lag` steps."""
    return lag / _where(lambda turn: -law_likeness(skew, experts, turn), -likeness, 1.0, 1e-5)


def trace_tables(folder: Path) -> Iterator[str]:
    """Yields the tables of a training run."""
    trace = read_trace(folder, range(1, 5002, EVERY))
    yield f"| steps {HEADER}"
    for first, last in PHASES:
        yield f"| {first} to {last} | {law_row(trace.between(first, last))} |"
    experts = trace.loads.shape[-1]
    yield "\n| steps | " + " | ".join(f"{lag} later" for lag in LAGS) + " |\n" + "|---" * (1 + len(LAGS)) + "|"
    for first, last in (EARLY, LATE):
        own = read_trace(folder, range(first, min(first + 101, last), 10))
        skew, cells = fitted(ZIPF, unevenness(trace.between(first, last)), experts), []
        for lag in LAGS:
            like = (own if lag < EVERY else trace).likeness(lag, first, last)
            drift = "" if np.isnan(like) else f", drift {drift_of(like, lag, skew, experts):,.0f}"
            cells.append("" if np.isnan(like) else f"{like:.3f}{drift}")
        yield f"| {first} to {last} | {' | '.join(cells)} |"


def counts_table(files: Sequence[Path]) -> Iterator[str]:
    """Yields the table of a model in use, and how like a layer's loads are on one text and another."""
    every = [shares(np.array(json.loads(file.read_text())["expert_popularity"], np.float64)) for file in files]
    yield f"| text {HEADER}"
    for file, of in zip(files, every, strict=True):
        yield f"| {file.stem.removeprefix('expert_popularity_').replace('_', ' ')} | {law_row(of)} |"
    likes = [float(correlation(a, b).mean()) for at, a in enumerate(every) for b in every[at + 1 :]]
    if likes:
        yield f"\ncorrelation of a layer's loads on two texts: {min(likes):.2f} to {max(likes):.2f}"


def main(words: list[str]) -> None:
    """Prints the tables."""
    kind, *paths = words or [""]
    if kind not in ("trace", "counts") or not paths:
        raise SystemExit("usage: python -m tests.bench.routing_fit trace FOLDER | counts FILE.json ...")
    rows = trace_tables(Path(paths[0])) if kind == "trace" else counts_table([Path(one) for one in paths])
    for row in rows:
        print(row, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
