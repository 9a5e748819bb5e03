"""Seconds of generation by two layouts, by hand; how often they change."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rollouts.test_generate import FOUR, KV, ints
from tests.rollouts.test_reshard import cost_of
from zbench.cost.cost import Cost
from zbench.rollouts.generate import GenerationCost, generate
from zbench.rollouts.seesaw import generate_by_seesaw
from zbench.rollouts.seesaw_phases import SeesawCost, buffer_fills, decode_fill, prompt_passes, read_fill

COST = cost_of(4)
HOST = 31.5e9 * 0.88  # bytes/s of a GPU of this cluster, after 10 us
TOKEN = FOUR.num_layers * KV


def seesaw_cost(host_tokens: int, pass_tokens: int = 99, cost: Cost = COST, gpus: int = 4) -> SeesawCost:
    layouts = (GenerationCost(cost, tensor, 0.9, pipeline=gpus // tensor) for tensor in (1, gpus))
    found = SeesawCost(*layouts, host_tokens * TOKEN / gpus, pass_tokens)
    assert found.host_tokens == host_tokens
    return found


def copied(tokens: int) -> float:
    """Seconds of a copy of keys and values, of which four GPUs have a quarter each."""
    return tokens * TOKEN / 4 / HOST + 10e-6


def test_one_sequence_by_hand() -> None:
    """A prompt through four stages, out, weights of the tensor-parallel layout in, the prompt in, two words."""
    of = seesaw_cost(50)
    (found,) = generate_by_seesaw(ints(7), ints(3), [of], 1)
    weights = (2 * FOUR.total_params / 4) / HOST + 10e-6  # four GPUs have a quarter each, norms counted so, too
    prefill = of.prefill.prefill_seconds(ints(7)) + copied(7)
    decode = copied(7) + of.decode.decode_seconds(1, 8, 2)
    assert (found.prefill, found.reload, found.decode) == pytest.approx((prefill, weights, decode), rel=1e-9)
    assert found.seconds[0] == found.ends[0] == pytest.approx(prefill + weights + decode, rel=1e-9)
    assert (found.reloads, found.decodes.tolist(), found.most.tolist()) == (1, [2], [1])


def test_copies_are_hidden_behind_passes() -> None:
    """Ten prompts, a pass each: only the last one's copy is not behind another pass, where copies are the faster."""
    of, prompts = seesaw_cost(5000, 100), np.full(10, 100)
    seconds, ends = read_fill(prompts, np.full(10, 2), of)
    one = of.prefill.prefill(prompts[:1])
    copies = max(one.last, copied(100))
    assert seconds == pytest.approx(one.alone(4) + 9 * copies + copied(100), rel=1e-9)
    assert not ends.any()


def test_a_pass_waits_for_room_that_copies_make() -> None:
    """GPUs have room for one prompt: the next one is read when it is copied out."""
    of = seesaw_cost(500, 50)
    layers = FOUR.num_layers // 4
    weights = 2 * (layers * FOUR.layer_params + FOUR.head_params + FOUR.hidden)
    device = replace(COST.cluster.device, memory_bytes=float(weights + 60 * layers * KV) / 0.9)
    cost = Cost(cluster=replace(COST.cluster, device=device), model=FOUR)
    tight = replace(of, prefill=GenerationCost(cost, 1, 0.9, pipeline=4))
    assert tight.prefill.kv_tokens in (59, 60)
    seconds, _ = read_fill(np.full(3, 50), np.full(3, 2), tight)
    assert seconds == pytest.approx(3 * (of.prefill.prefill_seconds(ints(50)) + copied(50)), rel=1e-9)


def test_sequences_join_as_they_are_copied_in() -> None:
    """The first one decodes while the second one comes; both go on together."""
    of = seesaw_cost(10**6, 10**6)
    big = 900_000
    found = decode_fill(ints(1, big), ints(2, 2), of)
    first = copied(1) + of.decode.decode_seconds(1, 2, 1)
    assert found.ends.tolist() == pytest.approx(
        [first, copied(1) + copied(big) + of.decode.decode_seconds(1, big + 1, 1)], rel=1e-9
    )
    assert (found.decodes, found.most) == (2, 1)


