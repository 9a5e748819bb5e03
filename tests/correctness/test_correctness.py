"""python -m zbench.correctness on the CPU: what a GPU session runs, with short lengths, and that mistakes are found."""

import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from zbench.correctness import __main__, kernels, plans
from zbench.correctness.kernels import LIMITS, RING, Problem, errors, problems, reference
from zbench.correctness.ledger import Ledger
from zbench.correctness.plans import PRECISIONS
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.plans.plan import Plan
from zbench.run.choices import choices
from zbench.runtime.driver import Diverged
from zbench.runtime.kernels.cpu import FlashCPU
from zbench.runtime.kernels.kernels import Matmul, Triple
from zbench.runtime.processes.fleet import RankFailed

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Wrong(Matmul):
    """A kernel with a mistake of its own."""

    mistake: str = ""

    def cut(self, queries, before, diagonal, left=None):  # type: ignore[no-untyped-def]
        if self.mistake == "mask":  # aligned to the upper left
            return Matmul.cut(self, queries, 0 * before, diagonal)
        return Matmul.cut(self, queries, before, diagonal)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, cuts: object) -> tuple[Tensor, Tensor]:
        o, lse = Matmul.forward(self, q, k, v, cuts)  # type: ignore[arg-type]
        return o, lse * 1.4427 if self.mistake == "log2" else lse

    def backward(self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, cuts: object) -> Triple:
        dq, dk, dv = Matmul.backward(self, do, q, k, v, o, lse, cuts)  # type: ignore[arg-type]
        return dq, dk, dv * float("nan") if self.mistake == "nan" else dv


def test_problems_are_of_every_kind() -> None:
    found = list(problems())
    assert {one.head_dim for one in found} == {64, 128}
    assert {one.dtype for one in found} == set(LIMITS)
    assert any(one.heads[0] > one.heads[1] for one in found)
    assert all(count % 2 for count in RING)
    assert len({one.name for one in found}) == len(found)


@pytest.mark.parametrize("layout", [*kernels.LAYOUTS, "ring"])
def test_shrunk_layouts_keep_their_kinds(layout: str) -> None:
    whole, small = (Problem(torch.float32, 64, (4, 4), layout, by).segments() for by in (1, 16))
    assert ((small[1] > 0) == (whole[1] > 0)).all()
    assert (small[2] == whole[2]).all()
    assert small[0].sum() < whole[0].sum() / 10


