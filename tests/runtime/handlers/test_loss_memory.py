"""What a whole step's loss holds, by torch's own count of allocations: as many bytes as the account has, whole and in
chunks, in every dtype; and exact, whatever chunks there are."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from zbench.cost.loss import LEAST_CHUNK, logits_bytes
from zbench.describe.model import AUTO, Model
from zbench.runtime.handlers.context import Context
from zbench.runtime.handlers.functions import FUNCTIONS
from zbench.runtime.handlers.token_loss import PolicyLoss
from zbench.runtime.kernels.kernels import choose_kernel
from zbench.runtime.kernels.memory import DTYPES, KvHeads

HIDDEN, WORDS = 16, 2048
FULL = Model("m", 1, HIDDEN, 1, 1, HIDDEN, 32, WORDS)


def loss_context(tokens: int, chunks: bool, dtype: torch.dtype = torch.float64) -> Context:
    rng = torch.Generator().manual_seed(2)
    targets = torch.randint(-WORDS, WORDS, (tokens,), generator=rng).clamp(min=-1)  # half of them of other GPUs' words
    kernel = choose_kernel("auto", torch.device("cpu"), HIDDEN, dtype, FULL.mask)
    none = torch.empty(0)
    return Context((none, none), targets, targets, WORDS, KvHeads(None, 1), None, kernel, chunks=chunks)


def drawn(tokens: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    rng = torch.Generator().manual_seed(3)
    hidden = torch.randn(tokens, HIDDEN, generator=rng, dtype=torch.float64)
    return hidden.to(dtype), torch.randn(WORDS, HIDDEN, generator=rng, dtype=torch.float64).to(dtype)


def most_allocated(function: Callable[[], object]) -> int:
    """Returns the most bytes that torch had allocated at a time for a function, results with them."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        result = function()
    del result
    events = [one for one in found.profiler.kineto_results.events() if one.name() == "[memory]"]
    there = most = 0
    for one in sorted(events, key=lambda event: event.start_ns()):
        there += one.nbytes()
        most = max(most, there)
    return most


@pytest.mark.parametrize("element_bytes", [2, 4, 8])
@pytest.mark.parametrize(("tokens", "chunk"), [(700, "whole"), (700, AUTO), (3000, "whole"), (3000, AUTO)])
def test_held_as_accounted(element_bytes: int, tokens: int, chunk: int | str) -> None:
    """Beside the results: sums of tokens, the gradient of hidden states, and of the weights."""
    model, dtype = replace(FULL, element_bytes=element_bytes, loss_chunk_tokens=chunk), DTYPES[element_bytes]
    at, (c, wh) = loss_context(tokens, chunk == AUTO, dtype), drawn(tokens, dtype)
    said = logits_bytes(model, tokens, 1.0)
    assert chunk == "whole" or said <= logits_bytes(model, LEAST_CHUNK, 1.0)
    one = FUNCTIONS["score"](at, (c,), (wh,))
    for name, results in (("score", one), ("score_d0", (c,)), ("score_d1", (wh,))):
        operands = ((c,), (wh,), one)[: 2 + (name != "score")]
        at.logits.take()
        beside = sum(result.nbytes for result in results)
        found = most_allocated(partial(FUNCTIONS[name], at, *operands))
        assert found == pytest.approx(said + beside, rel=0.03)
        assert at.logits.take() == pytest.approx(said, rel=0.03)


@pytest.mark.parametrize("tokens", [700, 3000])
@pytest.mark.parametrize("with_loss", [False, True])
def test_chunks_are_exact(tokens: int, with_loss: bool) -> None:
    """Sums and gradients as torch's autograd has them, with targets of other GPUs and losses with slopes."""
    c, wh = (one.requires_grad_() for one in drawn(tokens, torch.float64))
    whole, rng = loss_context(tokens, False), torch.Generator().manual_seed(4)
    advantages, before = torch.randn(2, tokens, generator=rng, dtype=torch.float64)
    counts = (whole.targets >= 0).double()
    loss = PolicyLoss(counts, advantages * counts, before.abs(), 0.2) if with_loss else None
    logits = c @ wh.T
    of_targets = logits.gather(1, whole.targets.clamp(min=0)[:, None])[:, 0] * (whole.targets >= 0)
    top = logits.logsumexp(1)
    values = top - of_targets
    (values if loss is None else loss.values(values)).sum().backward()
    with torch.no_grad():
        for at in (replace(whole, loss=loss), replace(whole, loss=loss, chunks=True)):
            one = FUNCTIONS["score"](at, (c,), (wh,))
            torch.testing.assert_close(one, (of_targets, top), rtol=1e-12, atol=1e-12)
            for name, wanted in (("score_d0", c.grad), ("score_d1", wh.grad)):
                found = FUNCTIONS[name](at, (c,), (wh,), one)
                torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12 * float(wanted.abs().max()))


def test_sums_are_torch_s_where_logits_are_infinite() -> None:
    at, (c, wh) = loss_context(2, False), drawn(2, torch.float64)
    c[0, 0], c[1] = torch.inf, -1e300
    wh = wh.abs()
    _, top = FUNCTIONS["score"](at, (c,), (wh,))
    assert torch.equal(top, (c @ wh.T).logsumexp(1))
