"""The CUDA kernels without a GPU: cut, row selection and layouts against Matmul in float64, behind an Op in plain torch
that does what flash attention's variable-length calls promise; and how each package is called, by its signature."""

import sys
from collections.abc import Iterator
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from zbench.describe.mask import Mask
from zbench.runtime.kernels.cpu import FlashCPU
from zbench.runtime.kernels.cuda import Flash, Flash2, Flash3, Op, SegmentCall, TorchFlash
from zbench.runtime.kernels.kernels import Matmul, Triple, choose_kernel

pytestmark = pytest.mark.usefixtures("one_torch_thread")

CPU = torch.device("cpu")


def attention(
    q: Tensor, k: Tensor, v: Tensor, bounds: tuple[Tensor, Tensor], causal: bool, left: int = -1
) -> tuple[Tensor, Tensor]:
    """The promise: (o [M, H, D], lse [H, M]) of segments, their masks and windows aligned to the bottom right."""
    group = q.shape[1] // k.shape[1]
    outs, tops = [], []
    for (q0, q1), (k0, k1) in zip(*(zip(x.tolist(), x.tolist()[1:], strict=False) for x in bounds), strict=True):
        keys, values = (x[k0:k1].repeat_interleave(group, 1) for x in (k, v))
        scores = torch.einsum("mhd,nhd->hmn", q[q0:q1], keys) * q.shape[2] ** -0.5
        if causal:
            last = (k1 - k0) - (q1 - q0)
            visible = torch.ones(q1 - q0, k1 - k0, dtype=torch.bool).tril(last)
            visible = visible.triu(last - left) if left >= 0 else visible
            scores = scores.masked_fill(~visible, -torch.inf)
        tops.append(scores.logsumexp(-1))
        outs.append(torch.einsum("hmn,nhd->mhd", scores.softmax(-1), values))
    return torch.cat(outs), torch.cat(tops, 1)


def gradients(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    bounds: tuple[Tensor, Tensor],
    causal: bool,
    left: int = -1,
) -> Triple:
    """Partial ones, of the keys given, by the final o and lse [H, M]."""
    group = q.shape[1] // k.shape[1]
    assert lse.shape == (q.shape[1], q.shape[0])
    assert lse.is_contiguous()
    dq, dk, dv = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    for (q0, q1), (k0, k1) in zip(*(zip(x.tolist(), x.tolist()[1:], strict=False) for x in bounds), strict=True):
        keys, values = (x[k0:k1].repeat_interleave(group, 1) for x in (k, v))
        p = (torch.einsum("mhd,nhd->hmn", q[q0:q1], keys) * q.shape[2] ** -0.5 - lse[:, q0:q1, None]).exp()
        if causal:
            last = (k1 - k0) - (q1 - q0)
            p = p.tril(last).triu(last - left) if left >= 0 else p.tril(last)
        delta = (do[q0:q1] * o[q0:q1]).sum(-1).T
        ds = p * (torch.einsum("mhd,nhd->hmn", do[q0:q1], values) - delta[..., None]) * q.shape[2] ** -0.5
        dq[q0:q1] = torch.einsum("hmn,nhd->mhd", ds, keys)
        for grad, weights, rows in ((dk, ds, q), (dv, p, do)):
            each = torch.einsum("hmn,mhd->nhd", weights, rows[q0:q1])
            grad[k0:k1] = each.unflatten(1, (k.shape[1], group)).sum(2)
    return dq, dk, dv


