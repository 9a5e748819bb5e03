"""A trace's file: written whole or not at all, told of in a record, found again by what it holds. Pure: no torch."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from zbench.cluster import Cluster
from zbench.record import Line

Event = dict[str, Any]  # as Chrome's trace format has it


def write_events(path: str | Path, simulated: bool, cluster: Cluster, events: Iterable[Event]) -> int:
    """Writes a trace file whole or not at all; returns the number of events.

    Raises:
        ValueError: the file cannot be written.
    """
    path = Path(path)
    part = path.with_name(path.name + ".part")
    written = 0
    try:
        with part.open("w") as file:
            other = {"simulated": simulated, "cluster": cluster.name}
            file.write(f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(other)}, "traceEvents": [\n')
            for event in events:
                file.write((",\n" if written else "") + json.dumps(event, separators=(",", ":")))
                written += 1
            file.write("\n]}\n")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise ValueError(f"trace is {str(path)!r}; it cannot be written there: {error.strerror}") from error
    return written


def told(path: str) -> Line:
    """What a step's line of a record has of its trace: the file, and what tells it from another."""
    return {"file": path, "digest": _digest(Path(path))}


def recorded(trace: Line, folder: Path) -> list[Event]:
    """Events of a trace that a record tells of, from where it was written, or from `folder` (the record's).

    Raises:
        ValueError: it is in neither place, or is another than that of the record.
    """
    name = Path(trace["file"])
    places = [path for path in (name, folder / name.name) if path.is_file()]
    if not places:
        raise ValueError(f"its trace {trace['file']} is not there")
    whole = [path for path in places if _digest(path) == trace["digest"]]
    if not whole:
        raise ValueError(f"the trace {places[0]} is another than the one that the record tells of")
    events: list[Event] = json.loads(whole[0].read_text())["traceEvents"]
    return events


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()[:16]
