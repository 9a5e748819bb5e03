"""What a profiler's trace is read as: a GPU's kernels by the call that launched them, a CPU's operations."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.profiler import profile

from zbench.runtime.clocks.events import OPTIMIZER
from zbench.runtime.kernels.elementwise import Elementwise
from zbench.runtime.kernels.span import ATTENTION, ELEMENTWISE, LOSS, PREFIX
from zbench.runtime.training.blocks import CrossEntropy, NormLinear
from zbench.speed import profile as reading
from zbench.speed.profile import MATMUL, OTHER, time_shares


def event(cat: str, name: str, ts: float, dur: float, tid: int = 1, **args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def test_kernels_count_where_they_were_asked_for() -> None:
    trace = [
        event("user_annotation", f"{PREFIX}{LOSS}", 0, 50),
        event("cpu_op", "aten::mm", 1, 10),
        event("cuda_runtime", "cudaLaunchKernel", 2, 1, correlation=1),
        event("user_annotation", f"{PREFIX}{ELEMENTWISE}", 20, 10),
        event("cuda_driver", "cuLaunchKernel", 21, 1, correlation=2),
        event("cpu_op", "aten::addmm", 60, 10),
        event("cuda_runtime", "cudaLaunchKernel", 61, 1, correlation=3),
        event("user_annotation", f"{PREFIX}{ELEMENTWISE}", 60, 30, tid=2),  # another thread's: it holds none of these
        event("cuda_driver", "cuLaunchKernel", 62, 1, tid=2, correlation=4),
        event("user_annotation", f"{PREFIX}{ATTENTION}", 100, 30),
        event("cpu_op", "aten::mul", 101, 5),
        event("cuda_runtime", "cudaLaunchKernel", 102, 1, correlation=5),
        event("cuda_runtime", "cudaMemcpyAsync", 140, 1, correlation=6),
        event("kernel", "a", 1000, 100, tid=7, correlation=1),
        event("kernel", "b", 1100, 10, tid=7, correlation=2),
        event("kernel", "c", 1110, 40, tid=7, correlation=3),
        event("kernel", "d", 1140, 20, tid=8, correlation=4),  # beside c
        event("kernel", "e", 1160, 5, tid=7, correlation=5),
        event("gpu_memcpy", "f", 1170, 4, tid=7, correlation=6),
        event("kernel", "g", 1180, 1, tid=7, correlation=99),  # nobody knows who asked for it
        {"ph": "M", "name": "process_name"},
    ]
    found = time_shares(trace)
    told = {LOSS: 110e-6, MATMUL: 40e-6, ELEMENTWISE: 20e-6, ATTENTION: 5e-6, OTHER: 5e-6}
    assert found.seconds == pytest.approx(told)
    assert found.busy == pytest.approx(170e-6)
    assert found.launches == 7


def test_the_names_are_those_of_the_spans() -> None:
    assert reading.PREFIX == PREFIX
    assert reading.WHOLE == (ATTENTION, LOSS, OPTIMIZER)


def test_a_real_trace_of_a_cpu_has_the_groups(tmp_path: Path) -> None:
    fused, x = Elementwise(), torch.randn(50, 8, requires_grad=True)
    norm, weight = torch.ones(8, requires_grad=True), torch.randn(300, 8, requires_grad=True)
    with profile() as seen:
        y = NormLinear.apply(x, norm, torch.eye(8, requires_grad=True), fused)
        CrossEntropy.apply(y, weight, torch.zeros(50, dtype=torch.int64), fused).backward()
    seen.export_chrome_trace(str(tmp_path / "trace"))
    found = time_shares(json.loads((tmp_path / "trace").read_text())["traceEvents"])
    assert {LOSS, MATMUL, ELEMENTWISE} <= set(found.seconds) <= {LOSS, MATMUL, ELEMENTWISE, OTHER}
    assert 0 < found.busy <= sum(found.seconds.values()) * (1 + 1e-9)
