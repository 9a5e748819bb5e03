"""Tables of runs as Markdown: systems down, workloads across, one table for each of whatever else differs. Pure."""

from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from zbench.describe.units import in_gib, with_noun
from zbench.describe.worlds import NOMINAL
from zbench.record.iterations import STAGES
from zbench.record.metrics import PURPOSES
from zbench.record.words import PARTS, simulated_words, told_settings, typed

Row = Mapping[str, Any]

# Figures a cell can hold: title, how its value is written.
FIGURES: dict[str, tuple[str, Callable[[float], str]]] = {
    "speedup": ("speed-up over the baseline", "{:.2f}".format),
    "mfu": ("MFU", "{:.1%}".format),
    "bound_ratio": ("bound ratio (fastest possible / this)", "{:.2f}".format),
    "ceiling_ratio": ("ceiling ratio (fastest possible with these gathers and reductions / this)", "{:.2f}".format),
    "plan_seconds": ("planning time", lambda value: f"{value * 1e3:.1f} ms"),
    "step_seconds": ("step", "{:.4g} s".format),
    "tokens_per_second": ("tokens/s", "{:,.0f}".format),
    "loss": ("loss of the last step", "{:.4f}".format),
    "nic_utilization": ("NIC utilisation", "{:.1%}".format),
    **{
        f"nic_{purpose}": (f"share of NICs' rate that {purpose.replace('_', ' ')} takes", "{:.1%}".format)
        for purpose in PURPOSES
    },
    **{f"time_{name}": (f"share of the step that goes to {words}", "{:.1%}".format) for name, words in PARTS.items()},
    "nic_idle": ("share of time in which NICs are idle", "{:.1%}".format),
    "invalid_steps": ("steps that do not count", "{:.0f}".format),
    "exposed_communication": ("share of communication not hidden", "{:.1%}".format),
    "imbalance": ("compute of the busiest rank over the mean", "{:.2f}".format),
    "bubble": ("share of time in which other stages keep a GPU waiting", "{:.1%}".format),
    "micro_batches": ("micro-batches a step", "{:.3g}".format),
    **{f"{name}_seconds": (f"{name}, a stage of an iteration by itself", "{:.4g} s".format) for name in STAGES},
    "prefill_seconds": ("generation's prompts, read by a layout of their own", "{:.4g} s".format),
    "decode_seconds": ("generation's words, by the other layout", "{:.4g} s".format),
    "layout_change_seconds": ("changes between both, an iteration", "{:.3g} s".format),
    "layout_changes": ("changes of generation's layout, mean of the iterations", "{:.3g}".format),
    "generation_imbalance": ("generation of the slowest replica over the mean", "{:.2f}".format),
    "peak_bytes": ("memory of the fullest GPU", lambda value: f"{in_gib(value)} GiB"),
    "dropped_choices": ("choices of experts that were dropped", "{:.1%}".format),
    "padded_rows": ("experts' rows that are padding", "{:.1%}".format),
    "host_bytes": ("host memory of the fullest node", lambda value: f"{in_gib(value)} GiB"),
    "store_bytes": (
        "tensors and logits of a step on CPUs, of the fullest process",
        lambda value: f"{value / 1e6:,.4g} MB",
    ),
    "exchange_slices": ("slices of exchanges, mean of the steps", "{:.3g}".format),
    "forward_chunks": ("chunks in which tokens go to experts, forward, mean of the steps", "{:.3g}".format),
    "backward_chunks": ("chunks in which tokens go to experts, backward, mean of the steps", "{:.3g}".format),
    "recomputed_layers": ("layers recomputed, mean of the steps", "{:.3g}".format),
}
ATTENTION_ALONE = ("torch_attention", "desk_attention")  # executors that send, and count, messages of attention alone
TIME = "time"  # all parts of a step's seconds, which sum to it
_OTHERS = ("cluster", "model", "executor", "world", "planners", "mask", "tokens_per_gpu", "free", "seed", "baseline")
_APART = ("steps_asked", "sources")  # told only where runs differ: then each has a table of its own


def check_figures(names: Sequence[str]) -> None:
    """Raises ValueError where one of `names` is no figure, and not TIME."""
    known = (*FIGURES, TIME)
    for name in names:
        if name not in known:
            close = get_close_matches(name, known, n=1)
            hint = f" (did you mean {close[0]}?)" if close else ""
            raise ValueError(f"--pivot is {name!r}; it takes figures separated by commas, of {', '.join(known)}{hint}")


