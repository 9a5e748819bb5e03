"""Fits of routing's laws: loads that were drawn by a law give its numbers back."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.bench.routing_fit import (
    Trace,
    counts_table,
    drift_of,
    fitted,
    law_row,
    law_shares,
    loads_of,
    read_trace,
    shares,
    unevenness,
)
from zbench.describe.expert_schedule import DIRICHLET, ZIPF
from zbench.describe.routing.popularity import Popularity

EXPERTS = 16


def test_expected_loads_are_those_of_tokens_that_draw_two_experts() -> None:
    odds = Popularity(ZIPF, 1.5, 1, 0, 0).odds(EXPERTS)
    noisy = odds + np.random.default_rng(0).gumbel(size=(200_000, EXPERTS))
    drawn = np.bincount(np.argpartition(noisy, -2, axis=1)[:, -2:].reshape(-1), minlength=EXPERTS)
    assert loads_of(odds).sum() == pytest.approx(1)
    assert loads_of(odds) == pytest.approx(drawn / drawn.sum(), abs=2e-3)
    alone = np.array([0.0, -600.0, -600.0])  # one that all choose first, others alike
    assert loads_of(alone) == pytest.approx([0.5, 0.25, 0.25])


@pytest.mark.parametrize("skew", [0.3, 0.9, 2.0])
@pytest.mark.parametrize("law", [ZIPF, DIRICHLET])
def test_a_laws_own_loads_give_its_skew(law: str, skew: float) -> None:
    of = law_shares(law, skew, EXPERTS)
    assert fitted(law, unevenness(of), EXPERTS) == pytest.approx(skew, abs=0.002)
    cell = law_row(of).split(" | ")[3 if law == ZIPF else 4]
    assert cell == f"{skew:.2f}, 0 %"


def test_loads_that_drift_give_their_drift() -> None:
    skew, drift, steps = 0.9, 400, range(0, 101, 10)
    seeds = range(60)  # a layer each
    loads = [[loads_of(Popularity(ZIPF, skew, drift, seed, step).odds(EXPERTS)) for seed in seeds] for step in steps]
    trace = Trace(steps, np.array(loads))
    for lag in (20, 50):
        like = trace.likeness(lag, 0, 100)
        assert drift_of(like, lag, skew, EXPERTS) == pytest.approx(drift, rel=0.15)
    assert np.isnan(trace.likeness(5, 0, 100))


def test_a_trace_is_of_all_ranks_and_micro_batches(tmp_path: Path) -> None:
    for rank in range(2):
        rows = [[[1 + rank, 2], [3, 4]], [[0, 1], [1, 0]]]
        text = "".join(f"{layer}:{json.dumps(one)}\n" for layer, one in enumerate(rows))
        (tmp_path / f"table_iter11_rank{rank}.log").write_text(text + "\n")
    assert read_trace(tmp_path, [11]).loads.tolist() == [[[9, 12], [2, 2]]]
    with pytest.raises(ValueError, match="which has no table_iter21_rank"):
        read_trace(tmp_path, [11, 21])


def test_counts_of_two_texts_are_compared(tmp_path: Path) -> None:
    files = [tmp_path / f"expert_popularity_{name}.json" for name in ("one", "other")]
    for file, counts in zip(files, ([[4, 2, 1, 1]], [[1, 2, 1, 4]]), strict=True):
        file.write_text(json.dumps({"expert_popularity": counts}))
    *rows, last = counts_table(files)
    assert [row.split(" | ")[0] for row in rows[1:]] == ["| one", "| other"]
    wanted = np.corrcoef(shares(np.array([4, 2, 1, 1])), shares(np.array([1, 2, 1, 4])))[0, 1]
    assert last == f"\ncorrelation of a layer's loads on two texts: {wanted:.2f} to {wanted:.2f}"
