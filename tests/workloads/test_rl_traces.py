"""Prompts and responses: groups, the spike at the limit, a file of the user's, and tail batching."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zbench.describe.batch import Batch
from zbench.interfaces.abilities import HasPromptLimit
from zbench.workloads.__main__ import load_workload

TOKENS = 1 << 21
TAIL: Any = load_workload("rl_traces_tail", 0, TOKENS, [])


def make(name: str = "rl_traces", *settings_: str, tokens: int = TOKENS) -> Any:
    return load_workload(name, 0, tokens, list(settings_))


def responses_of(batch: Batch) -> np.ndarray:
    assert batch.rollouts is not None
    return batch.lengths - batch.rollouts.prompts


def test_responses_are_lognormal_with_a_spike_at_the_limit() -> None:
    workload = make()
    prompts, responses = workload.draw_pairs(np.random.default_rng(0), 200_000)
    assert (prompts.max(), responses.max()) == (workload.prompt_limit, workload.response_limit)
    ended = responses[responses < workload.response_limit]
    assert np.median(responses) == pytest.approx(np.exp(6.9), rel=0.03)
    assert 1 - len(ended) / len(responses) == pytest.approx(0.01 + 0.99 * 0.0175, abs=0.004)
    assert (responses == workload.response_limit - 1).mean() < 1e-3


def test_a_group_has_its_prompt_and_half_of_its_variance_in_common() -> None:
    prompts, responses = make("rl_traces", "endless_share=0").draw_pairs(np.random.default_rng(1), 80_000)
    groups = prompts.reshape(-1, 8)
    assert (groups == groups[:, :1]).all()
    logs = np.log(responses.reshape(-1, 8))
    assert np.corrcoef(logs[:, 0], logs[:, 1])[0, 1] == pytest.approx(0.5, abs=0.04)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**64), tokens=st.integers(1, 60_000), group=st.integers(1, 9), rounds=st.integers(1, 6))
def test_a_window_of_tail_batches_is_what_its_short_rounds_began(
    seed: int, tokens: int, group: int, rounds: int
) -> None:
    workload = replace(TAIL, seed=seed, tokens=tokens, group=group, short_rounds=rounds)
    batches = [workload.batch(step) for step in range(rounds + 1)]
    for batch in batches:
        assert batch.num_tokens == tokens
        assert (batch.rollouts.prompts < batch.lengths).all()
        assert batch.rollouts.prompts.min() >= 0
    *short, long = batches
    assert long.rollouts.given_up.shape == (2, 0)
    assert sum(one.rollouts.given_up.shape[1] for one in short) == len(long.lengths)
    for one in short:  # given up when the last of those that stay had ended
        assert (one.rollouts.given_up[1] <= responses_of(one).max()).all()


def test_short_rounds_have_no_tail() -> None:
    plain, tail = make(), make("rl_traces_tail")
    longest = [int(responses_of(tail.batch(step)).max()) for step in range(5)]
    assert max(longest[:4]) < plain.response_limit == longest[4]
    assert responses_of(tail.batch(4)).mean() > 4 * responses_of(tail.batch(0)).mean()


def write_rows(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return f"path={path}"


def test_a_file_of_one_s_own(tmp_path: Path) -> None:
    rows = [{"p": at, "r": 100 * at} for at in range(1, 40)]
    path = write_rows(tmp_path / "traces.jsonl", rows)
    keys = (path, "prompt_field=p", "response_field=r")
    made = make("rl_traces_file", *keys, tokens=100_000)
    assert isinstance(made, HasPromptLimit)
    assert made.prompt_limit == 39
    batch = made.batch(3)
    assert batch.num_tokens == 100_000
    assert (responses_of(batch)[:-1] == 100 * batch.rollouts.prompts[:-1]).all()
    np.savez(tmp_path / "traces.npz", prompt_length=np.array([3, 4]), response_length=np.array([5, 6]))
    assert make("rl_traces_file", f"path={tmp_path}/traces.npz").batch(0).num_tokens == TOKENS


@pytest.mark.parametrize(
    ("name", "rows", "told"),
    [
        (
            "a.jsonl",
            [{"prompt": "words", "response": "more"}],
            "workload.prompt_field is 'prompt_length'; it must be a",
        ),
        ("a.jsonl", [{"prompt_length": 1}], "workload.response_field is 'response_length'; it must be a field"),
        (
            "a.jsonl",
            [{"prompt_length": 1, "response_length": 0}],
            "workload.path is .*; response_length of line 1 is 0, and a length",
        ),
        ("a.jsonl", [{"prompt_length": 9, "response_length": 200_000}], "workload.context_limit is 100000; a sequence"),
        ("a.txt", [], "workload.path is .* which has one length a row; prompts and responses take a file that ends in"),
    ],
)
def test_traces_without_lengths_are_refused(name: str, rows: list[dict[str, Any]], told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        make("rl_traces_file", write_rows(tmp_path / name, rows), "context_limit=100000")


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("prompt_limit=9000", "workload.prompt_limit is 9000; it has to be below workload.context_limit, 8704"),
        ("group=0", "workload.group is 0"),
        ("shared=2", "workload.shared is 2; it must be a finite number, at least 0 and at most 1"),
        ("endless_share=-1", "workload.endless_share is -1"),
        ("response_sigma=x", "workload.response_sigma is 'x'"),
        ("short_rounds=-1", "workload.short_rounds is -1"),
    ],
)
def test_numbers_that_cannot_be_are_refused(setting: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        make("rl_traces", setting)