def figures_of(found: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Returns the figures that names stand for: TIME for each part of a step's seconds that some run has.

    Raises:
        ValueError: no run has an account of its seconds.
    """
    parts = [name for part in PARTS if any(row[name := f"time_{part}"] for row in found)]
    if TIME in names and not parts:
        raise ValueError(
            f"--pivot is {TIME}; none of these runs has an account of its steps' seconds, which whole steps and steps "
            "that are measured have"
        )
    return [figure for name in names for figure in (parts if name == TIME else [name])]


def pivot(found: Sequence[Row], names: Sequence[str]) -> str:
    """Writes tables of the figures `names`, in the order of the rows; of several runs of a kind the last one counts.
    Runs of other settings or sources are in tables of their own. Of other worlds than the nominal one, where that is
    there, only the range of speed-ups is shown, beside the interval over batches.

    names: of FIGURES, or TIME.

    A run without figures shows its verdict: out of memory (in how many steps), or how it ended, with what it
    said below the table. A dash: there is no such run, or it lacks the figure.
    """
    worlds = list(dict.fromkeys(str(row["world"]) for row in found))
    if NOMINAL in worlds:
        found = [row for row in found if row["world"] == NOMINAL]
    names = figures_of(found, names)
    common = told_settings(found[0], [key for key in _OTHERS if len({str(row[key]) for row in found}) == 1])
    differing = [key for key in (*_OTHERS, *_APART) if len({str(row[key]) for row in found}) > 1]
    tables: dict[str, list[Row]] = {}
    for row in found:
        title = ", ".join(f"{key.removesuffix('_asked')} {typed(row[key])}" for key in differing)
        tables.setdefault(title, []).append(row)
    *fewer, most = sorted({row["steps_asked"] for row in found})
    steps = " or ".join([*map(str, fewer), with_noun(most, "step")])
    head = [", ".join([*(f"{key} {typed(found[0][key])}" for key in common), steps]) + "."]
    head.append(f"Cells: {', '.join(FIGURES[name][0] for name in names)}.")
    if any(simulated := [row["simulated"] for row in found]):
        which = "" if all(simulated) else f"Runs of executor {simulated_words(found)} are "
        head.append(f"{which}SIMULATED: nothing was measured on hardware.")
    if not all(row["synchronous"] for row in found):
        head.append("Runs in rounds (sync) are not synchronous: tokens/s of theirs compare at equal loss alone.")
    if told := _uncounted(found, names):
        head.append(told)
    if "speedup" in names and any(row["speedup_told"] is False for row in found):
        head.append("A speed-up with ?: too few steps to tell.")
    if "speedup" in names and any(row["speedup_least"] is not None for row in found):
        head.append(f"In brackets: (95 % interval over batches) [least - greatest over worlds {', '.join(worlds)}].")
    parts = [" ".join(head)]
    for title, members in tables.items():
        parts += [f"**{title}**"] if title else []
        parts += _table(members, names)
    return "\n\n".join(parts)


def _uncounted(found: Sequence[Row], names: Sequence[str]) -> str:
    """Returns why some of these runs do not tell what NICs send for, which `names` ask; "" where all do."""
    purposes = [f"nic_{purpose}" for purpose in PURPOSES]
    names_of = (str(row["executor"]) for row in found)
    executors = dict.fromkeys(name for name in names_of if name.split()[0] in ATTENTION_ALONE)
    if not executors or not set(names) & set(purposes):
        return ""
    return (
        f"A dash of executor {' and '.join(executors)}: what NICs send for is not told apart, as messages of "
        "parameters' and gradients' collectives are gloo's or NCCL's own; executor=torch and desk send, and count, "
        "all of them."
    )


def _table(members: Sequence[Row], names: Sequence[str]) -> list[str]:
    """Returns the table, and a list of what failed, if anything did."""
    last = {(str(row["system"]), str(row["workload"])): row for row in members}
    systems, workloads = (list(dict.fromkeys(key[axis] for key in last)) for axis in (0, 1))
    lines = ["| | " + " | ".join(workloads) + " |", "|---" * (len(workloads) + 1) + "|"]
    for system in systems:
        cells = [_cell(last.get((system, workload)), names) for workload in workloads]
        lines.append(f"| {system} | " + " | ".join(cells) + " |")
    failed = [f"- {' on '.join(key)}: {row['message']}" for key, row in last.items() if row["message"]]
    return ["\n".join(lines), *(["\n".join(failed)] if failed else [])]


def _cell(row: Row | None, names: Sequence[str]) -> str:
    if row is None:
        return "-"
    if row["status"] != "finished":
        return str(row["status"])
    if row["verdict"]:
        return f"out of memory in {row['steps_out_of_memory']} of {row['steps']}"
    return ", ".join("-" if row[name] is None else FIGURES[name][1](row[name]) + _beside(row, name) for name in names)


def _beside(row: Row, name: str) -> str:
    """Returns what stands behind a speed-up: a doubt; where there are other worlds, its interval and its range."""
    if name != "speedup":
        return ""
    doubt = " ?" if row["speedup_told"] is False else ""
    if row["speedup_least"] is None:
        return doubt
    interval = "" if row["speedup_low"] is None else f" ({row['speedup_low']:.2f} - {row['speedup_high']:.2f})"
    return f"{doubt}{interval} [{row['speedup_least']:.2f} - {row['speedup_greatest']:.2f}]"
