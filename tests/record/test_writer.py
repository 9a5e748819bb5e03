"""Records survive full disks, and writers at the same time."""

import errno
import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest

from tests.record.test_record import start_line, step_line, write
from zbench.record.record import read
from zbench.record.writer import RecordError, RecordWriter


def test_numpy_numbers_become_plain_ones_and_nan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write(path, start_line(), step_line(seconds=np.float64(0.5), peak_bytes=np.array([1, 2])))
    assert read(str(path))[0][0].steps[0]["peak_bytes"] == [1, 2]
    writer = RecordWriter.open(str(path))
    with pytest.raises(ValueError, match="not JSON compliant"):
        writer.append(step_line(seconds=float("nan")))
    with pytest.raises(TypeError, match="set does not belong in a record"):
        writer.append(step_line(extra={1}))
    writer.close()
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize("room", [0, 1, 40])
def test_a_full_disk_leaves_the_record_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    path = tmp_path / "r.jsonl"
    write(path, start_line())
    before = path.read_bytes()
    real, left = os.write, room

    def full(descriptor: int, data: bytes) -> int:
        nonlocal left
        if left == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = real(descriptor, data[:left])
        left -= taken
        return taken

    writer = RecordWriter.open(str(path))
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(RecordError, match=r"cannot be written: No space left on device; the steps already"):
            writer.append(step_line())
    assert path.read_bytes() == before
    writer.append(step_line())
    assert len(read(str(path))[0][0].steps) == 1
    writer.close()


def test_a_short_write_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, real = tmp_path / "r.jsonl", os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:100]))
        write(path, start_line(), step_line())
    assert len(read(str(path))[0][0].steps) == 1


def test_a_real_limit_on_the_file(tmp_path: Path) -> None:
    """A process whose files may not grow past a size: the kernel writes a part, then refuses."""
    path = tmp_path / "r.jsonl"
    process = multiprocessing.get_context("fork").Process(target=_write_limited, args=(path,))
    process.start()
    process.join()
    runs, problems = read(str(path))
    assert process.exitcode == 0
    assert problems == []
    assert 0 < len(runs[0].steps) < 100
    assert path.read_bytes().endswith(b"}\n")


def _write_limited(path: Path) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000))
    with pytest.raises(RecordError, match="File too large"):
        write(path, start_line(), *(step_line(number=number) for number in range(100)))


def test_writers_at_the_same_time(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write_many, args=(path, f"r{number}")) for number in range(4)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    runs, problems = read(str(path))
    assert problems == []
    assert sorted(run.start["run"] for run in runs) == ["r0", "r1", "r2", "r3"]
    assert all([line["step"] for line in run.steps] == list(range(50)) for run in runs)


def _write_many(path: Path, run: str) -> None:
    wide = [0.125] * 2000
    write(path, start_line(run), *(step_line(run, number, peak_bytes=wide) for number in range(50)))


def test_what_is_no_record_is_never_opened(tmp_path: Path) -> None:
    for path in (Path("/dev/full"), Path(os.devnull), tmp_path):
        with pytest.raises(ValueError, match="and it takes a file"):
            RecordWriter.open(str(path))
    (tmp_path / "thesis.txt").write_text("all of it")
    with pytest.raises(ValueError, match=r"that file is not a record of runs, so nothing is added to it"):
        RecordWriter.open(str(tmp_path / "thesis.txt"))
    assert (tmp_path / "thesis.txt").read_text() == "all of it"
