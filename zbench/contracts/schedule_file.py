"""Schedules as JSON files, for `zbench check schedule` and for schedulers in other languages. Pure.

docs/contracts.md says what is in one.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from zbench.contracts.schedule import ContractError, SampleSchedule, Schedule, TokenPermutation

SCHEDULE_FORMAT = "zbench-schedule/1"
_KEYS = {"format", "lengths", "samples", "micro_batches", "order", "ranks"}


def schedule_values(schedule: Schedule) -> dict[str, Any]:
    """Returns a schedule as values of JSON."""
    if isinstance(schedule, TokenPermutation):
        lengths = list(schedule.lengths)
        return {
            "format": SCHEDULE_FORMAT,
            "lengths": lengths,
            "ranks": schedule.ranks,
            "order": schedule.order.tolist(),
        }
    samples = [[sample, length] for sample, length in schedule.lengths.items()]
    return {"format": SCHEDULE_FORMAT, "samples": samples, "micro_batches": schedule.lists()}


def schedule_of(found: object, ranks: int | None = None) -> Schedule:
    """Returns the schedule that values of JSON stand for. ranks: of a permutation that does not say it.

    Raises:
        ContractError: they stand for none; the message names the key.
    """
    if not isinstance(found, dict):
        raise ContractError(
            f"the schedule is {found!r:.60}; it takes an object with lengths and micro_batches or order"
        )
    told = found.get("format", SCHEDULE_FORMAT)
    if told != SCHEDULE_FORMAT:
        raise ContractError(f"format of the schedule is {told!r:.60}; this zbench reads {SCHEDULE_FORMAT!r}")
    if unknown := sorted(map(str, found.keys() - _KEYS)):
        raise ContractError(f"{unknown[0]} is no key of a schedule; it takes {', '.join(sorted(_KEYS))}")
    if ("lengths" in found) == ("samples" in found):
        raise ContractError("the schedule needs lengths ([tokens, ...]) or samples ([[id, tokens], ...]), one of them")
    if ("micro_batches" in found) == ("order" in found):
        raise ContractError("the schedule needs micro_batches ([micro-batch][rank] -> ids) or order, one of them")
    samples = found["lengths"] if "lengths" in found else found["samples"]
    if "micro_batches" in found:
        return SampleSchedule.of(samples, found["micro_batches"])
    return _permutation(found, samples, found.get("ranks", ranks))


def _permutation(found: dict[str, Any], samples: Any, ranks: object) -> TokenPermutation:
    lengths = tuple(SampleSchedule.of(samples, []).lengths.values())
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise ContractError(f"ranks of the schedule is {ranks!r:.60}; it takes a whole number of at least 1")
    order = found["order"]
    if not isinstance(order, list) or not all(isinstance(one, int) and abs(one) < 2**63 for one in order):
        raise ContractError("order of the schedule is no list of whole numbers, the positions of the pack's tokens")
    return TokenPermutation(lengths, ranks, np.array(order, np.int64))


def read_schedule(path: str | os.PathLike[str], ranks: int | None = None) -> Schedule:
    """Reads the schedule of a JSON file. ranks: of a permutation that does not say it.

    Raises:
        ContractError: there is no such file, or no schedule in it.
    """
    name = str(path)
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ContractError(f"the schedule file is {name!r}; it cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ContractError(f"the schedule file is {name!r}, which is no JSON: {error}") from error
    try:
        return schedule_of(found, ranks)
    except ContractError as error:
        raise ContractError(
            f"the schedule file {name!r}: {error}", error.micro_batch, error.rank, error.sample
        ) from error


def write_schedule(schedule: Schedule, path: str | os.PathLike[str]) -> None:
    """Writes a schedule as a JSON file.

    Raises:
        ValueError: the file cannot be written.
    """
    try:
        Path(path).write_text(json.dumps(schedule_values(schedule), separators=(",", ":")) + "\n", encoding="utf-8")
    except OSError as error:
        raise ValueError(f"the schedule file is {str(path)!r}; it cannot be written: {error.strerror}") from error
