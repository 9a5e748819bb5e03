"""python -m zbench.correctness --device cuda --out results/gpu/correctness.jsonl: checks that this device computes
right.

Kernels against float64, then every system's plans run by four ranks, as whole steps (executor=torch), against the dense
model and the CPU's losses; --executor torch_attention has them run by the executor of attention's plans. What the file
holds already, of the same sources, device and torch, is not computed again.
Exit codes: 0; 1 something is outside of its limit; 2 bad input, such as no CUDA device; 130 stopped by Ctrl-C.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zbench.console.command import Parser, known_words
from zbench.console.extras import need
from zbench.correctness.ledger import Finding, Ledger
from zbench.correctness.plans import EXECUTORS, PRECISIONS, REFERENCE, Precision, outcomes
from zbench.correctness.summary import print_summary
from zbench.describe.checks import check_whole_number
from zbench.record.fingerprint import source_digest
from zbench.run.choices import choices
from zbench.runtime.job.job import DEVICES

if TYPE_CHECKING:
    from zbench.correctness.kernels import Problem
    from zbench.runtime.kernels.kernels import Kernel

PARTS = ("kernels", "plans")
UNSEEN = "cudnn"  # a kernel that "auto" does not take


def main(arguments: Sequence[str]) -> int:
    """Checks this device as the arguments say and prints a table; returns the exit code."""
    parser = Parser(prog="python -m zbench.correctness", description="Kernels and plans against references.")
    parser.add_argument("--device", choices=DEVICES, default="auto", help="auto: a GPU if there is one (default)")
    parser.add_argument("--out", type=Path, default=Path("results/correctness.jsonl"), help="verdicts, as JSON lines")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default both)")
    parser.add_argument("--systems", default=",".join(choices("system")), help="whose plans run (default all)")
    every = [precision.name for precision in PRECISIONS]
    parser.add_argument("--precisions", default=",".join(every), help="that plans run in (default all)")
    executors = tuple(EXECUTORS)
    parser.add_argument("--executor", choices=executors, default=executors[0], help="that runs plans (default torch)")
    parser.add_argument("--shrink", type=int, default=1, help="divide the kernels' lengths by this, for a quick look")
    asked = parser.parse_args(arguments)
    need("torch", "python -m zbench.correctness")
    parts = known_words("--parts", asked.parts, PARTS)
    names = known_words("--systems", asked.systems, choices("system"))
    wanted = known_words("--precisions", asked.precisions, every)
    check_whole_number("--shrink", asked.shrink, 1)
    kind, name, version = _device(asked.device)
    circumstances = {"sources": source_digest(), "torch": version}
    ledger = Ledger(asked.out, {**circumstances, "device": name})
    found: list[Finding] = []
    if "kernels" in parts:
        found += _kernels(ledger, kind, asked.shrink)
    if "plans" in parts:
        on_cpu = ledger if kind == "cpu" else Ledger(asked.out, {**circumstances, "device": _device("cpu")[1]})
        precisions = [precision for precision in PRECISIONS if precision.name in wanted]
        found += _plans(Steps(ledger, kind, asked.executor), Steps(on_cpu, "cpu", asked.executor), names, precisions)
    return print_summary(found, name)


def _device(asked: str) -> tuple[str, str, str]:
    """Returns three facts about the device: (cpu or cuda, its name, torch's version).

    Raises:
        ValueError: cuda was asked for, and there is none.
    """
    import torch

    from zbench.runtime.processes.host import cpu_name

    if asked == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device is cuda; torch finds no CUDA device on this machine")
    cuda = asked != "cpu" and torch.cuda.is_available()
    return ("cuda", torch.cuda.get_device_name(), torch.__version__) if cuda else ("cpu", cpu_name(), torch.__version__)


def _kernels(ledger: Ledger, device: str, shrink: int) -> list[Finding]:
    import torch

    from zbench.correctness.kernels import problems, reference
    from zbench.runtime.kernels.kernels import offered_kernels

    verdicts, flash = [], False
    tried = [(one, offered_kernels(torch.device(device), one.head_dim, one.dtype)) for one in problems(shrink)]
    # What nobody has seen right on a GPU comes last: it may leave a context in which nothing works any more.
    for unseen, (problem, kernels) in product((False, True), tried):
        names = [name for name in kernels if (name == UNSEEN) == unseen]
        flash |= len(kernels) > 1
        case = {name: f"kernel {name}, {problem.name}, lengths / {shrink}" for name in names}
        if new := [name for name in names if not ledger.has(case[name])]:
            wanted = reference(problem)
            for name in new:
                found = _errors(problem, kernels[name], torch.device(device), wanted)
                one = ledger.add(case[name], not found["ok"], group=f"{name}, {problem.dtype_name}", **found)
                _tell(f"{case[name]}: {_told(one)}")
        verdicts += [ledger.found[case[name]] for name in names]
    told = "flash attention: no kernel but matmul is offered here, so nothing that a run would use was tried"
    return verdicts if flash else [*verdicts, {"case": told, "group": "flash attention", "ok": False, "limit": 0.0}]


def _errors(problem: "Problem", kernel: "Kernel", device: Any, wanted: Any) -> dict[str, Any]:
    """Gives the numbers that the file gets of one kernel; they are None where there is none, or NaN."""
    from zbench.correctness.kernels import LIMITS, errors

    limit = LIMITS[problem.dtype]
    try:
        found = errors(problem, kernel, device, wanted)
    except RuntimeError as error:  # CUDA's own, and those of a package built for another GPU
        return {"ok": False, "limit": limit, "worst": None, "largest": None, "message": str(error).partition("\n")[0]}
    ok = all(value <= limit for value in found.norm.values())  # which NaN is not
    return {"ok": ok, "limit": limit, "worst": _most(found.norm), "largest": _most(found.largest), "message": ""}


def _told(one: Finding) -> str:
    if one["worst"] is None:
        return one["message"] or "a result is not finite"
    return f"off by {one['worst']:.1e} (largest element {one['largest']:.1e}), limit {one['limit']:g}"


def _most(values: Mapping[str, float]) -> float | None:
    return max(values.values()) if all(map(math.isfinite, values.values())) else None


@dataclass(frozen=True)
class Steps:
    """Steps on a device, cpu or cuda, by an executor of zbench.correctness.plans.EXECUTORS, and the file of what was
    found of them."""

    ledger: Ledger
    device: str
    executor: str

    def found(self, precision: Precision, names: Sequence[str]) -> dict[str, Finding]:
        """Finds one step of each system, in the file or by taking it anew."""
        plans = f"plans by {self.executor}"
        case = {name: f"{plans} on {self.device}, {precision.name}, {name}" for name in names}
        new = [name for name in names if not self.ledger.has(case[name])]
        for name, one in outcomes(new, precision, self.device, self.executor):
            self.ledger.add(
                case[name],
                one.loss is None and not one.skipped,
                group=f"{plans}, {precision.name}",
                loss=one.loss,
                worst=one.worst,
                message=one.message,
                skipped=one.skipped,
                ranks=one.about,
            )
            _tell(f"{case[name]}: {one.message or f'loss {one.loss:.9g}'}")
        return {name: self.ledger.found[case[name]] for name in names}


def _plans(steps: Steps, on_cpu: Steps, names: Sequence[str], precisions: Sequence[Precision]) -> list[Finding]:
    reference = on_cpu.found(REFERENCE, names)
    verdicts = []
    for precision in precisions:
        is_reference = steps.device == "cpu" and precision == REFERENCE
        found = reference if is_reference else steps.found(precision, names)
        verdicts += [_verdict(found[name], reference[name]["loss"], precision) for name in names]
    return verdicts


def _verdict(step: Finding, reference: float | None, precision: Precision) -> Finding:
    """Judges a step's loss by the CPU's; ok is None where there is nothing to judge."""
    if step["skipped"]:
        return {**step, "ok": None}
    if step["loss"] is None or reference is None:
        return {**step, "ok": False, "off": None, "limit": precision.loss}
    off = abs(step["loss"] - reference) / abs(reference)
    return {**step, "ok": off <= precision.loss, "off": off, "limit": precision.loss}


def _tell(line: str) -> None:
    print(f"correctness: {line}", file=sys.stderr, flush=True)