@pytest.mark.parametrize("kernel", [Matmul(), FlashCPU()], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("layout", [*kernels.LAYOUTS, "ring"])
def test_kernels_are_within_their_limits(kernel: Matmul | FlashCPU, layout: str) -> None:
    for dtype, limit in LIMITS.items():
        problem = Problem(dtype, 64, (8, 2), layout, 16)
        found = errors(problem, kernel, CPU, reference(problem))
        assert max(found.norm.values()) < limit
        assert min(found.largest.values()) > 0  # nothing was compared with itself


@pytest.mark.parametrize(
    ("mistake", "layout", "seen"), [("mask", "continued", "o"), ("log2", "whole", "lse"), ("nan", "ring", "dv")]
)
def test_mistakes_are_seen(mistake: str, layout: str, seen: str) -> None:
    problem = Problem(torch.bfloat16, 64, (4, 4), layout, 16)
    found = errors(problem, Wrong(mistake=mistake), CPU, reference(problem))
    assert not found.norm[seen] <= LIMITS[torch.bfloat16]


def test_a_ledger_goes_on_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lines.jsonl"
    first = Ledger(path, {"device": "a"})
    first.add("one", False, loss=1.0)
    first.add("two", True)
    with path.open("a") as file:
        file.write('{"case": "torn')
    again = Ledger(path, {"device": "a"})
    assert (again.has("one"), again.has("two"), again.has("three")) == (True, False, False)
    again.add("three", False)
    assert Ledger(path, {"device": "a"}).has("three")
    assert not Ledger(path, {"device": "b"}).has("one")


# -- the command ------------------------------------------------------------------------------------
def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setattr(sys, "argv", ["zbench.correctness", *arguments])
    return __main__.main()


class Ranks:
    """Stands for zbench.runtime.step_executor.Torch (real ranks are tests/project/test_gpu_session.py's); the first to
    start die."""

    starts, dies, off = 0, False, 0.0

    def __init__(self, cost: Cost, *given: object, **settings: object) -> None:
        self.cost, self.check = cost, ()

    def start(self) -> SimpleNamespace:
        type(self).starts += 1
        return SimpleNamespace(about={"ranks": [{"sharing": 4}]})

    def stop(self) -> None: ...

    def step(self, batch: Batch, plans: Sequence[Plan]) -> SimpleNamespace:
        if self.dies and self.starts == 1:
            raise RankFailed("rank 2 was killed by signal 9")
        if math.isnan(self.off):
            raise Diverged("the loss is nan in step 0; the run stops")
        is_half = self.cost.model.element_bytes == 2
        return SimpleNamespace(loss=5.0 + is_half * self.off, checks={} if is_half else {"float32": 1e-6, "bytes": 9.0})


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> type[Ranks]:
    made = type("Made", (Ranks,), {})
    monkeypatch.setattr(plans, "Torch", made)
    monkeypatch.setattr(plans, "EXECUTORS", {**plans.EXECUTORS, "torch": made})
    return made


def test_what_was_found_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ranks: type[Ranks]
) -> None:
    out = tmp_path / "found.jsonl"
    asked = ["--device", "cpu", "--parts", "plans", "--systems", "ring,zeppelin", "--out", str(out)]
    num = 2 * len(PRECISIONS)
    assert call(monkeypatch, *asked) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"{num} of {num} cases are within their limits")
    assert ranks.starts == len(PRECISIONS)  # the CPU's reference is the CPU's own step
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [line["case"] for line in lines].count("plans by torch on cpu, float32, ring") == 1
    assert all(line["ranks"] == [{"sharing": 4}] for line in lines)
    assert [line["worst"] for line in lines if "float32, ring" in line["case"]] == [1e-6]
    assert call(monkeypatch, *asked) == 0
    assert ranks.starts == len(PRECISIONS)
    assert len(out.read_text().splitlines()) == num


@pytest.mark.parametrize(("off", "code"), [(0.04, 0), (0.06, 1), (float("nan"), 1)])
def test_losses_are_compared_with_the_cpus(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ranks: type[Ranks],
    off: float,
    code: int,
) -> None:
    ranks.off = off
    out = str(tmp_path / "found.jsonl")
    assert call(monkeypatch, "--device", "cpu", "--parts", "plans", "--systems", "ring", "--out", out) == code
    told = capsys.readouterr().out
    assert ("outside of its limit: plans by torch on cpu, bfloat16, ring" in told) == bool(code)
    assert ("bfloat16, ring: the loss is nan" in told) == math.isnan(off)


def test_what_fails_is_told_and_what_is_missing_is_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ranks: type[Ranks]
) -> None:
    """Ranks that die take nobody else's step with them."""
    ranks.dies = True
    monkeypatch.setattr("zbench.run.choices.find_spec", lambda name: None)
    asked = ["--device", "cpu", "--parts", "plans", "--systems", "ring,zeppelin,ulysses_deepspeed"]
    asked += ["--precisions", "float32", "--out", str(tmp_path / "found")]
    assert call(monkeypatch, *asked) == 1
    out = capsys.readouterr().out
    assert "outside of its limit: plans by torch on cpu, float32, ring: rank 2 was killed by signal 9\n" in out
    missing = "deepspeed, of the extra 'peers', is not installed"
    assert out.endswith(f"1 of 2 cases are within their limits, 1 skipped ({missing})\n")
    assert ranks.starts == 2
    assert call(monkeypatch, *asked) == 0
    assert ranks.starts == 3  # for what failed


