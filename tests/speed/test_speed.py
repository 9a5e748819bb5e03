"""zbench.speed on a CPU, end to end with a small model; what it says and what it does not measure again."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend

from zbench.describe.model import Model
from zbench.runtime.job.footprint import LEVELS
from zbench.runtime.kernels.cpu import FlashCPU
from zbench.speed import __main__ as speed
from zbench.speed import kernels
from zbench.speed.kernels import KernelSubject, on_batch, ring_step
from zbench.speed.table import SDPA, speed_table

CPU = torch.device("cpu")
SUBJECT = KernelSubject(Model("small", 1, 32, 4, 2, 8, 16, 32, element_bytes=8, lse_bytes=8), CPU)


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr("sys.argv", ["speed", *arguments])
    return speed.main()


def test_the_whole_path_on_a_cpu_and_nothing_twice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(kernels, "REPEATS", 1)
    out = tmp_path / "speed.jsonl"
    arguments = ("--device", "cpu", "--tiny", "--out", str(out))
    assert run(monkeypatch, *arguments) == 0
    first, lines = out.read_text(), [json.loads(text) for text in out.read_text().splitlines()]
    cases = [line["case"] for line in lines]
    assert cases == ["attention longtail_32k", "ring step, torch-flash-cpu", "step longtail_32k", "deep longtail_32k"]
    step = lines[2]
    assert (step["layers"], step["tokens"], step["choice"]["level"]) == (2, 512, "none")
    assert 0 < step["mfu"] < 1
    assert math.isfinite(step["loss"][0])
    assert {"attention", "matmul", "norm, RoPE, SwiGLU", "cross-entropy", "optimizer", "idle"} <= set(step["profile"])
    told = capsys.readouterr().out
    assert "step longtail_32k: 2 layers, recompute none, torch-flash-cpu, uncompiled" in told
    assert step["taken_bytes"] >= step["peak_bytes"] > 0
    assert "GiB of the device taken" in told
    assert told.splitlines()[-1].startswith(
        f"speed: MFU {step['mfu']:.1%} on longtail_32k (wanted 50%), attention long"
    )
    assert run(monkeypatch, *arguments) == 0
    assert out.read_text() == first
    assert capsys.readouterr().out == told


def test_without_a_gpu_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert run(monkeypatch) == 2
    assert "--device is cuda; torch finds no CUDA device on this machine" in capsys.readouterr().err
    assert run(monkeypatch, "--device", "cpu") == 2
    assert "--device is cpu, which takes --tiny" in capsys.readouterr().err
    assert run(monkeypatch, "--parts", "speed") == 2
    assert "--parts has 'speed'; it takes attention, ring, step, deep" in capsys.readouterr().err


def test_layers_that_do_not_fit_after_all_are_one_fewer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    session = speed.Session(speed.TINY, "h200_4x8", speed.open_ledger("cpu", tmp_path / "out", {}))
    tried = []

    def train(part: str, workloads: Any, layers: int, levels: Any, kernel: Any) -> None:
        tried.append(layers)
        if layers == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB\nmore")

    monkeypatch.setattr(speed.Session, "_train", lambda self, *arguments: train(*arguments))
    session.steps("step", ["longtail_32k"], LEVELS, None)
    session.steps("step", ["longtail_32k"], LEVELS, None)  # what is known not to fit is not tried again
    assert tried == [2, 1, 1]
    assert session.ledger.found["step with 2 layers"]["out_of_memory"] == "CUDA out of memory. Tried to allocate 2 GiB"


def test_rivals_are_compared_by_what_they_give(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(FlashCPU):
        def forward(self, *arguments: Any) -> Any:
            o, lse = FlashCPU.forward(self, *arguments)
            return o * 1.1, lse

    class WrongBack(FlashCPU):
        def backward(self, *arguments: Any) -> Any:
            dq, dk, dv = FlashCPU.backward(self, *arguments)
            return dq, dk * self.factor, dv

        factor = 1.2

    class NotFinite(WrongBack):
        factor = math.nan

    class Refusing(FlashCPU):
        def forward(self, *arguments: Any) -> Any:
            raise RuntimeError("no such shape\nand more")

    offered = {"matmul": None, "refusing": Refusing(), "wrong": Wrong(), "right": FlashCPU()}
    offered = {"nan": NotFinite(), "wrong backward": WrongBack(), **offered}
    monkeypatch.setattr(kernels, "offered_kernels", lambda *arguments: offered)
    monkeypatch.setattr(kernels, "REPEATS", 1)
    found = on_batch(SUBJECT, [9, 4, 9])
    assert list(found) == ["right", "wrong", "refusing", "wrong backward", "nan"]
    assert found["wrong backward"]["difference"] == pytest.approx(0.2)
    assert found["nan"] == {"refused": "its results are not finite"}  # JSON has no such numbers
    assert found["right"]["difference"] == 0
    assert found["wrong"]["difference"] == pytest.approx(0.135, abs=1e-3)  # such an o makes dq and dk wrong, too
    assert found["refusing"] == {"refused": "no such shape"}
    forward, backward = found["right"]["seconds"]
    pairs = (45 + 10 + 45) * 4 * 8
    assert found["right"]["flops"] == pytest.approx((4 * pairs / forward, 10 * pairs / backward))
    told = speed_table([{"case": "attention x", "kernels": found, "sequences": 3, "longest": 9}])
    assert "100.0% of the best" in told.splitlines()[1]
    assert "WRONG by 0.13" in told
    assert "refused: no such shape" in told


def test_the_last_line_says_what_was_wanted_and_what_came_out() -> None:
    assert speed_table([]) == "speed: nothing was measured"
    batches = {"longtail_32k": (1.0, 2.0), "fixed_32k": (2.0, 1.0)}  # seconds of a kernel of ours, and of torch's own

    def made(seconds: float, difference: float = 0.0) -> dict[str, Any]:
        return {"seconds": [seconds / 2] * 2, "flops": [1e12] * 2, "difference": difference}

    lines: list[dict[str, Any]] = [
        {
            "case": f"attention {name}",
            "sequences": 1,
            "longest": 1,
            "kernels": {"ours": made(ours), SDPA: made(other), "wrong": made(0.1, 0.5)},
        }
        for name, (ours, other) in batches.items()
    ]
    ring = {"case": "ring step, ours", "chunk": 64, "share": 0.87, "shares": [0.8, 0.9]}
    assert speed_table([*lines, ring]).splitlines()[-1] == (
        "speed: attention fixed_32k 50.0% of the best kernel (wanted 90%), "
        "ring step 87.0% of a causal call (wanted 85%)"
    )


def test_torchs_own_attention_by_length_is_in_the_order_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN's backend runs on GPUs alone; what is around it is the same with another one."""
    monkeypatch.setattr(SDPBackend, "CUDNN_ATTENTION", SDPBackend.MATH, raising=False)
    lengths = [5, 9, 5, 2]
    tensors = SUBJECT.draw(sum(lengths), sum(lengths))
    forward, backward, results = kernels.sdpa_calls(tensors, lengths)
    kernel = FlashCPU()
    cuts = kernel.cut(np.array(lengths), np.zeros(4, np.int64), np.ones(4, bool))
    torch.testing.assert_close(results, kernels.kernel_calls(kernel, tensors, cuts)[2])
    assert len(forward()) == len(backward()) == 3  # one call a length


def test_a_rings_step_is_of_the_same_area(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = iter([2.0, 4.0, 2.5, 5.0, 2.2, 4.4])  # causal call; step; kernel alone: forward and backward
    monkeypatch.setattr(KernelSubject, "seconds", lambda self, call, repeats=1: (call(), next(spent))[1])
    found = ring_step(SUBJECT, FlashCPU(), 20)
    assert found["causal_tokens"] == 27  # 27 * 28 / 2 = 378 pairs, 28 tokens would have 406 of 400
    area = 400 / 378
    assert found["shares"] == pytest.approx((area * 2 / 2.5, area * 4 / 5))
    assert found["share"] == pytest.approx(area * 6 / 7.5)


def test_a_broken_context_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")

    started: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(speed.os, "execv", lambda *arguments: started.append(arguments))
    monkeypatch.setattr("sys.argv", ["speed", "--out", "x"])
    speed.restart_if_broken()
    assert not started
    monkeypatch.setattr(torch.cuda, "synchronize", broken)
    speed.restart_if_broken()
    assert started[0][1][1:] == ["-m", "zbench.speed", "--out", "x"]
