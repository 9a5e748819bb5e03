"""The reference against one run over all sequences under a mask, and against finite differences."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from zbench.describe.model import Model
from zbench.runtime.training import dense as module
from zbench.runtime.training.dense import dense_loss
from zbench.runtime.training.transformer import Transformer

pytestmark = pytest.mark.usefixtures("one_torch_thread")

MODEL = Model("small", 2, 16, 4, 2, 4, 24, 13, element_bytes=8)
EXPERTS = replace(MODEL, num_experts=3, experts_per_token=2, tied_embeddings=True, recompute="full")
SEQUENCES: list[NDArray[np.integer]] = [np.array(s, np.uint8) for s in ([3, 1, 4, 1, 5, 9, 2], [6], [5, 3], [5, 8])]
TARGETS = torch.tensor([1, 4, 1, 5, 9, 2, 0, 0, 3, 0, 8, 0])
OWNER = torch.tensor([0] * 7 + [1] + [2] * 2 + [3] * 2)


def lively(model: Model) -> dict[str, Tensor]:
    """Weights large enough for attention to show in the loss."""
    return {name: p * 8 if p.ndim > 1 else p for name, p in Transformer(model, 2).state_dict().items()}


def masked(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """All sequences at once: every token sees those of its own sequence up to itself."""
    seen = (OWNER[:, None] == OWNER) & torch.ones(12, 12).tril().bool()
    out = []
    for head in range(q.shape[1]):
        kv = head * k.shape[1] // q.shape[1]
        scores = (q[:, head] @ k[:, kv].T / q.shape[2] ** 0.5).masked_fill(~seen, -torch.inf)
        out.append(scores.softmax(1) @ v[:, kv])
    return torch.stack(out, 1)


@pytest.mark.parametrize("math_tokens", [2048, 0], ids=["definition", "kernel"])
@pytest.mark.parametrize("model", [MODEL, EXPERTS], ids=["dense", "experts"])
def test_it_is_the_mean_over_all_tokens_of_all_sequences(
    model: Model, math_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MATH_TOKENS", math_tokens)
    loss, gradients = dense_loss(model, lively(model), SEQUENCES)
    network = Transformer(model, 0)
    network.load_state_dict(lively(model))
    tokens, positions = np.concatenate(SEQUENCES), np.concatenate([np.arange(len(s)) for s in SEQUENCES])
    expected = network(torch.from_numpy(tokens).long(), torch.from_numpy(positions), TARGETS, masked, 12)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=1e-13)
    assert list(gradients) == [name for name, _ in network.named_parameters()]
    for name, p in network.named_parameters():
        assert gradients[name].dtype == torch.float64
        torch.testing.assert_close(gradients[name], p.grad, rtol=1e-11, atol=1e-15, msg=name)


@pytest.mark.parametrize("model", [MODEL, EXPERTS], ids=["dense", "experts"])
def test_its_gradient_is_the_slope_of_its_loss(model: Model) -> None:
    weights, generator = lively(model), torch.Generator().manual_seed(0)
    _, gradients = dense_loss(model, weights, SEQUENCES)
    for name, weight in weights.items():
        way = torch.randn(weight.shape, dtype=weight.dtype, generator=generator) * 1e-5
        up, _ = dense_loss(model, weights | {name: weight + way}, SEQUENCES)
        down, _ = dense_loss(model, weights | {name: weight - way}, SEQUENCES)
        assert (up - down) / 2 == pytest.approx((gradients[name] * way).sum().item(), rel=1e-4, abs=1e-11), name


def test_weights_have_to_be_the_models() -> None:
    weights = lively(MODEL)
    with pytest.raises(RuntimeError, match=r"layers\.1\.qkv"):
        dense_loss(MODEL, {name: p for name, p in weights.items() if name != "layers.1.qkv"}, SEQUENCES)
