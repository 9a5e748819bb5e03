"""The network against a plain Llama written out here, and its promises: sizes, no tokens, chunks, recomputation."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from zbench.cost import loss as sizes
from zbench.describe.model import Model
from zbench.runtime.job.footprint import LEVELS
from zbench.runtime.kernels.elementwise import Elementwise, rotate, wide
from zbench.runtime.training.blocks import CrossEntropy
from zbench.runtime.training.dense import attention
from zbench.runtime.training.transformer import Transformer, rope

pytestmark = pytest.mark.usefixtures("one_torch_thread")

DENSE = Model("dense", 3, 24, 6, 3, 4, 40, 31, element_bytes=8)
EXPERTS = replace(DENSE, name="experts", num_experts=5, experts_per_token=2)
SHARED = replace(EXPERTS, shared_experts=2)
KINDS = [replace(model, tied_embeddings=tied) for model in (DENSE, EXPERTS) for tied in (False, True)]
KINDS += [SHARED, replace(EXPERTS, gate="softmax_all"), replace(SHARED, gate="sigmoid")]
LABELS = ["dense-untied", "dense-tied", "experts-untied", "experts-tied", "shared experts", "shares of all", "sigmoid"]


class Recorded(torch.autograd.Function):
    """Attention that tells of every forward and backward; o is q plus what keeps k and v in the graph."""

    @staticmethod
    def forward(ctx: Any, calls: list[str], layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        calls.append(f"forward {layer}")
        ctx.calls, ctx.layer = calls, layer
        ctx.save_for_backward(k)
        return q + (k * v).sum()

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[None, None, Tensor, Tensor, Tensor]:
        ctx.calls.append(f"backward {ctx.layer}")
        (k,) = ctx.saved_tensors
        return None, None, do, k * do.sum(), k * do.sum()


def inputs(model: Model, length: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    tokens = torch.randint(model.vocab, (length + 1,), generator=torch.Generator().manual_seed(seed))
    return tokens[:-1], torch.arange(length), tokens[1:]


def lively(model: Model, seed: int = 3) -> Transformer:
    """A network whose every weight matters: initial ones are so small that attention hardly shows in the loss."""
    network = Transformer(model, seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(8) if parameter.ndim > 1 else parameter.mul_(1.5)
    return network


def gradients(network: Transformer) -> dict[str, Tensor]:
    found = {name: p.grad for name, p in network.named_parameters()}
    assert None not in found.values()
    return {name: grad for name, grad in found.items() if grad is not None}


# -- a plain Llama, token by token ------------------------------------------------------------------


def plain_norm(x: Tensor, weight: Tensor) -> Tensor:
    return x / ((x * x).mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def plain_turn(x: Tensor, position: int) -> Tensor:
    """RoPE by its matrix: neighbours (2i, 2i + 1) of x [D] turned by position / 500000 ** (2i / D)."""
    turn = torch.zeros(len(x), len(x), dtype=x.dtype)
    for i in range(0, len(x), 2):
        angle = position / 500000 ** (i / len(x))
        turn[i, i] = turn[i + 1, i + 1] = math.cos(angle)
        turn[i + 1, i], turn[i, i + 1] = math.sin(angle), -math.sin(angle)
    return turn @ x


def plain_ffn(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = (gate_up @ x).chunk(2)
    return down @ (gate * torch.sigmoid(gate) * up)


def plain_experts(x: Tensor, router: Tensor, gate_up: Tensor, down: Tensor, m: Model) -> Tensor:
    per_token, logits = m.experts_per_token, router @ x
    share = 1 / (1 + torch.exp(-logits)) if m.gate == "sigmoid" else torch.exp(logits) / torch.exp(logits).sum()
    best = sorted(range(len(router)), key=lambda e: -share[e].item())[:per_token]
    parts = [share[e] * plain_ffn(x, gate_up.chunk(len(router))[e], down.chunk(len(router))[e]) for e in best]
    return torch.stack(parts).sum(0) / (1 if m.gate == "softmax_all" else sum(share[e] for e in best))


def plain_llama(m: Model, w: dict[str, Tensor], tokens: list[int], targets: list[int]) -> Tensor:
    """Sum of the losses of one sequence."""
    x = [w["embedding"][token] for token in tokens]
    for layer in range(m.num_layers):
        p = {name.split(".")[2]: value for name, value in w.items() if name.startswith(f"layers.{layer}.")}
        heads: list[list[Tensor]] = [list((p["qkv"] @ plain_norm(t, p["attention_norm"])).split(m.head_dim)) for t in x]
        for position, own in enumerate(heads):
            for i in range(m.num_heads + m.num_kv_heads):
                own[i] = plain_turn(own[i], position)
        for t in range(len(x)):
            out = []
            for head in range(m.num_heads):
                key = m.num_heads + head * m.num_kv_heads // m.num_heads
                scores = torch.stack([heads[t][head] @ heads[s][key] / m.head_dim**0.5 for s in range(t + 1)])
                values = torch.stack([heads[s][key + m.num_kv_heads] for s in range(t + 1)])
                out.append(torch.exp(scores) @ values / torch.exp(scores).sum())
            x[t] = x[t] + p["out"] @ torch.cat(out)
            y = plain_norm(x[t], p["ffn_norm"])
            if m.num_experts == 1:
                x[t] = x[t] + plain_ffn(y, p["gate_up"], p["down"])
            else:
                x[t] = x[t] + plain_experts(y, p["router"], p["gate_up"], p["down"], m)
                if m.shared_experts:
                    x[t] = x[t] + plain_ffn(y, p["shared_gate_up"], p["shared_down"])
    head_weight = w["embedding"] if m.tied_embeddings else w["head"]
    logits = [head_weight @ plain_norm(t, w["norm"]) for t in x]
    return torch.stack([torch.log(torch.exp(z).sum()) - z[y] for z, y in zip(logits, targets, strict=True)]).sum()


@pytest.mark.parametrize("model", KINDS, ids=LABELS)
def test_loss_and_gradients_are_those_of_a_plain_llama(model: Model) -> None:
    network = lively(model)
    tokens, positions, targets = inputs(model, 9)
    network(tokens, positions, targets, attention, 20).backward()
    weights = {name: p.detach().clone().requires_grad_() for name, p in network.named_parameters()}
    plain = plain_llama(model, weights, tokens.tolist(), targets.tolist()) / 20
    plain.backward()
    assert network(tokens, positions, targets, attention, 20).item() == pytest.approx(plain.item(), rel=1e-13)
    for name, grad in gradients(network).items():
        torch.testing.assert_close(grad, weights[name].grad, rtol=1e-10, atol=1e-14, msg=name)
        assert grad.abs().max() > 1e-6, f"{name} does not matter here"


def test_tokens_may_stand_in_any_order() -> None:
    network, order = lively(EXPERTS), torch.randperm(12, generator=torch.Generator().manual_seed(1))
    tokens, positions, targets = inputs(EXPERTS, 12)

    def shuffled(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        back = order.argsort()
        return attention(layer, q[back], k[back], v[back])[order]

    straight = network(tokens, positions, targets, attention, 12)
    mixed = network(tokens[order], positions[order], targets[order], shuffled, 12)
    assert mixed.item() == pytest.approx(straight.item(), rel=1e-13)


# -- parameters ---------------------------------------------------------------------------------------


@given(st.data())
def test_parameters_are_counted_as_by_the_model(data: st.DataObject) -> None:
    draw: Callable[[int], int] = lambda most: data.draw(st.integers(1, most))  # noqa: E731
    kv_heads, experts = draw(3), draw(4)
    model = Model(
        "any",
        draw(3),
        draw(20),
        kv_heads * draw(3),
        kv_heads,
        2 * draw(4),
        draw(30),
        draw(40),
        tied_embeddings=data.draw(st.booleans()),
        num_experts=experts,
        experts_per_token=draw(experts),
        shared_experts=draw(2) if experts > 1 else 0,
    )
    network = Transformer(model, 0, "meta")
    assert sum(p.numel() for p in network.parameters()) == model.total_params


def test_initial_weights_are_named_draws() -> None:
    model = replace(DENSE, num_layers=8, hidden=128)
    one, other = Transformer(model, 5), dict(Transformer(replace(model, vocab=77), 5).named_parameters())
    for name, p in one.named_parameters():
        if name not in ("embedding", "head"):  # another vocabulary changes nothing else
            assert torch.equal(p, other[name]), name
        assert torch.equal(p, Transformer(replace(model, element_bytes=2), 5).get_parameter(name).double()), name
        std = 0.0 if p.ndim == 1 else 0.02 / 4 if name.endswith((".out", ".down")) else 0.02
        assert p.std().item() == pytest.approx(std, rel=0.1)
    again = Transformer(model, 6)
    assert not torch.equal(one.embedding, again.embedding)
    first, second = one.layers[0], one.layers[1]
    assert not torch.equal(first.get_parameter("qkv"), second.get_parameter("qkv"))


@pytest.mark.parametrize(
    ("change", "words"), [({"element_bytes": 1}, "model.element_bytes is 1"), ({"head_dim": 5}, "model.head_dim is 5")]
)
def test_what_cannot_be_computed_is_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Transformer(replace(DENSE, **change), 0)


# -- no tokens ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 6])
@pytest.mark.parametrize("element_bytes", [2, 4, 8])
@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_attention_runs_alike_with_and_without_tokens(model: Model, element_bytes: int, length: int) -> None:
    forward, backward = [f"forward {i}" for i in range(3)], [f"backward {i}" for i in range(3)]
    again = [call for pair in zip(forward[::-1], backward[::-1], strict=True) for call in pair]
    once = forward + backward[::-1]
    for recompute, expected in (
        ("none", once),
        ("selective", once),
        ("linear", once),
        ("full", forward + again),
    ):
        calls: list[str] = []
        network = Transformer(replace(model, element_bytes=element_bytes), 0)
        network.recompute = recompute
        loss = network(*inputs(model, length), lambda *qkv, to=calls: Recorded.apply(to, *qkv), 10)
        loss.backward()
        assert calls == expected
        for grad in gradients(network).values():
            assert grad.isfinite().all()
            assert length or not grad.any()
        assert length or loss.item() == 0


# -- the loss -----------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """The most elements of any tensor that an operation gives."""

    elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return out


@pytest.mark.parametrize("chunk", [1, 7, 25, 1024])
@pytest.mark.parametrize(("dtype", "close"), [(torch.float64, 1e-13), (torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
def test_the_chunked_loss_is_cross_entropy(
    chunk: int, dtype: torch.dtype, close: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sizes, "LEAST_CHUNK", chunk)
    monkeypatch.setattr(sizes, "CHUNK_SHARE", 1)
    monkeypatch.setattr(sizes, "TILE", 1)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(25, 8, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(40, 8, generator=generator, dtype=torch.float64).to(wide(dtype)).requires_grad_()
    targets = torch.randint(40, (25,), generator=generator)
    with Largest() as seen:
        loss = CrossEntropy.apply(x, weight, targets, Elementwise()) / 7
    assert seen.elements == max(40 * 8, 40 * min(max(chunk, 25 * 8 // 40), 25))
    loss.backward()
    exact, exact_weight = (p.detach().double().requires_grad_() for p in (x, weight))
    expected = F.cross_entropy(exact @ exact_weight.T, targets, reduction="sum") / 7
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=close)
    for grad, right in ((x.grad, exact.grad), (weight.grad, exact_weight.grad)):
        assert grad is not None
        assert right is not None
        assert ((grad.double() - right).norm() / right.norm()).item() < close


def test_the_loss_refuses_a_second_backward() -> None:
    loss = CrossEntropy.apply(
        torch.ones(2, 3, requires_grad=True), torch.ones(4, 3), torch.tensor([0, 1]), Elementwise()
    )
    loss.backward(retain_graph=True)
    with pytest.raises(AttributeError):
        loss.backward()


# -- recomputation, precision, RoPE -------------------------------------------------------------------


@pytest.mark.parametrize("element_bytes", [2, 4, 8])
@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=["dense", "experts"])
def test_recomputation_changes_no_bit(model: Model, element_bytes: int) -> None:
    found = []
    for recompute in LEVELS:
        network = lively(replace(model, element_bytes=element_bytes))
        network.recompute = recompute
        loss = network(*inputs(model, 50), attention, 50)
        loss.backward()
        found.append({"loss": loss.detach(), **gradients(network)})
    assert all(torch.equal(found[0][name], other[name]) for name in found[0] for other in found[1:])


@pytest.mark.parametrize(("element_bytes", "close"), [(4, 1e-4), (2, 5e-2)])
def test_narrower_dtypes_come_close(element_bytes: int, close: float) -> None:
    exact, rough = lively(DENSE), lively(replace(DENSE, element_bytes=element_bytes))
    for network in (exact, rough):
        loss = network(*inputs(DENSE, 60), attention, 60)
        loss.backward()
        assert loss.dtype == (torch.float64 if network is exact else torch.float32)
    for name, grad in gradients(rough).items():
        right = gradients(exact)[name]
        assert grad.dtype == torch.float32
        assert ((grad - right).norm() / right.norm()).item() < close, name


def test_rope_turns_pairs_by_their_position() -> None:
    x = torch.randn(5, 3, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    positions = torch.tensor([0, 1, 17, 65_535, 1_000_003])
    found = rotate(x, *rope(positions, 8))
    for t, position in enumerate(positions.tolist()):
        for head in range(3):
            torch.testing.assert_close(found[t, head], plain_turn(x[t, head], position), rtol=0, atol=1e-9)
    assert torch.equal(found[0], x[0])


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_rope_scores_depend_on_distance_alone(one: int, other: int, shift: int) -> None:
    q, k = torch.randn(2, 1, 1, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def score(q_position: int, k_position: int) -> float:
        found = rotate(torch.cat([q, k]), *rope(torch.tensor([q_position, k_position]), 16))
        return (found[0] * found[1]).sum().item()

    assert score(one, other) == pytest.approx(score(one + shift, other + shift), abs=1e-8)
