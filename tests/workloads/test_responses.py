"""Labels of responses by a plain loop, prompts as they are told or drawn, and mistakes in sentences."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.workloads.__main__ import load_workload, loader
from zbench.workloads.responses import Responses, response_labels


def made(*settings: str, name: str = "responses", tokens: int = 1 << 18) -> Any:
    return load_workload(name, 3, tokens, list(settings))


@given(st.lists(st.tuples(st.integers(1, 30), st.integers(0, 31)), min_size=1, max_size=8))
def test_labels_are_tokens_of_responses(pairs: list[tuple[int, int]]) -> None:
    lengths, prompts = np.array(pairs, np.int64).T
    wanted = []
    for length, prompt in pairs:
        for position in range(length):
            label = position + 1  # the position of the token that follows, if there is one
            wanted.append(label < length and label >= prompt)
    assert response_labels(lengths, prompts).tolist() == wanted


def test_by_hand() -> None:
    """A prompt of 2 and a response of 3; a prompt alone; a response alone, whose first token follows nothing."""
    found = response_labels(np.array([5, 2, 3]), np.array([2, 2, 0]))
    assert found.astype(int).tolist() == [0, 1, 1, 1, 0, 0, 0, 1, 1, 0]


def test_sequences_are_those_of_the_other_workload() -> None:
    for step in range(3):
        found, other = made().batch(step), made(name="longtail_32k").batch(step)
        assert found.lengths.tolist() == other.lengths.tolist()
        assert other.counts is None
        assert 0 < found.counted_labels < found.num_tokens
        assert found.digest != other.digest
        assert found.digest == made().batch(step).digest
        assert found.digest != made().batch(step + 1).digest


@pytest.mark.parametrize(("low", "high"), [(0, 1), (0.3, 0.3), (0.8, 0.9)])
def test_shares_of_prompts_are_drawn_evenly(low: float, high: float) -> None:
    batch = made(f"prompt_share=[{low},{high}]", tokens=1 << 22).batch(0)
    shares = [1 - one.mean() for one in batch.counts_of_sequences or () if len(one) >= 2000]
    assert len(shares) > 100
    assert low - 1 / 2000 <= min(shares) <= max(shares) <= high + 1 / 2000
    assert np.mean(shares) == pytest.approx((low + high) / 2, abs=0.04)
    assert np.std(shares) == pytest.approx((high - low) / 12**0.5, abs=0.03)


def test_sequences_without_a_response() -> None:
    batch = made("unanswered_share=0.25", tokens=1 << 22).batch(0)
    parts = [one for one in batch.counts_of_sequences or () if len(one) > 100]
    assert np.mean([not one.any() for one in parts]) == pytest.approx(0.25, abs=0.03)
    assert made("unanswered_share=0.999", tokens=99).batch(0).counted_labels == 0


def test_prompts_that_are_told(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text('{"prompt_length": 3, "response_length": 5}\n')
    batch = made(f"sequences.path={path}", name="responses_file", tokens=20).batch(0)
    assert batch.lengths.tolist() == [8, 8, 4]
    assert batch.counts.astype(int).tolist() == [0, 0, 1, 1, 1, 1, 1, 0] * 2 + [0, 0, 1, 0]
    assert made(f"sequences.path={path}", name="responses_file").context_limit == 8
    batch = made(f"sequences.path={path}", "prompt_share=[0.5,0.5]", name="responses_file", tokens=8).batch(0)
    assert batch.counted_labels == 4


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (("prompt_share=0.5",), "workload.prompt_share is 0.5; it must be the least and the largest share of a"),
        (("prompt_share=[0.5]",), "workload.prompt_share is [0.5]; it must be the least and the largest"),
        (("prompt_share=[0.5,0.4]",), "workload.prompt_share[1] is 0.4; it must be a finite number, at least 0.5 and"),
        (("prompt_share=[-1,0.4]",), "workload.prompt_share[0] is -1; it must be a finite number, at least 0 and"),
        (("prompt_share=[0,2]",), "workload.prompt_share[1] is 2; it must be a finite number, at least 0 and at most"),
        (("unanswered_share=1",), "workload.unanswered_share is 1, with which no label counts; it must be below 1"),
        (("unanswered_share=x",), "workload.unanswered_share is 'x'; it must be a finite number"),
        (("sequences=3",), "workload.sequences is 3; it must be a workload with _partial_: true"),
    ],
)
def test_mistakes(settings: tuple[str, ...], told: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
        made(*settings)


def test_what_tells_no_prompts_and_what_has_tokens_of_its_own() -> None:
    with pytest.raises(ValueError, match=r"^workload\.prompt_share is None and workload\.sequences a Longtail, which"):
        made("prompt_share=null")
    own = loader("pystdlib", [])
    with pytest.raises(ValueError, match=r"^workload\.sequences is a Corpus, which has tokens of its own; it must be"):
        Responses(0, 100, own, [0, 1])
