"""A trace's file: told of in a record, found again, and read as data whoever wrote either."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest

from zbench.trace.file import read_events, recorded, trace_reference, write_events

EVENTS = [{"ph": "X", "name": "attend", "pid": 0, "tid": 0, "ts": 0, "dur": 1}]


@pytest.fixture
def trace(uneven: Any, tmp_path: Path) -> Path:
    assert write_events(tmp_path / "t.json", True, uneven.cluster, EVENTS) == 1
    return tmp_path / "t.json"


def test_what_is_written_is_found_beside_the_record_as_well(trace: Path, tmp_path: Path) -> None:
    line = trace_reference(str(trace))
    assert recorded(line, tmp_path) == EVENTS
    (tmp_path / "moved").mkdir()
    trace.rename(tmp_path / "moved" / "t.json")
    assert recorded(line, tmp_path / "moved") == EVENTS
    with pytest.raises(ValueError, match="is not there"):
        recorded(line, tmp_path)


def test_another_file_than_the_record_s_is_refused(trace: Path, tmp_path: Path) -> None:
    line = trace_reference(str(trace))
    trace.write_text(trace.read_text() + " ")
    with pytest.raises(ValueError, match="is another than the one that the record tells of"):
        recorded(line, tmp_path)


@pytest.mark.parametrize("file", ["/dev/zero", "/proc/kmsg", "/dev/stdin", "pipe", ".", "empty", "a\0b", "x" * 5000])
def test_what_does_not_end_is_not_read(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("empty").touch()
    with pytest.raises(ValueError, match=r"is not there|it takes a file and its digest"):
        recorded({"file": file, "digest": "0" * 16}, tmp_path)
    if "\0" not in file:
        with pytest.raises(ValueError, match="cannot be read; it is no trace of zbench's"):
            read_events(Path(file))


@pytest.mark.parametrize(
    "line",
    [None, 7, "t.json", [], {}, {"file": "t.json"}, {"file": 1, "digest": "0"}, {"file": "t.json", "digest": ["0"]}],
)
def test_a_line_that_names_no_trace_is_one_sentence(line: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="it takes a file and its digest"):
        recorded(line, tmp_path)


@pytest.mark.parametrize("text", ["", "{}", "[]", "[" * 100_000, '{"traceEvents": 7}', '{"traceEvents": [7]}', "\xff"])
def test_a_file_that_is_no_trace_is_one_sentence(text: str, tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text(text, encoding="latin-1")
    digest = hashlib.sha256((tmp_path / "t.json").read_bytes()).hexdigest()[:16]
    with pytest.raises(ValueError, match=r"cannot be read; |is not there"):
        recorded({"file": "t.json", "digest": digest}, tmp_path)


def test_a_trace_is_written_over_a_trace_only(trace: Path, uneven: Any, tmp_path: Path) -> None:
    write_events(trace, False, uneven.cluster, EVENTS)
    assert json.loads(trace.read_text())["otherData"]["simulated"] is False
    (tmp_path / "r.jsonl").write_text('{"kind":"start"}')
    with pytest.raises(ValueError, match="that file is not a trace of zbench's, so it is not replaced"):
        write_events(tmp_path / "r.jsonl", False, uneven.cluster, EVENTS)
    assert (tmp_path / "r.jsonl").read_text() == '{"kind":"start"}'