def test_whole_steps_do_not_run_what_a_package_computes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], ranks: type[Ranks]
) -> None:
    """The executor of attention's plans does, and has its own lines in the file."""
    monkeypatch.setattr("zbench.run.choices.find_spec", lambda name: name)
    asked = ["--device", "cpu", "--parts", "plans", "--systems", "ring,ulysses_deepspeed"]
    asked += ["--precisions", "float32", "--out", str(tmp_path / "found")]
    assert call(monkeypatch, *asked) == 0
    told = "deepspeed computes the attention of ulysses_deepspeed, which --executor torch_attention runs"
    assert capsys.readouterr().out.endswith(f"1 of 1 cases are within their limits, 1 skipped ({told})\n")
    monkeypatch.setattr(plans, "EXECUTORS", {**plans.EXECUTORS, "torch_attention": type("Other", (Ranks,), {})})
    assert call(monkeypatch, *asked, "--executor", "torch_attention") == 0
    assert capsys.readouterr().out.endswith(": 2 of 2 cases are within their limits\n")
    assert "plans by torch_attention on cpu, float32, ulysses_deepspeed" in (tmp_path / "found").read_text()


def test_kernels_that_cannot_run_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Broken(FlashCPU):
        def forward(self, *arguments: object) -> tuple[Tensor, Tensor]:
            raise RuntimeError("no kernel image is available\nand more")

    few: Sequence[Problem] = [Problem(torch.float32, 64, (4, 4), "whole", 16)]
    monkeypatch.setattr(kernels, "problems", lambda shrink: few)
    monkeypatch.setattr(
        "zbench.runtime.kernels.kernels.offered_kernels", lambda *given: {"matmul": Matmul(), "broken": Broken()}
    )
    assert call(monkeypatch, "--device", "cpu", "--parts", "kernels", "--out", str(tmp_path / "found")) == 1
    out = capsys.readouterr().out
    assert "kernel broken, float32, dim 64, heads 4/4, whole, lengths / 1: no kernel image is available\n" in out
    monkeypatch.setattr("zbench.runtime.kernels.kernels.offered_kernels", lambda *given: {"matmul": Matmul()})
    assert call(monkeypatch, "--device", "cpu", "--parts", "kernels", "--out", str(tmp_path / "found")) == 1
    assert "no kernel but matmul is offered" in capsys.readouterr().out


def test_what_nobody_has_seen_right_comes_after_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may break the GPU's context, and with it all that comes after."""
    is_broken = False

    class Sound(FlashCPU):
        def forward(self, *arguments: Any) -> tuple[Tensor, Tensor]:
            if is_broken:
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return FlashCPU.forward(self, *arguments)

    class Breaking(Sound):
        def backward(self, *arguments: Any) -> Triple:
            nonlocal is_broken
            is_broken = True
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    few: Sequence[Problem] = [Problem(torch.float32, 64, (4, 4), layout, 16) for layout in ("whole", "mixed")]
    monkeypatch.setattr(kernels, "problems", lambda shrink: few)
    made = {"matmul": Matmul(), "cudnn": Breaking(), "sound": Sound()}
    monkeypatch.setattr("zbench.runtime.kernels.kernels.offered_kernels", lambda *given: made)
    assert call(monkeypatch, "--device", "cpu", "--parts", "kernels", "--out", str(tmp_path / "found")) == 1
    heard = capsys.readouterr()
    assert heard.out.splitlines()[-1].endswith("4 of 6 cases are within their limits")
    assert [line.split()[2] for line in heard.err.splitlines()] == [*["matmul,", "sound,"] * 2, "cudnn,", "cudnn,"]
    assert "mixed, lengths / 1: off by " in heard.err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--device", "cuda"), "--device is cuda; torch finds no CUDA device on this machine"),
        (("--parts", "all"), "--parts has 'all'; it takes kernels, plans"),
        (("--systems", "rings"), f"--systems has 'rings'; it takes {choices('system')[0]}"),
        (
            ("--executor", "desk"),
            "argument --executor: invalid choice: 'desk' (choose from 'torch', 'torch_attention')",
        ),
        (("--shrink", "0"), "--shrink is 0; it takes a whole number of at least 1"),
    ],
)
def test_mistakes_are_told_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], told: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert call(monkeypatch, *arguments) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"zbench: {told}")
    assert err.count("\n") == 1