class Promised:
    """A stand-in for the attention packages' calls, as these are documented."""

    def __init__(self) -> None:
        self.calls: list[SegmentCall] = []

    def forward(self, q: Tensor, k: Tensor, v: Tensor, call: SegmentCall) -> tuple[Tensor, Tensor]:
        self.calls.append(call)
        counts = [np.diff(x.numpy()) for x in (call.cu_q, call.cu_k)]
        assert (int(counts[0].max()), int(counts[1].max())) == (call.max_q, call.max_k)
        assert call.cu_q.dtype == call.cu_k.dtype == torch.int32
        return attention(q, k, v, (call.cu_q, call.cu_k), call.causal, call.left)

    def backward(
        self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, call: SegmentCall
    ) -> Triple:
        return gradients(do, q, k, v, o, lse, (call.cu_q, call.cu_k), call.causal, call.left)


def draw(queries: list[int], before: list[int], diagonal: list[bool], heads: tuple[int, int]) -> list[Tensor]:
    """do, q, k, v, and the final o and lse of queries that see further keys elsewhere."""
    generator = torch.Generator().manual_seed(sum(queries) + 7 * sum(before))
    rows, keys = sum(queries), sum(before) + sum(m for m, d in zip(queries, diagonal, strict=True) if d)

    def make(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    kv = make(keys, 2, heads[1], 8)  # as memory lies: k and v are strided
    return [make(rows, heads[0], 8), make(rows, heads[0], 8), kv[:, 0], kv[:, 1]]


def check(
    op: Op | None,
    queries: list[int],
    before: list[int],
    diagonal: list[bool],
    heads: tuple[int, int],
    left: list[int] | None = None,
) -> None:
    """op: None for the CPU's kernel."""
    do, q, k, v = draw(queries, before, diagonal, heads)
    columns = (np.array(queries), np.array(before), np.array(diagonal), None if left is None else np.array(left))
    reference, tested = Matmul(), FlashCPU() if op is None else Flash("tested", op, CPU)
    ours, cuts = reference.cut(*columns), tested.cut(*columns)
    assert op is None or len(cuts) == len(set(zip(diagonal, left or diagonal, strict=True)))
    want, got = reference.forward(q, k, v, ours), tested.forward(q, k, v, cuts)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(got, want, strict=True))
    top = want[1] + 0.3  # others keys count as well: the final log-sum-exp is larger, and the final o another one
    final = want[0] * 0.7 + 0.1
    want_back = reference.backward(do, q, k, v, final, top, ours)
    got_back = tested.backward(do, q, k, v, final, top, cuts)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in zip(got_back, want_back, strict=True))


segment = st.one_of(
    st.tuples(st.integers(1, 9), st.integers(0, 9), st.just(True)),
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(False)),
)


@given(st.lists(segment, min_size=1, max_size=7), st.sampled_from([(4, 2), (3, 1), (2, 2)]))
def test_any_segments_are_as_with_matmul(segments: list[tuple[int, int, bool]], heads: tuple[int, int]) -> None:
    queries, before, diagonal = (list(column) for column in zip(*segments, strict=True))
    check(Promised(), queries, before, diagonal, heads)


@given(st.lists(st.tuples(segment, st.integers(-1, 20)), min_size=1, max_size=7), st.sampled_from([(4, 2), (3, 1)]))
def test_any_windows_are_as_with_matmul(drawn: list, heads: tuple[int, int]) -> None:
    """By calls of flash attention, one a window, and by the CPU's kernel; matmul's is by the definition below."""
    queries, before, diagonal = (list(column) for column in zip(*(one for one, _ in drawn), strict=True))
    left = [window if one[2] else -1 for one, window in drawn]
    check(Promised(), queries, before, diagonal, heads, left)
    check(None, queries, before, diagonal, heads, left)


def test_a_window_by_hand() -> None:
    """Three queries after two keys, of which each sees itself and one before: columns 2 and 1, 3 and 2, 4 and 3."""
    (segment,) = Matmul().cut(*(np.array([value]) for value in (3, 2, True, 1)))
    seen = ~segment.hidden(CPU)
    assert seen.nonzero().tolist() == [[0, 1], [0, 2], [1, 2], [1, 3], [2, 3], [2, 4]]


