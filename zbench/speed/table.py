"""Shows what zbench.speed measured, as a short table. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from zbench.describe.units import with_noun

Line = Mapping[str, Any]
AGREE = 2e-2  # of two kernels' results in bfloat16, the norm of the difference over the norm
SDPA = (
    "cudnn, a call for all sequences of one length"  # torch's own attention: to compare with, no training step has it
)
MFU, ATTENTION, RING = 0.5, 0.9, 0.85  # wanted: on MAIN, of the best kernel, of one causal call
MAIN = "longtail_32k"


def agreeing(kernels: Mapping[str, Line]) -> list[str]:
    """Returns the names of those kernels that ran, and gave what the first one gave."""
    return [name for name, one in kernels.items() if "seconds" in one and one["difference"] <= AGREE]


def speed_table(lines: Sequence[Line]) -> str:
    """Returns the findings as a table, and a last line that compares them with the goals."""
    parts = [*_attention(lines), *_ring(lines), *_steps(lines), *_short(lines)]
    return "\n".join([*parts, "speed: " + (", ".join(_goals(lines)) or "nothing was measured")])


def _goals(lines: Sequence[Line]) -> list[str]:
    """Returns what is wanted and what came out, as far as it is measured; of attention the batch where it is worst."""
    out = [f"MFU {one['mfu']:.1%} on {MAIN} (wanted {MFU:.0%})" for one in lines if one["case"] == f"step {MAIN}"]
    batches = {one["case"]: share for one in lines if (share := _share(one.get("kernels", {})))}
    if batches:
        worst = min(batches, key=batches.__getitem__)
        out.append(f"{worst} {batches[worst]:.1%} of the best kernel (wanted {ATTENTION:.0%})")
    return out + [
        f"ring step {one['share']:.1%} of a causal call (wanted {RING:.0%})" for one in lines if "share" in one
    ]


def _share(kernels: Mapping[str, Line]) -> float | None:
    """Returns the part of the best kernel's speed that the best of those reaches which training steps can have."""
    seconds = {name: sum(kernels[name]["seconds"]) for name in agreeing(kernels)}
    ours = [spent for name, spent in seconds.items() if name != SDPA]
    return min(seconds.values()) / min(ours) if ours else None


def _attention(lines: Sequence[Line]) -> list[str]:
    out = []
    for line in lines:
        if "kernels" in line:
            kernels = line["kernels"]
            best = min((sum(kernels[name]["seconds"]) for name in agreeing(kernels)), default=0.0)
            out.append(
                f"{line['case']}: {with_noun(line['sequences'], 'sequence')}, the longest of {line['longest']} tokens"
            )
            for name, one in kernels.items():
                if "refused" in one:
                    out.append(f"  {name:44} refused: {one['refused']}")
                    continue
                forward, backward = (flops / 1e12 for flops in one["flops"])
                share = best / sum(one["seconds"])
                wrong = "" if name in agreeing(kernels) else f"  WRONG by {one['difference']:.2g}"
                out.append(f"  {name:44} {forward:7.1f} {backward:7.1f} TFLOP/s  {share:6.1%} of the best{wrong}")
    return out


def _ring(lines: Sequence[Line]) -> list[str]:
    return [
        f"{line['case']}, {line['chunk']} tokens a chunk: {line['share']:.1%} of one causal call of the same area "
        f"(forward {line['shares'][0]:.1%}, backward {line['shares'][1]:.1%})"
        for line in lines
        if "share" in line
    ]


def _steps(lines: Sequence[Line]) -> list[str]:
    out = []
    for line in lines:
        if "mfu" in line:
            seconds, choice = sum(line["seconds"]) / len(line["seconds"]), line["choice"]
            out.append(
                f"{line['case']}: {with_noun(line['layers'], 'layer')}, recompute {choice['level']}, {line['kernel']}, "
                f"{line['elementwise']}: {seconds:.4g} s a step, MFU {line['mfu']:.1%}, "
                f"{line['peak_bytes'] / 2**30:.1f} GiB ({choice['predicted_bytes'] / 2**30:.1f} predicted), "
                f"{line['taken_bytes'] / 2**30:.1f} GiB of the device taken"
            )
            whole = sum(line["profile"].values())
            shares = sorted(line["profile"].items(), key=lambda one: -one[1])
            out.append("  " + ", ".join(f"{name} {spent / whole:.1%}" for name, spent in shares))
    return out


def _short(lines: Sequence[Line]) -> list[str]:
    return [f"{line['case']}: {line['out_of_memory']}" for line in lines if "out_of_memory" in line]
