"""What every workload shares: exact token counts, the context limit, and the checks."""

import cProfile
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zbench.workloads.fill import fill, generator
from zbench.workloads.fixed import Fixed
from zbench.workloads.longtail import Longtail

SHAPE = {"mu": 6.1, "sigma": 1.27, "tail_share": 0.05, "tail_start": 4096, "alpha": 1.5, "max_length": 131072}
ROOT = Path(__file__).parents[2]


@settings(deadline=None, max_examples=100)
@given(
    lengths=st.lists(st.integers(1, 1000), min_size=1, max_size=20),
    tokens=st.integers(1, 20_000),
    limit=st.integers(1, 1200),
)
def test_fill_takes_documents_in_order_and_cuts_only_the_last(lengths: list[int], tokens: int, limit: int) -> None:
    given_out = np.resize(np.array(lengths), 100_000)
    position = 0

    def draw(num: int) -> np.ndarray:
        nonlocal position
        position += num
        return given_out[position - num : position]

    found, documents = fill(draw, tokens, limit, "cut")
    expected = np.minimum(given_out[: found.size], limit)
    assert found.sum() == tokens
    assert (found[:-1] == expected[:-1]).all()
    assert 1 <= found[-1] <= expected[-1]
    assert (documents == given_out[: found.size]).all()


@settings(deadline=None, max_examples=100)
@given(
    seed=st.integers(0, 2**64),
    step=st.integers(0, 2**40),
    tokens=st.integers(1, 300_000),
    limit=st.integers(1, 200_000),
)
def test_a_cut_batch_is_exact_and_within_the_limit(seed: int, step: int, tokens: int, limit: int) -> None:
    batch = Longtail(seed=seed, tokens=tokens, context_limit=limit, over_limit="cut", **SHAPE).batch(step)
    assert batch.num_tokens == tokens
    assert batch.lengths.min() >= 1
    assert batch.lengths.max() <= limit
    assert batch.lengths.dtype == np.int64
    assert (batch.seed, batch.step) == (seed, step)


def test_dropping_leaves_no_pile_at_the_limit() -> None:
    cut = Longtail(seed=0, tokens=1 << 20, context_limit=4096, over_limit="cut", **SHAPE).batch(0)
    dropped = Longtail(seed=0, tokens=1 << 20, context_limit=4096, over_limit="drop", **SHAPE).batch(0)
    assert (cut.lengths == 4096).sum() > 20
    assert (dropped.lengths == 4096).sum() <= 1
    assert dropped.num_tokens == 1 << 20


def test_dropping_everything_is_an_error_and_no_endless_loop() -> None:
    with pytest.raises(ValueError, match=r"workload\.context_limit is 10; .* must be larger"):
        Fixed(seed=0, tokens=100, length=11, context_limit=10, over_limit="drop").batch(0)


def test_a_rare_document_within_the_limit_is_found() -> None:
    batch = Longtail(seed=0, tokens=3, context_limit=12, over_limit="drop", **SHAPE).batch(0)
    assert batch.num_tokens == 3


def test_documents_are_numbers_when_sizes_are_given() -> None:
    sizes = np.array([5, 7, 9])
    lengths, documents = fill(lambda num: np.arange(num) % 3, 13, 6, "cut", sizes=sizes)
    assert lengths.tolist() == [5, 6, 2]
    assert documents.tolist() == [0, 1, 2]


def test_the_generator_is_a_function_of_seed_and_step() -> None:
    assert generator(3, 4).random() == generator(3, 4).random()
    draws = {generator(seed, step).random() for seed in range(20) for step in range(20)}
    assert len(draws) == 400


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("tokens", 0, r"workload\.tokens is 0; it takes a whole number of at least 1"),
        ("tokens", -5, r"workload\.tokens is -5"),
        ("tokens", 1.5, r"workload\.tokens is 1\.5"),
        ("tokens", True, r"workload\.tokens is True"),
        ("context_limit", 0, r"workload\.context_limit is 0; it takes a whole number of at least 1"),
        ("context_limit", "64K", r"workload\.context_limit is '64K'"),
        ("over_limit", "pad", r"workload\.over_limit is 'pad'; it must be one of cut, drop"),
        ("seed", -1, r"^seed is -1; it takes a whole number of at least 0"),
        ("length", 0, r"workload\.length is 0; it takes a whole number of at least 1"),
    ],
)
def test_bad_fields_are_named(field: str, value: object, said: str) -> None:
    fields = {"seed": 0, "tokens": 10, "length": 5, field: value}
    with pytest.raises(ValueError, match=said):
        Fixed(**fields)  # type: ignore[arg-type]


def test_a_negative_step_is_an_error() -> None:
    with pytest.raises(ValueError, match="step is -1; it takes a whole number of at least 0"):
        Fixed(seed=0, tokens=10, length=5).batch(-1)


def test_four_million_tokens_take_hardly_more_calls_than_a_sixtieth_of_them() -> None:
    """Nothing is done sequence by sequence."""
    few, many = (calls(Longtail(seed=0, tokens=tokens, **SHAPE)) for tokens in (1 << 16, 1 << 22))
    assert many < 2 * few


def calls(workload: Longtail) -> int:
    """Of functions, while a batch is made."""
    profile = cProfile.Profile()
    profile.runcall(workload.batch, 1)
    return sum(entry.callcount for entry in profile.getstats())


def test_the_classes_import_without_torch_hydra_wandb_or_pyarrow() -> None:
    modules = [f"zbench.workloads.{p.stem}" for p in (ROOT / "workloads").glob("*.py") if not p.stem.startswith("__")]
    blocked = ["torch", "hydra", "omegaconf", "wandb", "pyarrow"]
    block = f"import sys, importlib\nfor m in {blocked}: sys.modules[m] = None\n"
    code = block + f"for m in {modules}: importlib.import_module(m)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
