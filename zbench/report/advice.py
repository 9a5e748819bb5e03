"""Answers of `zbench advise --json` as the page shows them: sentences, and tables of what was played. Pure."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zbench.advise.told import FORMAT, answer_lines
from zbench.record.kinds import ADVICE, HEAD
from zbench.record.shown import plain

COLUMNS = (
    "played",
    "simulated tokens/s (95 %)",
    "speed-up (95 %)",
    "over worlds",
    "of the bound",
    "communication not hidden",
    "busiest GPU over the mean",
    "NICs in use",
    "chosen before the run",
)


def is_advice(path: str) -> bool:
    """Returns whether a file begins as an answer does; what cannot be read is none."""
    try:
        with Path(path).open("rb") as stream:
            return ADVICE.fits(stream.read(HEAD))
    except OSError:
        return False


def advice_told(path: str) -> dict[str, Any]:
    """Returns an answer as the page has it: title, columns, rows and lines, all text.

    Raises:
        ValueError: the file is no whole answer, or of another format than FORMAT.
    """
    try:
        found = plain(json.loads(Path(path).read_bytes()))
    except OSError as error:
        raise ValueError(f"advice file {path!r} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"advice file {path!r} is no whole JSON: {error}") from error
    if found["format"] != FORMAT:
        raise ValueError(f"advice file {path!r} has the format {found['format']!r}; this zbench reads {FORMAT!r}")
    try:
        asked = found["question"]
        options = found["deploy"]["options"] if found["deploy"] else []
        return {
            "title": f"{asked['model']} on {asked['cluster']}, {asked['lengths']}, framework {asked['framework']}",
            "columns": COLUMNS,
            "rows": [_row(one, found["baseline"]) for one in [*found["systems"], *options]],
            "lines": [line.strip() for line in answer_lines(found)],
        }
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        missing = isinstance(error, KeyError)
        wrong = f"it has no {error}" if missing else f"one of its values is of another type than it has to be ({error})"
        raise ValueError(f"advice file {path!r} is no whole answer of zbench advise --json: {wrong}") from error


def _row(one: Mapping[str, Any], baseline: str | None) -> list[str]:
    name, chosen = str(one["name"]), str(one["chosen"])
    if one["problem"]:
        return [name, str(one["problem"]), *[""] * (len(COLUMNS) - 3), chosen]
    gain, least = one["speedup"], one["speedup_least"]
    ends = _ends(one["tokens_per_second_low"], one["tokens_per_second_high"], "{:,.0f}")
    return [
        name,
        f"{one['tokens_per_second']:,.0f}{ends}",
        "" if gain is None or name == baseline else f"{gain:.2f}{_ends(one['speedup_low'], one['speedup_high'])}",
        "" if least is None or name == baseline else f"{least:.2f} to {one['speedup_greatest']:.2f}",
        f"{one['bound_ratio']:.0%}",
        f"{one['exposed_communication']:.0%}",
        f"{one['imbalance']:.2f}",
        f"{one['nic_utilization']:.0%}",
        chosen,
    ]


def _ends(low: float | None, high: float | None, form: str = "{:.2f}") -> str:
    return "" if low is None or high is None else f" ({form.format(low)} to {form.format(high)})"
