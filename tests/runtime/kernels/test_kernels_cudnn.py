"""The cuDNN kernel without a GPU: its calls against Matmul in float64, behind operators in plain torch that do what
torch's do, mask at the top left, layouts and all."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.runtime.kernels.test_kernels_cuda import attention, draw, gradients, segment
from zbench.runtime.kernels.cudnn import Cudnn
from zbench.runtime.kernels.kernels import Matmul

CPU = torch.device("cpu")


def checked(tensors: tuple[Tensor, ...], bounds: tuple[Tensor, Tensor], longest: tuple[int, int], causal: bool) -> None:
    assert all(x.is_contiguous() for x in tensors)
    counts = [bound.diff() for bound in bounds]
    for count, most in zip(counts, longest, strict=True):
        assert len(count).bit_count() == most.bit_count() == 1  # powers of two
        assert int(count.max()) <= most
    if causal:
        assert torch.equal(*counts)  # where top left and bottom right are the same


def filled(bounds: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Without the empty sequences at the end, of which the plain functions know nothing."""
    real = int((bounds[0].diff() > 0).sum())
    return bounds[0][: real + 1], bounds[1][: real + 1]


def run(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: None,
    cu_q: Tensor,
    cu_k: Tensor,
    max_q: int,
    max_k: int,
    lse: bool,
    dropout: float,
    causal: bool,
    debug: bool,
) -> tuple[Any, ...]:
    checked((q, k, v), (cu_q, cu_k), (max_q, max_k), causal)
    o, top = attention(q, k, v, filled((cu_q, cu_k)), causal)
    return o, top.T[..., None].contiguous(), cu_q, cu_k, max_q, max_k, None, None, None


def run_back(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    seed: Tensor,
    offset: Tensor,
    bias: None,
    cu_q: Tensor,
    cu_k: Tensor,
    max_q: int,
    max_k: int,
    dropout: float,
    causal: bool,
) -> tuple[Tensor, ...]:
    checked((do, q, k, v, o, lse), (cu_q, cu_k), (max_q, max_k), causal)
    assert lse.shape == (*q.shape[:2], 1)
    return gradients(do, q, k, v, o, lse[..., 0].T.contiguous(), filled((cu_q, cu_k)), causal)


@given(st.lists(segment, min_size=1, max_size=7), st.sampled_from([(4, 2), (3, 1), (2, 2)]))
def test_any_segments_are_as_with_matmul(segments: list[tuple[int, int, bool]], heads: tuple[int, int]) -> None:
    queries, before, diagonal = (list(column) for column in zip(*segments, strict=True))
    do, q, k, v = draw(queries, before, diagonal, heads)
    columns = (np.array(queries), np.array(before), np.array(diagonal))
    reference, tested = Matmul(), Cudnn(CPU, run, run_back)
    ours, cuts = reference.cut(*columns), tested.cut(*columns)
    want, got = reference.forward(q, k, v, ours), tested.forward(q, k, v, cuts)
    for a, b in zip(got, want, strict=True):
        assert torch.allclose(a, b, rtol=0, atol=1e-12)
    final = (want[0] * 0.7 + 0.1, want[1] + 0.3)  # of queries that see further keys elsewhere
    want_back = reference.backward(do, q, k, v, *final, ours)
    got_back = tested.backward(do, q, k, v, *final, cuts)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(got_back, want_back, strict=True))


@pytest.mark.parametrize(("before", "calls"), [([0, 0, 0], [True]), ([4, 4, 4], [True, False])])
def test_whole_sequences_are_one_call(before: list[int], calls: list[bool]) -> None:
    cuts = Cudnn(CPU).cut(np.array([3, 1, 5]), np.array(before), np.ones(3, bool))
    assert [call.causal for call in cuts] == calls
    assert (cuts[0].max_q, len(cuts[0].cu_q)) == (8, 5)


def test_torch_has_operators_with_these_arguments() -> None:
    """They are found and take the arguments; there is nothing that runs them here."""
    kernel, meta = Cudnn(torch.device("meta")), torch.device("meta")
    q, k = (torch.empty(9, heads, 8, dtype=torch.bfloat16, device=meta) for heads in (4, 2))
    cuts = kernel.cut(np.array([3, 1, 5]), np.zeros(3, np.int64), np.ones(3, bool))
    with pytest.raises(NotImplementedError, match="_cudnn_attention_forward"):
        kernel.forward(q, k, k, cuts)
    with pytest.raises(NotImplementedError, match="_cudnn_attention_backward"):
        kernel.backward(q, q, k, k, q, torch.empty(9, 4, device=meta), cuts)
