"""Seconds of generation, by hand."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.rollouts.test_reshard import FOUR, cost_of
from zbench.api.words import run_sub_command
from zbench.cost.cost import Cost
from zbench.describe.arrays import Ints
from zbench.rollouts.generate import Batching, GenerationCost, generate

COST = cost_of(4)
DEVICE = COST.cluster.device
READ, MATMULS = DEVICE.copy_bandwidth, DEVICE.matmul_flops
LAYERS = FOUR.num_layers * FOUR.layer_matmul_params
KV = 2 * 2 * FOUR.num_kv_heads * FOUR.head_dim  # bytes of a token's keys and values in a layer
HEADS = FOUR.num_heads * FOUR.head_dim


def ints(*values: int) -> Ints:
    return np.array(values, np.int64)


def reads_weights(tensor: int = 1) -> float:
    return 2 * (LAYERS + FOUR.head_params) / READ / tensor


def reads_context(tokens: int) -> float:
    return FOUR.num_layers * tokens * KV / READ


def with_room(tokens: int, pipeline: int = 1) -> GenerationCost:
    """A replica that has room for so many tokens and no more."""
    layers = FOUR.num_layers // pipeline
    outer = 2 if pipeline == 1 else 1  # embedding and head on one stage, or on two
    weights = layers * FOUR.layer_params + outer * FOUR.head_params + FOUR.hidden
    device = replace(DEVICE, memory_bytes=float(2 * weights + tokens * layers * KV))
    found = GenerationCost(Cost(cluster=replace(COST.cluster, device=device), model=FOUR), 1, 1.0, pipeline=pipeline)
    assert found.kv_tokens == tokens
    return found


def test_few_sequences_take_as_long_as_weights_and_context_are_read() -> None:
    """A prompt of three makes the first word; two passes that decode see four and five tokens."""
    found = generate(ints(3), ints(3), GenerationCost(COST, 1, 0.9), 1)
    prompt = FOUR.num_layers * 3 * (2 * HEADS + KV) / READ
    assert found.seconds[0] == pytest.approx(3 * reads_weights() + prompt + reads_context(4 + 5), rel=1e-12)
    assert (found.decodes.tolist(), found.most.tolist(), found.tokens) == ([2], [1], 6)


def test_a_long_prompt_takes_as_long_as_it_computes() -> None:
    prompt = 10**6
    of = GenerationCost(COST, 1, 0.9)
    linear = 2 * LAYERS * prompt / MATMULS + 2 * FOUR.head_params / READ
    attention = FOUR.num_layers * 2 * HEADS * prompt**2 / DEVICE.attention_forward_flops
    assert of.prefill_seconds(ints(prompt)) == pytest.approx(linear + attention, rel=1e-12)


def test_a_tensor_parallel_group_reads_its_share_and_reduces_twice_a_layer() -> None:
    """Over two GPUs each gather of 64 x 2 bytes brings half, at 180 GB/s after 10 us."""
    one = 64 / 180e9 + 10e-6
    seconds = reads_weights(2) + 4 * FOUR.num_layers * one + reads_context(9) / 2
    assert GenerationCost(COST, 2, 0.9).decode_seconds(1, 9, 1) == pytest.approx(seconds, rel=1e-12)


def test_many_passes_are_the_sum_of_single_ones() -> None:
    of = GenerationCost(COST, 2, 0.9)
    single = sum(of.decode_seconds(3, 20 + 3 * step, 1) for step in range(7))
    assert of.decode_seconds(3, 20, 7) == pytest.approx(single, rel=1e-12)


def test_a_sequence_waits_until_there_is_room() -> None:
    """Room for ten tokens: two sequences of five are there at once, the third begins when the shorter one has ended."""
    of = with_room(10)
    prompts, responses = ints(3, 1, 3), ints(2, 4, 2)
    found = generate(prompts, responses, of, 1)
    # First two prompts, then a pass that ends sequence 0; sequence 2's prompt; a pass that ends it, with sequence 1.
    seconds = of.prefill_seconds(prompts[:2]) + of.decode_seconds(2, 3 + 1 + 2, 1)
    seconds += of.prefill_seconds(prompts[2:]) + of.decode_seconds(2, 3 + 4, 1) + of.decode_seconds(1, 4, 1)
    assert found.seconds[0] == pytest.approx(seconds, rel=1e-12)
    assert (found.decodes.tolist(), found.most.tolist()) == ([3], [2])


def test_one_after_another_where_there_is_room_for_one() -> None:
    of = with_room(6)
    alone = generate(ints(4), ints(2), of, 1).seconds[0]
    found = generate(ints(4, 4, 4), ints(2, 2, 2), of, 1)
    assert found.seconds[0] == pytest.approx(3 * alone, rel=1e-12)
    assert found.most.tolist() == [1]


def test_replicas_have_even_shares_in_order() -> None:
    of = GenerationCost(COST, 1, 0.9)
    prompts, responses = ints(5, 6, 7, 8, 9), ints(1, 20, 3, 1, 9)
    found = generate(prompts, responses, of, 2)
    halves = [generate(prompts[part], responses[part], of, 1) for part in (slice(0, 3), slice(3, 5))]
    assert found.seconds.tolist() == [one.seconds[0] for one in halves]
    assert found.tokens == sum(one.tokens for one in halves)


def test_one_sequence_goes_through_all_stages_token_by_token() -> None:
    """Alone it is no faster than without stages: each pass reads all weights, and two messages join the stages."""
    of = with_room(60, pipeline=4)
    found = generate(ints(3), ints(3), of, 1)
    send = FOUR.hidden * 2 / 180e9, 10e-6  # of a token, and of a message
    prompt = FOUR.num_layers * 3 * (2 * HEADS + KV) / READ
    seconds = 3 * reads_weights() + prompt + reads_context(4 + 5) + 3 * (3 + 1 + 1) * send[0] + 9 * send[1]
    assert found.seconds[0] == pytest.approx(seconds, rel=1e-12)
    assert of.batch_tokens == 15


def test_micro_batches_fill_the_stages() -> None:
    """Two sequences on two stages: their passes follow each other, so stages wait at the begin and the end alone."""
    of = with_room(24, pipeline=2)
    prompts, responses = ints(4, 4), ints(5, 5)
    found = generate(prompts, responses, of, 1)
    times, free = [0.0, 0.0], [0.0, 0.0]
    for turn in range(5):
        for one in range(2):  # which is where the other one is not
            pass_ = of.prefill(ints(4)) if turn == 0 else of.decode(1, 4 + turn)
            free[0] = max(times[one], free[0]) + pass_.stage
            free[1] = times[one] = max(free[0] + pass_.send, free[1]) + pass_.last
    assert found.ends.tolist() == pytest.approx(times, rel=1e-12)
    alone = generate(prompts[:1], responses[:1], of, 1).seconds[0]
    assert alone < found.seconds[0] < 1.6 * alone
    assert (found.decodes.tolist(), found.most.tolist()) == ([8], [2])


def test_passes_have_at_most_so_many_tokens_of_whole_prompts() -> None:
    of = GenerationCost(COST, 1, 0.9)
    prompts, responses = ints(5, 4, 9, 3), ints(1, 1, 1, 1)
    found = generate(prompts, responses, of, 1, Batching(9))
    passes = (prompts[:2], prompts[2:3], prompts[3:])
    assert found.seconds[0] == pytest.approx(sum(of.prefill_seconds(some) for some in passes), rel=1e-12)
    assert found.ends[0] == found.ends[1] == pytest.approx(of.prefill_seconds(passes[0]), rel=1e-12)


def test_chunks_of_prompts_are_read_beside_words_that_are_made() -> None:
    """Passes of four tokens: a prompt of three with the begin of the next one, whose rest comes beside a word."""
    of = GenerationCost(COST, 1, 0.9)
    found = generate(ints(3, 5), ints(4, 2), of, 1, Batching(4, chunked=True))
    passes = (
        of.mixed(0, 0, ints(0, 0), ints(3, 1), 1),  # the first word of sequence 0
        of.mixed(1, 4, ints(1), ints(4), 0),
        of.mixed(1, 5, ints(4), ints(5), 1),  # the first word of sequence 1
        of.decode(2, 6 + 6),
    )
    seconds = np.cumsum([one.alone(1) for one in passes])
    assert found.ends.tolist() == pytest.approx([seconds[3], seconds[3]], rel=1e-12)
    assert found.decodes.tolist() == [3]


def test_chunks_are_as_whole_prompts_where_they_take_all() -> None:
    of, prompts, responses = GenerationCost(COST, 1, 0.9), ints(3, 5, 2), ints(4, 4, 4)
    whole, chunked = (generate(prompts, responses, of, 1, Batching(99, chunked)) for chunked in (False, True))
    assert whole.ends.tolist() == chunked.ends.tolist()


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("pipeline", [1, 2, 4])
def test_every_sequence_ends_and_no_room_is_overdrawn(pipeline: int, chunked: bool) -> None:
    rng = np.random.default_rng(pipeline)
    prompts, responses = rng.integers(0, 9, 60), rng.integers(1, 12, 60)  # the rest of a cut one has no prompt
    assert not prompts.all()
    of = with_room(30 * pipeline, pipeline=pipeline)
    found = generate(prompts, responses, of, 1, Batching(7, chunked))
    assert (found.ends > 0).all()
    assert found.decodes[0] >= (responses - 1).sum() / (30 * pipeline / 2)
    order = np.argsort(found.ends)
    held = (prompts + responses)[order]
    assert found.most[0] <= 30 * pipeline / held.min()


def test_what_cannot_be_is_told_in_a_sentence() -> None:
    told = "^a sequence has 11 tokens; keys and values of 10 have room on each of the 2 micro-batches of a replica in"
    with pytest.raises(ValueError, match=told):
        generate(ints(6, 5), ints(1, 6), with_room(20, pipeline=2), 1)
    with pytest.raises(ValueError, match=r"^a layout has 3 stages of 1 GPU; stages have to divide num_layers=4$"):
        GenerationCost(COST, 1, 0.9, pipeline=3)
    with pytest.raises(ValueError, match=r"values of 10 have room on a replica in memory_share=.*larger memory_share$"):
        generate(ints(6, 5), ints(1, 6), with_room(10), 1)
    with pytest.raises(ValueError, match=r"^tensor is 3; it has to divide num_heads=4$"):
        GenerationCost(COST, 3, 0.9)
    with pytest.raises(ValueError, match=r"^memory_share is 0; it takes more than 0 and at most 1$"):
        GenerationCost(COST, 1, 0)
    with pytest.raises(
        ValueError, match=r"^model tiny does not fit: replicas of tensor=1 have no room for keys and values"
    ):
        GenerationCost(COST, 1, 1e-9)


def test_the_command_prints_a_row_a_degree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [tmp_path / name for name in ("p.txt", "r.txt")]
    files = [str(path) for path in paths]
    for path in paths:
        path.write_text("8\n9\n10\n")
    assert run_sub_command("generate", [*files, "tensor=1,2", "cluster=local_2x2", "model=tiny"]) == 0
    table = capsys.readouterr().out
    assert "3 sequences" in table
    rows = [row.split("│")[1:-1] for row in table.splitlines() if row.startswith("│")]
    assert [[cell.strip() for cell in row[:4]] for row in rows] == [
        ["continuous", "1-1", "1-1", "4"],
        ["continuous", "1-2", "1-2", "2"],
    ]
    assert "Fastest: continuous 1-" in table
    paths[0].write_text("8\n9\n10\n8\n")
    with pytest.raises(ValueError, match=r"^there are 4 prompts and 3 responses; each sequence has one$"):
        run_sub_command("generate", files)