def test_one_kind_of_segment_is_one_call_of_all_rows() -> None:
    op = Promised()
    check(op, [3, 1, 5], [0, 4, 2], [True, True, True], (4, 2))
    assert [call.causal for call in op.calls] == [True]
    assert (op.calls[0].q_rows, op.calls[0].k_rows) == (slice(0, 9), slice(0, 15))


def test_kinds_that_lie_together_are_slices_and_others_are_gathered() -> None:
    op = Promised()
    check(op, [3, 1, 5], [0, 4, 2], [True, True, False], (4, 2))
    assert [call.q_rows for call in op.calls] == [slice(0, 4), slice(4, 9)]
    assert [call.k_rows for call in op.calls] == [slice(0, 8), slice(8, 10)]
    op = Promised()
    check(op, [3, 1, 5], [0, 4, 2], [True, False, True], (4, 2))
    assert torch.equal(op.calls[0].q_rows, torch.tensor([0, 1, 2, 4, 5, 6, 7, 8]))
    assert op.calls[1].q_rows == slice(3, 4)


def test_the_call_of_torch_has_the_operators_arguments_and_layouts() -> None:
    """On the meta device: torch checks the arguments and says what shapes come back; nothing is computed."""
    meta = torch.device("meta")
    kernel = Flash("torch-flash-cuda", TorchFlash(), meta)
    q, do, o = (torch.empty(9, 4, 8, dtype=torch.bfloat16, device=meta) for _ in range(3))
    k, v = (torch.empty(14, 2, 8, dtype=torch.bfloat16, device=meta) for _ in range(2))
    for diagonal in ([True, True, False], [True, True, True]):
        keys = k[: 4 + 6 + 4] if diagonal[2] is False else torch.empty(19, 2, 8, dtype=torch.bfloat16, device=meta)
        values = keys if diagonal[2] else v
        cuts = kernel.cut(np.array([3, 1, 5]), np.array([1, 5, 4]), np.array(diagonal))
        out, lse = kernel.forward(q, keys, values, cuts)
        assert (out.shape, lse.shape, lse.dtype) == (q.shape, (9, 4), torch.float32)
        grads = kernel.backward(do, q, keys, values, o, lse, cuts)
        assert [x.shape for x in grads] == [q.shape, keys.shape, keys.shape]


@pytest.fixture
def flash_attn() -> ModuleType:
    """The package's two private functions as version 2.8 declares them, computing in plain torch."""

    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float,
        softmax_scale: float,
        causal: bool,
        window_size_left: int = -1,
        window_size_right: int = -1,
        softcap: float = 0.0,
        alibi_slopes: Tensor | None = None,
        return_softmax: bool = False,
        block_table: Tensor | None = None,
        leftpad_k: Tensor | None = None,
        seqused_k: Tensor | None = None,
        zero_tensors: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        assert (dropout_p, softmax_scale) == (0.0, q.shape[2] ** -0.5)
        assert window_size_right == (0 if window_size_left >= 0 else -1)
        o, lse = attention(q, k, v, (cu_seqlens_q, cu_seqlens_k), causal, window_size_left)
        return o, lse, q.new_empty(0), q.new_empty(2)

    def backward(
        dout: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        out: Tensor,
        softmax_lse: Tensor,
        dq: Tensor | None,
        dk: Tensor | None,
        dv: Tensor | None,
        cu_seqlens_q: Tensor,
        cu_seqlens_k: Tensor,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float,
        softmax_scale: float,
        causal: bool,
        window_size_left: int,
        window_size_right: int,
        softcap: float,
        alibi_slopes: Tensor | None,
        deterministic: bool,
        rng_state: Tensor | None = None,
        zero_tensors: bool = False,
    ) -> Tensor:
        assert (dropout_p, softmax_scale) == (0.0, q.shape[2] ** -0.5)
        assert (window_size_right, softcap) == (0 if window_size_left >= 0 else -1, 0.0)
        grads = gradients(dout, q, k, v, out, softmax_lse, (cu_seqlens_q, cu_seqlens_k), causal, window_size_left)
        for target, grad in zip((dq, dk, dv), grads, strict=True):
            assert target is not None
            target.copy_(grad)
        return softmax_lse

    interface = ModuleType("flash_attn.flash_attn_interface")
    interface._flash_attn_varlen_forward, interface._flash_attn_varlen_backward = forward, backward  # type: ignore[attr-defined]
    return interface


