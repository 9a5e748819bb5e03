"""Every yaml of conf/workload: exact batches, its own table, and the published lists where they are present."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zbench.workloads.__main__ import load_workload, loader, workload_names

DATA = Path(__file__).parents[2] / "../shared/data"
NEED_PATH = ("corpus", "lengths_file", "responses_file", "rl_traces_file")
NAMES = [name for name in workload_names() if name not in NEED_PATH]
FIXED = [name for name in NAMES if name.startswith("fixed")]  # one length, whatever the seed
PAIRS = ["rl_traces", "rl_traces_tail"]  # whose sequences are sums of two lengths
DRAWN = [name for name in NAMES if name not in (*FIXED, *PAIRS, "pystdlib", "responses")]
TABLES = ["byted_2m", "pile", "prolong64k_longca", "wikipedia", "wlb_pretrain"]
K = 1024


def make(name: str, *settings_: str, tokens: int = 1 << 22) -> Any:
    return load_workload(name, 0, tokens, list(settings_))


def distance(lengths: np.ndarray, counts: np.ndarray, cdf: Any) -> float:
    """Kolmogorov-Smirnov: the largest gap between a list's cdf and a workload's, at and just below each length."""
    upto = np.cumsum(counts) / counts.sum()
    below = np.concatenate([[0.0], upto[:-1]])
    return float(max(np.abs(upto - cdf(lengths)).max(), np.abs(below - cdf(lengths - 1)).max()))


@pytest.mark.parametrize("name", NAMES)
def test_batches_are_exact_and_reproducible(name: str) -> None:
    made = loader(name, [])
    limit = made(seed=0, tokens=1).context_limit

    @settings(deadline=None, max_examples=15)
    @given(seed=st.integers(0, 2**64), step=st.integers(0, 2**32), tokens=st.integers(1, 500_000))
    def check(seed: int, step: int, tokens: int) -> None:
        workload = made(seed=seed, tokens=tokens)
        batch = workload.batch(step)
        assert batch.num_tokens == tokens
        assert batch.lengths.min() >= 1
        assert batch.lengths.max() <= limit
        workload.batch(step + 1)
        assert workload.batch(step).digest == made(seed=seed, tokens=tokens).batch(step).digest == batch.digest

    check()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in FIXED])
def test_seeds_and_steps_give_different_batches(name: str) -> None:
    made = loader(name, [])
    digests = {made(seed=seed, tokens=1 << 20).batch(step).digest for seed in range(3) for step in range(3)}
    assert len(digests) == 9


@pytest.mark.parametrize("name", DRAWN)
def test_draws_follow_their_own_cdf(name: str) -> None:
    workload = make(name)
    lengths, counts = np.unique(workload.draw(np.random.default_rng(0), 200_000), return_counts=True)
    assert distance(lengths, counts, workload.cdf) < 0.004


@pytest.mark.parametrize("name", TABLES)
def test_draws_follow_their_own_table(name: str) -> None:
    workload = make(name)
    lengths = workload.draw(np.random.default_rng(0), 200_000)
    for low, high, fraction in workload.bins:
        share = ((lengths >= low) & (lengths < high)).mean()
        assert share == pytest.approx(fraction, abs=5 * (fraction / 200_000) ** 0.5)


@pytest.mark.parametrize(
    ("name", "file", "within"), [("wikipedia", "wikipedia_lengths", 0.012), ("wlb_pretrain", "wlbllm_lengths", 0.016)]
)
def test_draws_follow_the_published_list(name: str, file: str, within: float) -> None:
    path = DATA / f"{file}.npz"
    if not path.exists():
        pytest.skip(f"the published list {path.name} is not on this machine")
    with np.load(path) as published:
        lengths, counts = published["length"].astype(np.int64), published["count"].astype(np.int64)
    workload = make(name)
    assert distance(lengths, counts, workload.cdf) < within
    drawn, repeats = np.unique(workload.draw(np.random.default_rng(0), 200_000), return_counts=True)

    def published_cdf(length: np.ndarray) -> np.ndarray:
        so_far = np.concatenate([[0], np.cumsum(counts)])
        return so_far[np.searchsorted(lengths, length, side="right")] / counts.sum()

    assert distance(drawn, repeats, published_cdf) < within + 0.004
    mean = float((lengths * counts).sum() / counts.sum())
    assert workload.draw(np.random.default_rng(0), 10**6).mean() == pytest.approx(mean, rel=0.03)


@pytest.mark.parametrize(("name", "file"), [("pile", "pile"), ("prolong64k_longca", "prolong64k")])
def test_tables_equal_the_published_histograms(name: str, file: str) -> None:
    path = DATA / f"{file}_histogram.csv"
    if not path.exists():
        pytest.skip(f"the published histogram {path.name} is not on this machine")
    assert np.array(make(name).bins) == pytest.approx(np.loadtxt(path, delimiter=",", skiprows=1))


def token_share(cdf: Any, longest: int, above: int) -> float:
    """The share of tokens in documents longer than `above`, before any context limit."""
    survive = 1 - cdf(np.arange(longest, dtype=np.int64))
    return float((above * survive[above] + survive[above:].sum()) / survive.sum())


def mean_length(cdf: Any, longest: int) -> float:
    return float((1 - cdf(np.arange(longest, dtype=np.int64))).sum())


def test_prolong64k_is_its_recipe() -> None:
    workload = make("prolong64k", tokens=1 << 28)
    lengths = workload.batch(0).lengths
    assert lengths[lengths == 65536].sum() / lengths.sum() == pytest.approx(0.6, abs=0.01)
    assert (lengths == 65536).mean() == pytest.approx(0.0215, abs=0.002)


def test_prolong64k_short_part_is_longcas() -> None:
    short = make("prolong64k").draw(np.random.default_rng(0), 200_000)
    lengths, counts = np.unique(short[short != 65536], return_counts=True)
    assert distance(lengths, counts, make("prolong64k_longca").cdf) < 0.004


def test_byted_2m_meets_the_published_figures() -> None:
    cdf, longest = make("byted_2m").cdf, 4 * K * K
    assert cdf(np.array([4 * K])) == pytest.approx([0.8], abs=0.001)
    assert 1 - cdf(np.array([128 * K - 1, 2 * K * K - 1])) == pytest.approx([0.01, 0.0005], abs=1e-5)
    assert token_share(cdf, longest, 128 * K - 1) == pytest.approx(0.443, abs=0.005)
    assert token_share(cdf, longest, 256 * K) == pytest.approx(0.37, abs=0.005)
    assert token_share(cdf, longest, 2 * K * K - 1) == pytest.approx(0.121, abs=0.003)


def test_github_meets_the_published_figures() -> None:
    cdf, longest = make("github").cdf, 2 * K * K
    assert token_share(cdf, longest, 128 * K) == pytest.approx(0.162, abs=0.003)
    assert token_share(cdf, longest, 256 * K) == pytest.approx(0.098, abs=0.003)
    assert mean_length(cdf, longest) == pytest.approx(2340, rel=0.02)


def test_arxiv_and_commoncrawl_meet_the_published_figures() -> None:
    assert mean_length(make("arxiv").cdf, K * K) == pytest.approx(17_000, rel=0.02)
    assert make("commoncrawl").cdf(np.array([8 * K - 1])) == pytest.approx([0.97])


def test_longtail_lies_between_the_two_measured_sets() -> None:
    # At most 1K, 4K, 8K and 32K tokens: Wikipedia's measured shares, and MagiAttention's counts.
    wikipedia, magi = [0.7881, 0.9561, 0.9840, 0.9987], [0.7140, 0.9437, 0.9742, 0.9956]
    shares = make("longtail_128k").cdf(np.array([1, 4, 8, 32]) * K)
    assert (shares >= np.array(magi) - 0.002).all()
    assert (shares <= np.array(wikipedia) + 0.002).all()


def test_wikipedia_above_its_published_share_of_short_documents() -> None:
    assert make("wikipedia").cdf(np.array([8192]))[0] == pytest.approx(0.984, abs=0.0005)


def test_the_standard_library_has_many_documents_and_a_long_tail() -> None:
    lengths = make("pystdlib", tokens=1 << 26).batch(0).lengths
    documents = make("pystdlib", tokens=1 << 26).batch(0).documents
    assert np.unique(documents).size > 500
    assert lengths.max() == 131072
    assert np.quantile(lengths, 0.99) > 5 * np.median(lengths)


def test_settings_reach_the_workload_and_its_mistakes_come_back_plainly() -> None:
    assert make("fixed", "length=10").batch(0).lengths[0] == 10
    with pytest.raises(ValueError, match=r"^workload\.path is needed and not given; it must be a file of lengths"):
        make("lengths_file")
    with pytest.raises(ValueError, match=r"^workload\.path is needed and not given; it must be a folder"):
        make("corpus")
    with pytest.raises(ValueError, match=r"workload is 'wiki'; it must be one of arxiv, "):
        make("wiki")
