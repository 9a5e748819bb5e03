"""Elementwise work: gradients against autograd's, compiled against not, and what is said where nothing compiles."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from zbench.describe.model import Model
from zbench.runtime.kernels import elementwise
from zbench.runtime.kernels.elementwise import (
    Elementwise,
    choose_elementwise,
    gated_back,
    gated_back_input,
    lacks,
    normed_back,
    normed_back_input,
    normed_back_weight,
)
from zbench.runtime.training.transformer import rope

pytestmark = pytest.mark.usefixtures("one_torch_thread")

CPU = torch.device("cpu")
ROWS, HEADS, KV_HEADS, DIM = 7, 4, 2, 6
MODEL = Model("small", 1, 24, HEADS, KV_HEADS, DIM, 10, 30, element_bytes=8, lse_bytes=8)
PLAIN = Elementwise()


def draw(*shape: int, rows: int = ROWS) -> Tensor:
    generator = torch.Generator().manual_seed(len(shape))
    return torch.randn(rows, *shape, dtype=torch.float64, generator=generator)


def by_autograd(function: Callable[..., Any], given: list[Tensor], upstream: list[Tensor]) -> tuple[Tensor, ...]:
    leaves = [x.clone().requires_grad_() for x in given]
    out = function(*leaves)
    return torch.autograd.grad(out if isinstance(out, tuple) else (out,), leaves, upstream)


def close(found: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_gradients_are_those_of_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, dy = draw(24), draw(24)[0] + 1, draw(24) * 2
    close(PLAIN.normed_back(dy, x, weight), by_autograd(PLAIN.normed, [x, weight], [dy]))
    cos, sin = rope(torch.arange(ROWS) * 3, DIM)
    qkv = draw(HEADS + 2 * KV_HEADS, DIM)
    dq, dk, dv = (qkv * 3 + 1).split((HEADS, KV_HEADS, KV_HEADS), 1)
    turned = PLAIN.split(qkv, cos, sin, HEADS, KV_HEADS)
    with monkeypatch.context() as patched:
        patched.setattr(torch.compiler, "is_compiling", lambda: True)  # in real numbers then
        close(PLAIN.split(qkv, cos, sin, HEADS, KV_HEADS), turned)
    run = lambda x: PLAIN.split(x, cos, sin, HEADS, KV_HEADS)  # noqa: E731
    close((PLAIN.split_back(dq, dk, dv, cos, sin),), by_autograd(run, [qkv], [dq, dk, dv]))
    across = dq.transpose(0, 2).contiguous().transpose(0, 2)  # no neighbours in memory
    close((PLAIN.split_back(across, dk, dv, cos, sin),), (PLAIN.split_back(dq, dk, dv, cos, sin),))
    gate_up, given = draw(20), draw(10)
    dgate_up, product = PLAIN.gated_back(given, gate_up)
    close((dgate_up,), by_autograd(PLAIN.gated, [gate_up], [given]))
    close((product,), (PLAIN.gated(gate_up),))
    logits, targets = draw(30), torch.arange(ROWS)[:, None]
    close(PLAIN.softmaxed(logits, targets), (logits.log_softmax(1).gather(1, targets), logits.softmax(1)))


def test_a_gradient_alone_is_that_of_all_to_the_bit() -> None:
    x, weight, dy, gate_up = draw(24), draw(24)[0] + 1, draw(24) * 2, draw(48)
    dx, dweight = normed_back(dy, x, weight)
    assert torch.equal(normed_back_input(dy, x, weight), dx)
    assert torch.equal(normed_back_weight(dy, x), dweight)
    assert torch.equal(gated_back_input(dy, gate_up), gated_back(dy, gate_up)[0])


def test_compiled_is_the_same_for_any_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile's front end alone, which is what rows could be too many for; no kernel is made."""
    graphs: list[int] = []

    def count(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(len(inputs))
        return graph.forward

    fused, words = Elementwise.compiled(count), list[str]()  # type: ignore[arg-type]
    assert (fused.is_compiled, PLAIN.is_compiled) == (True, False)
    assert torch._inductor.config.compile_threads == 1  # no process that could outlive this one
    weight = draw(24)[0]
    for rows in (5, 0, 1, 2, 24, 50):  # 24: as many as columns
        x = draw(24, rows=rows).requires_grad_()
        close(fused.normed_back(x, x, weight), PLAIN.normed_back(x, x, weight))
    assert len(graphs) == 1
    few = ("gated", "softmaxed")
    for name in set(elementwise.Elementwise.__dataclass_fields__) - {"lacks", *few}:
        monkeypatch.setitem(fused.__dict__, name, getattr(PLAIN, name))
    fused.warm(MODEL, torch.float64, CPU, words.append)
    assert len(graphs) == 1 + len(few)
    assert words[-1] == "compiling softmaxed"
    targets = torch.arange(ROWS)[:, None]
    close(fused.softmaxed(draw(30), targets), PLAIN.softmaxed(draw(30), targets))
    assert len(graphs) == 1 + len(few)


@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch's own
def test_any_thread_compiles_in_its_own_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's thread of a backward on a GPU does, should it meet a tensor that lies in another way."""
    asked: list[Any] = []

    def compile_fx(graph: torch.fx.GraphModule, inputs: list[Any], **options: Any) -> Callable[..., Any]:
        asked.append(options["config_patches"])
        return graph.forward

    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", compile_fx)
    fused, weight = Elementwise.compiled(), draw(24)[0]
    for x in (draw(24), draw(24).T.contiguous().T):
        thread = threading.Thread(target=fused.normed, args=(x, weight))
        thread.start()
        thread.join()
    assert asked == [{"compile_threads": 1}] * 2


def test_no_compiler_is_told_in_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr(elementwise, "find_spec", lambda name: None)
    assert lacks(cuda) == "the package triton"
    with pytest.raises(ValueError, match=r"executor.compile is true; torch.compile needs the package triton here"):
        choose_elementwise(True, cuda)
    assert (
        choose_elementwise(None, cuda).name
        == "uncompiled: torch.compile needs the package triton here, and there is none"
    )
    monkeypatch.setattr(elementwise, "find_spec", lambda name: name)
    for name in ("PATH", "CC", "CXX"):
        monkeypatch.setenv(name, str(tmp_path))
    assert lacks(cuda) == "a C compiler (gcc or clang, or CC)"
    with pytest.raises(ValueError, match=r"a C\+\+ compiler \(g\+\+ or clang\+\+, or CXX\) here, and there is none"):
        choose_elementwise(True, CPU)
    monkeypatch.setenv("CC", "/bin/sh")
    assert choose_elementwise(None, cuda).is_compiled
    assert not choose_elementwise(None, CPU).is_compiled
    assert choose_elementwise(False, cuda) == PLAIN