def test_a_full_buffer_changes_the_layout_and_back() -> None:
    of, prompts, responses = seesaw_cost(10), ints(4, 6, 5, 5, 1), ints(3, 3, 3, 1, 1)
    (found,) = generate_by_seesaw(prompts, responses, [of], 1)
    fills = list(buffer_fills(prompts, 10))
    assert fills == [(0, 2), (2, 4), (4, 5)]
    assert found.reloads == 4  # to decode and back twice; the last fill ends with its first word
    one, other = of.reload_seconds(of.prefill), of.reload_seconds(of.decode)
    assert found.reload == pytest.approx(2 * one + 2 * other, rel=1e-12)
    assert found.ends[4] == found.seconds[0]
    assert found.ends[3] < found.ends[2]


@given(st.lists(st.integers(1, 9), max_size=20), st.integers(9, 40))
def test_fills_are_all_prompts_in_order_and_as_many_as_fit(lengths: list[int], host: int) -> None:
    prompts = np.array(lengths, np.int64)
    fills = list(buffer_fills(prompts, host))
    assert [one for first, end in fills for one in range(first, end)] == list(range(len(prompts)))
    for first, end in fills:
        assert prompts[first:end].sum() <= host
        assert end == len(prompts) or prompts[first : end + 1].sum() > host
    assert fills == [(one.start, one.stop) for one in prompt_passes(prompts, host)][: len(fills)]


def test_pairs_played_together_are_as_alone() -> None:
    rng = np.random.default_rng(0)
    prompts, responses = rng.integers(1, 40, 30), rng.integers(1, 20, 30)
    of = seesaw_cost(200)
    pairs = [of, replace(of, prefill=of.decode, decode=of.prefill)]
    both = generate_by_seesaw(prompts, responses, pairs, 2)
    for pair, found in zip(pairs, both, strict=True):
        (alone,) = generate_by_seesaw(prompts, responses, [pair], 2)
        assert alone.ends.tolist() == found.ends.tolist()
        assert found.seconds.max() == pytest.approx(found.prefill + found.decode + found.reload, rel=1e-12)
    assert both[0].tokens == int((prompts + responses).sum())


def test_a_layout_that_stays_is_not_loaded_again() -> None:
    """With one layout for both it is generation whose keys and values go by the host."""
    of, prompts, responses = seesaw_cost(200), ints(9, 9, 9), ints(5, 5, 5)
    same = replace(of, prefill=of.decode)
    (found,) = generate_by_seesaw(prompts, responses, [same], 1)
    assert (found.reloads, found.reload) == (0, 0.0)
    assert found.seconds[0] > generate(prompts, responses, of.decode, 1).seconds[0]


def test_what_cannot_be_is_a_sentence() -> None:
    of = seesaw_cost(10)
    with pytest.raises(ValueError, match=r"^host_kv is .* of 10 tokens of a replica; a prompt may have 11, so .*"):
        generate_by_seesaw(ints(11), ints(2), [of], 1)
    with pytest.raises(ValueError, match=r"^prefill takes 4 GPUs of a replica, and decode 2$"):
        replace(of, decode=GenerationCost(COST, 2, 0.9))
    alone = Cost(replace(COST.cluster, host_bandwidth=None, host_efficiency=None, host_latency=None), FOUR)
    with pytest.raises(
        ValueError, match=r"^cluster a100_80g_16x8 has no cluster.host_bandwidth; seesaw brings weights"
    ):
        seesaw_cost(10, cost=alone)
    with pytest.raises(ValueError, match=r"^host_kv is 1024 GiB a GPU; with weights a node takes 4096 GiB, and clus"):
        replace(of, host_bytes=2.0**40)
