"""A trace's file: written whole or not at all, told of in a record, found again by what it holds. Pure: no torch."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zbench.describe.cluster import Cluster
from zbench.record.kinds import TRACE
from zbench.record.outputs import whole_file
from zbench.record.record import Line

MOST_EVENTS = 4_000_000  # of a trace that is written: about 600 MB of json, what trace viewers still open
MOST_BYTES = 2 << 30  # of one that is read
Event = dict[str, Any]  # as Chrome's trace format has it


def write_events(path: str | Path, simulated: bool, cluster: Cluster, events: Iterable[Event]) -> int:
    """Writes a trace file whole or not at all; returns the number of events.

    Raises:
        ValueError: the file cannot be written, or is something else than a trace.
    """
    written = 0
    with whole_file("trace", path, TRACE) as file:
        other = {"simulated": simulated, "cluster": cluster.name}
        file.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(other)}, "traceEvents": [\n'.encode())
        for event in events:
            file.write((b",\n" if written else b"") + json.dumps(event, separators=(",", ":")).encode())
            written += 1
        file.write(b"\n]}\n")
    return written


def read_events(path: Path) -> list[Event]:
    """Reads the events of a trace file.

    Raises:
        ValueError: it cannot be read, or is no trace.
    """
    try:
        events = json.loads(path.read_bytes() if _is_data(path) else b"")["traceEvents"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"trace {path} cannot be read; it is no trace of zbench's") from error
    if not isinstance(events, list) or not all(isinstance(event, dict) for event in events):
        raise ValueError(f"trace {path} cannot be read; its traceEvents are no list of events")
    return events


def trace_reference(path: str) -> Line:
    """Returns what a step's line of a record has of its trace: the file, and what tells it from another."""
    return {"file": path, "digest": _digest(Path(path))}


def recorded(trace: Line, folder: Path) -> list[Event]:
    """Reads the events of a trace that a record tells of, from where it was written, or from `folder` (the record's).

    Raises:
        ValueError: it is in neither place, or is another than that of the record.
    """
    file, digest = (trace.get(name) if isinstance(trace, dict) else None for name in ("file", "digest"))
    if not isinstance(file, str) or "\0" in file or not isinstance(digest, str):
        raise ValueError(f"its trace is {trace!r:.100}; it takes a file and its digest")
    name = Path(file)
    places = [path for path in (name, folder / name.name) if _is_data(path)]
    if not places:
        raise ValueError(f"its trace {file} is not there")
    same = [path for path in places if _digest(path) == digest]
    if not same:
        raise ValueError(f"the trace {places[0]} is another than the one that the record tells of")
    return read_events(same[0])


def _is_data(path: Path) -> bool:
    """Returns whether a path, which a record may have made up, is of a file that ends: no device, no pipe, nothing of
    /proc."""
    try:
        return path.is_file() and 0 < path.stat().st_size <= MOST_BYTES
    except OSError:
        return False


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]
