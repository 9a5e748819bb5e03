"""What a loss holds and moves: chunks against whole logits, by the chunks that there are."""

from dataclasses import replace

import numpy as np
import pytest

from zbench.cost.cost import Cost
from zbench.cost.loss import (
    LEAST_CHUNK,
    TILE,
    WHOLE_BYTES,
    chunk_rows,
    chunk_words,
    chunked_bytes,
    logits_bytes,
    logits_of_share,
    logits_of_token,
    moved_bytes,
)
from zbench.cost.memory.lines import MemoryLines
from zbench.cost.memory.moments import loss_lines
from zbench.cost.memory.needs import pipeline_moments
from zbench.describe.model import AUTO, Model

WHOLE = Model("m", 2, 256, 4, 2, 64, 384, 8192)
CHUNKED = replace(WHOLE, loss_chunk_tokens=AUTO)
MANY = np.array([65536.0])


def test_whole_logits_are_what_every_model_has_unless_it_says_otherwise() -> None:
    assert logits_of_token(WHOLE, 1.0) == WHOLE.vocab * 6
    assert moved_bytes(WHOLE, MANY)[0] == WHOLE_BYTES * WHOLE.vocab * MANY[0]


def lines_of(uneven: Cost, model: Model) -> MemoryLines:
    """The loss's, of a rank."""
    return MemoryLines(loss_lines(replace(uneven, model=model)))


@pytest.mark.parametrize("tokens", [1, 500, 1000, 1024, 1025, 4000, 8192, 65536])
def test_chunks_hold_what_a_whole_step_does(uneven: Cost, tokens: int) -> None:
    """However few tokens there are: with the last layer's output, the norm's and its gradient, and two sums a token.
    CrossEntropy, of attention's plans, has its softmax narrow besides."""
    assert chunk_rows(65536, CHUNKED.hidden, CHUNKED.vocab) == 8192
    beside = (3 * CHUNKED.element_bytes * CHUNKED.hidden + 2 * CHUNKED.lse_bytes) * tokens
    logits = logits_bytes(CHUNKED, tokens, 1.0)
    assert lines_of(uneven, CHUNKED).bytes(tokens) == logits + beside
    narrow = min(tokens, chunk_rows(tokens, CHUNKED.hidden, CHUNKED.vocab)) * CHUNKED.vocab * CHUNKED.element_bytes
    hidden = 2 * CHUNKED.element_bytes * CHUNKED.hidden * tokens
    assert chunked_bytes(CHUNKED, tokens) == logits + narrow + hidden
    assert lines_of(uneven, WHOLE).bytes(65536) > 5 * lines_of(uneven, CHUNKED).bytes(65536)
    small = replace(CHUNKED, vocab=64)  # smaller than x: no chunk is worth while
    assert logits_of_share(small, 1.0) == logits_of_token(small, 1.0)


def test_a_chunk_of_a_number_of_tokens_holds_their_whole_logits_however_many_there_are(uneven: Cost) -> None:
    by_number = replace(WHOLE, loss_chunk_tokens=512)
    lines, whole, hidden = lines_of(uneven, by_number), lines_of(uneven, WHOLE), 2 * WHOLE.hidden
    assert lines.bytes(512) == whole.bytes(512)
    assert lines.bytes(600) == whole.bytes(512) + 88 * (hidden + 2 * WHOLE.lse_bytes)
    assert moved_bytes(by_number, MANY) == moved_bytes(WHOLE, MANY)


def test_logits_of_a_compute_are_of_all_its_tokens_or_of_a_chunk() -> None:
    tokens = int(MANY[0])
    for one in (WHOLE, replace(WHOLE, loss_chunk_tokens=512)):
        assert logits_bytes(one, tokens, 0.5) == tokens * WHOLE.vocab // 2 * 6
    assert logits_bytes(CHUNKED, tokens, 1.0) == 8192 * WHOLE.vocab * 6


@pytest.mark.parametrize(("element_bytes", "of_a_logit"), [(2, 6), (4, 4), (8, 8)])
def test_few_tokens_have_the_same_logits_whole_and_in_chunks(element_bytes: int, of_a_logit: int) -> None:
    """Up to 1,024 are one chunk, whose work is that of whole logits."""
    for one in (WHOLE, CHUNKED):
        found = logits_bytes(replace(one, element_bytes=element_bytes), LEAST_CHUNK, 1.0)
        assert found == LEAST_CHUNK * WHOLE.vocab * of_a_logit


@pytest.mark.parametrize("tokens", [1, 1024, 1025, 4000, 65536])
@pytest.mark.parametrize("words", [1, 64, 1000, 8192])
@pytest.mark.parametrize("hidden", [8, 256])
def test_chunks_of_words_have_no_more_logits_than_those_of_tokens(tokens: int, words: int, hidden: int) -> None:
    rows = min(tokens, chunk_rows(tokens, hidden, words))
    found = chunk_words(tokens, words, rows)
    assert 1 <= found <= words
    assert found * tokens <= max(rows * words, tokens)
    assert rows < tokens or found == words


def test_the_last_stage_holds_the_loss_s_bytes(uneven: Cost) -> None:
    """Logits are shared by the ranks; the norm's output and its gradient are not."""
    hidden, sums = WHOLE.element_bytes * WHOLE.hidden, 2 * WHOLE.lse_bytes
    found = [pipeline_moments(replace(uneven, model=one), 2, 1).at_loss[0] for one in (WHOLE, CHUNKED)]
    assert [one.token for one in found] == [
        logits_of_token(WHOLE, 1 / 2) + 2.5 * hidden + sums,
        logits_of_share(CHUNKED, 1 / 2) + 2.5 * hidden + sums,
    ]
    assert logits_of_share(CHUNKED, 1 / 2) == 4 * CHUNKED.hidden * 6  # of a chunk of twice as many tokens


@pytest.mark.parametrize("tokens", [0, 1000, 1024 * TILE])
def test_chunks_move_their_logits_and_a_sum_a_chunk(tokens: int) -> None:
    num = tokens / chunk_rows(tokens, CHUNKED.hidden, CHUNKED.vocab)
    logits, sums = 3 * 2 * CHUNKED.vocab * tokens, 10 * CHUNKED.head_params
    assert moved_bytes(CHUNKED, np.array([tokens]))[0] == pytest.approx(logits + num * sums)
    assert tokens < LEAST_CHUNK or num == 8
    eager = moved_bytes(replace(CHUNKED, kernels="eager"), np.array([tokens]))[0]
    assert eager == pytest.approx(20 / 6 * logits + num * sums)


def test_the_head_s_time_has_the_bytes_in_it(uneven: Cost) -> None:
    whole, chunked = (replace(uneven, model=one) for one in (WHOLE, CHUNKED))
    less = (moved_bytes(WHOLE, MANY) - moved_bytes(CHUNKED, MANY)) / uneven.cluster.device.copy_bandwidth
    assert less > 0
    assert whole.head_seconds(MANY) - chunked.head_seconds(MANY) == pytest.approx(less)