@pytest.mark.parametrize(("version", "fits"), [("2.8.3", True), ("2.7.0.post2", True), ("2.6.3", False)])
def test_flash_attn_2_is_called_as_it_declares(
    flash_attn: ModuleType, monkeypatch: pytest.MonkeyPatch, version: str, fits: bool
) -> None:
    package = ModuleType("flash_attn")
    package.__version__ = version  # type: ignore[attr-defined]
    package.__spec__ = torch.__spec__
    monkeypatch.setitem(sys.modules, "flash_attn", package)
    monkeypatch.setitem(sys.modules, "flash_attn.flash_attn_interface", flash_attn)
    op = Flash2.of()
    assert (op is not None) == fits
    if op is not None:
        check(op, [3, 1, 5], [0, 4, 2], [True, False, True], (4, 2))
        check(op, [3, 1, 5], [0, 4, 2], [True, False, True], (4, 2), [1, -1, 3])


@pytest.fixture
def flash_attn_3(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The package's two operators as it registers them, computing in plain torch."""
    library = torch.library.Library("flash_attn_3", "DEF")
    sizes = "Tensor? cu_seqlens_q = None, Tensor? cu_seqlens_k = None"
    used = "Tensor? seqused_q = None, Tensor? seqused_k = None, int? max_seqlen_q = None, int? max_seqlen_k = None"
    window = "int window_size_left = -1, int window_size_right = -1"
    library.define(
        "fwd(Tensor q, Tensor k, Tensor v, Tensor(k_new!)? k_new = None, Tensor(v_new!)? v_new = None, "
        f"Tensor? q_v = None, Tensor(out!)? out = None, {sizes}, Tensor? cu_seqlens_k_new = None, {used}, "
        "Tensor? page_table = None, Tensor? kv_batch_idx = None, Tensor? leftpad_k = None, Tensor? rotary_cos = None, "
        "Tensor? rotary_sin = None, Tensor? seqlens_rotary = None, Tensor? q_descale = None, "
        "Tensor? k_descale = None, Tensor? v_descale = None, float? softmax_scale = None, bool is_causal = False, "
        f"{window}, int attention_chunk = 0, float softcap = 0.0, bool is_rotary_interleaved = False, "
        "Tensor? scheduler_metadata = None, int num_splits = 0, bool? pack_gqa = None, int sm_margin = 0) "
        "-> (Tensor(out!), Tensor, Tensor, Tensor)"
    )
    library.define(
        "bwd(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(dq!)? dq = None, "
        f"Tensor(dk!)? dk = None, Tensor(dv!)? dv = None, {sizes}, {used}, float? softmax_scale = None, "
        f"bool is_causal = False, {window}, float softcap = 0.0, bool deterministic = False, int sm_margin = 0) "
        "-> (Tensor(dq!), Tensor(dk!), Tensor(dv!), Tensor, Tensor, Tensor, Tensor, Tensor)"
    )

    def forward(
        q: Tensor,
        k: Tensor,
        v: Tensor,
        k_new: None,
        v_new: None,
        q_v: None,
        out: None,
        cu_q: Tensor,
        cu_k: Tensor,
        cu_k_new: None,
        used_q: None,
        used_k: None,
        max_q: int,
        max_k: int,
        page_table: None,
        kv_batch_idx: None,
        leftpad_k: None,
        cos: None,
        sin: None,
        rotary: None,
        q_scale: None,
        k_scale: None,
        v_scale: None,
        softmax_scale: float,
        causal: bool = False,
        left: int = -1,
        *rest: object,
    ) -> tuple[Tensor, ...]:
        assert (softmax_scale, max_q) == (q.shape[2] ** -0.5, int(cu_q.diff().max()))
        return *attention(q, k, v, (cu_q, cu_k), causal, left), q.new_empty(0), q.new_empty(0)

    def backward(
        do: Tensor,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        o: Tensor,
        lse: Tensor,
        dq: Tensor,
        dk: Tensor,
        dv: Tensor,
        cu_q: Tensor,
        cu_k: Tensor,
        used_q: None,
        used_k: None,
        max_q: int,
        max_k: int,
        scale: float,
        causal: bool = False,
        left: int = -1,
        *rest: object,
    ) -> tuple[Tensor, ...]:
        assert (scale, max_k) == (q.shape[2] ** -0.5, int(cu_k.diff().max()))
        for target, grad in zip((dq, dk, dv), gradients(do, q, k, v, o, lse, (cu_q, cu_k), causal, left), strict=True):
            target.copy_(grad)
        return dq, dk, dv, *(q.new_empty(0) for _ in range(5))

    library.impl("fwd", forward, "CPU")
    library.impl("bwd", backward, "CPU")
    interface = ModuleType("flash_attn_interface")
    interface.__spec__ = torch.__spec__
    monkeypatch.setitem(sys.modules, "flash_attn_interface", interface)
    yield
    library._destroy()


@pytest.mark.usefixtures("flash_attn_3")
def test_flash_attn_3_is_called_as_it_declares() -> None:
    op = Flash3.of()
    assert op is not None
    check(op, [3, 1, 5], [0, 4, 2], [True, False, True], (4, 2))
    check(op, [3, 1, 5], [0, 4, 2], [True, False, True], (4, 2), [1, -1, 3])


def test_packages_that_are_not_here_are_not_offered() -> None:
    assert Flash2.of() is None
    assert Flash3.of() is None


@pytest.mark.parametrize(
    ("version", "capability", "head_dim", "dtype", "names"),
    [
        ("2.14.0", (9, 0), 128, torch.bfloat16, ["matmul", "cudnn", "torch-flash-cuda"]),
        ("2.13.0+cu130", (9, 0), 128, torch.bfloat16, ["matmul", "torch-flash-cuda"]),
        ("2.14.0", (8, 0), 64, torch.float16, ["matmul", "torch-flash-cuda"]),
        ("2.14.0", (7, 5), 64, torch.float16, ["matmul"]),
        ("2.14.0", (9, 0), 12, torch.bfloat16, ["matmul"]),
        ("2.14.0", (9, 0), 264, torch.bfloat16, ["matmul"]),
        ("2.14.0", (9, 0), 128, torch.float32, ["matmul"]),
        ("2.14.0", (9, 0), 128, torch.float64, ["matmul"]),
    ],
)
def test_auto_is_the_fastest_that_the_gpu_has_for_a_dtype(
    monkeypatch: pytest.MonkeyPatch,
    version: str,
    capability: tuple[int, int],
    head_dim: int,
    dtype: torch.dtype,
    names: list[str],
) -> None:
    monkeypatch.setattr(torch, "__version__", type(torch.__version__)(version))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.backends.cuda, "is_flash_attention_available", lambda: True)
    device = torch.device("cuda", 0)
    assert choose_kernel("auto", device, head_dim, dtype).name == names[-1]
    with pytest.raises(ValueError, match=f"there are auto, {', '.join(names)}$"):
        choose_kernel("torch-flash-cpu", device, head_dim, dtype)
    if "cudnn" in names:
        with pytest.raises(ValueError, match=r"^executor.kernel is cudnn, which has no windows; mask=window:9"):
            choose_kernel("cudnn", device, head_dim, dtype, Mask(window=9))
