"""Nothing is destroyed by a slip: what commands refuse to write over, and how they write what they may."""

import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.record.test_record import start_line, step_line, write
from zbench.record import kinds
from zbench.record.kinds import PAGE, RECORD, TRACE, VERDICTS, FileKind
from zbench.record.outputs import check_apart, check_output, whole_file

CONTENTS = {
    "record": b'{"kind":"start","run":"r1"}\n',
    "trace": b'{"displayTimeUnit": "ms", "otherData": {"simulated": true, "cluster": "c"}, "traceEvents": [\n]}\n',
    "page": b"<!doctype html>\n<html><title>zbench report</title></html>",
    "verdicts": b'{"case": "kernel", "failed": false}\n',
    "sheet": b"# Measured by zbench.calibrate on 2026-01-01; each constant says of what.\n",
    "points": b'{"rows": 1, "backward": false, "seconds": 1.0, "predicted": null, "error": null}\n',
    "picture": b"\x89PNG\r\n\x1a\n",
    "thesis": b"all of it",
    "json": b'{"kind": "other"}',
    "pretty": b'{\n  "kind": "step",\n  "run": "r1"\n}\n',
    "brace": b"{",
    "log": b'{"kind":"step","service":"my app log"}\n',
    "kubernetes": b'{"kind": "Deployment", "metadata": {\n"name": "x"}}\n',
    "torn_and_theirs": b'{"kind":"start","run":"r1\nall of it\n',
    "list": b"[1, 2]\n",
    "binary": bytes(range(256)),
    "yaml": b"# mine\n_target_: zbench.systems.ring.Ring\n",
}
KINDS = {
    "record": RECORD,
    "trace": TRACE,
    "page": PAGE,
    "verdicts": VERDICTS,
    "sheet": kinds.SHEET,
    "points": kinds.POINTS,
    "picture": kinds.PICTURE,
}


def _known_by(path: Path) -> tuple[int, int, float]:
    found = path.lstat()
    return found.st_ino, found.st_mode, found.st_mtime


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


@pytest.mark.parametrize("content", CONTENTS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_is_replaced_by_its_own_kind_only(kind: str, content: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(CONTENTS[content])
    if kind == content:
        check_output("out", path, KINDS[kind])
    else:
        for appended in (False, True):
            with pytest.raises(ValueError, match=rf"^out is '{path}'; that file is not {KINDS[kind].name}, so "):
                check_output("out", path, KINDS[kind], appended)
    assert path.read_bytes() == CONTENTS[content]


def test_empty_and_new_files_are_of_any_kind(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for kind in KINDS.values():
        check_output("out", tmp_path / "empty", kind)
        check_output("out", tmp_path / "new", kind)
    assert names(tmp_path) == ["empty"]


def test_a_record_is_one_wherever_it_was_torn(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    write(path, start_line(), step_line())
    text = path.read_bytes()
    for cut in range(2, len(text)):
        for torn in (text[:cut], text[:cut] + b"\n" + text, text[:cut].replace(b'":"', b'": "').replace(b',"', b', "')):
            path.write_bytes(torn)
            check_output("out", path, RECORD, appended=True)
    path.write_bytes(b'\n{"run": "r1", "kind": "step"}\n')  # as another program may lay it out
    check_output("out", path, RECORD, appended=True)


def pipe(path: Path) -> None:
    os.mkfifo(path)


def plug(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def link_to(target: str) -> Callable[[Path], None]:
    return lambda path: path.symlink_to(target)


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (pipe, "a pipe, and it takes a file"),
        (plug, "a socket, and it takes a file"),
        (Path.mkdir, "a folder, and it takes a file"),
        (link_to("/dev/full"), "a device, and it takes a file"),
        (link_to("/dev/null"), "a device, and it takes a file"),
        (link_to("."), "a folder, and it takes a file"),
        (link_to("file"), "cannot be written: Too many levels of symbolic links"),
        (link_to("missing/new"), "does not exist"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_only_regular_files_are_written(make: Callable[[Path], None], what: str, tmp_path: Path) -> None:
    make(tmp_path / "file")
    before = _known_by(tmp_path / "file")
    for kind in (RECORD, TRACE):
        with pytest.raises(ValueError, match=what):
            check_output("out", tmp_path / "file", kind, appended=kind is RECORD)
        with pytest.raises(ValueError, match=what):
            whole_file("out", tmp_path / "file", kind).__enter__()
    assert _known_by(tmp_path / "file") == before
    assert names(tmp_path) == ["file"]


@pytest.mark.parametrize("name", ["missing/r.jsonl", "file/r.jsonl", "x" * 300, "a\0b"])
def test_names_that_no_file_can_have_are_one_sentence(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"^out is "):
        check_output("out", tmp_path / name, RECORD)


def test_a_read_only_folder_or_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the kernel says, as it lets root write anywhere."""
    (tmp_path / "r.jsonl").touch()
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)
        with pytest.raises(ValueError, match=r"trace is '.*'; its folder .* is read-only"):
            check_output("trace", tmp_path / "new", TRACE)
        with pytest.raises(ValueError, match=r"its folder .* is read-only"):
            check_output("trace", tmp_path / "r.jsonl", TRACE)  # a new file takes its place
        check_output("out", tmp_path / "r.jsonl", RECORD, appended=True)

    def refuse(*arguments: object) -> int:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ValueError, match=r"out is '.*'; it cannot be written: Read-only file system"):
        check_output("out", tmp_path / "r.jsonl", RECORD, appended=True)


# -- roles ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("other", ["r", "./r", "sub/../r", "symlink", "chain", "hard"])
@pytest.mark.parametrize("there", [True, False])
def test_a_file_has_one_role_in_a_command(
    other: str, there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("sub").mkdir()
    if there:
        Path("r").write_bytes(CONTENTS["record"])
        Path("hard").hardlink_to("r")
    Path("symlink").symlink_to("r")
    Path("chain").symlink_to("symlink")
    if other == "hard" and not there:
        check_apart({"out": "r", "trace": other})
        return
    with pytest.raises(ValueError, match=f"^trace is '{other}', the same file as out; each takes one of its own$"):
        check_apart({"out": "r", "trace": other, "none": None})
    with pytest.raises(ValueError, match=f"^--out is '{other}'; the command reads that file, so it is not replaced$"):
        check_apart({"--out": other}, ["s", "r"])
    check_apart({"out": "r", "trace": "t"}, ["s", "s"])


# -- whole files ----------------------------------------------------------------------------------
def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for text in (CONTENTS["trace"], CONTENTS["trace"] + b"\n"):
        with whole_file("trace", path, TRACE) as stream:
            stream.write(text)
            assert not path.exists() or path.read_bytes() != text
        assert path.read_bytes() == text
    assert names(tmp_path) == ["trace.json"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError("mine"), OSError(28, "No space left on device")])
def test_what_fails_leaves_the_file_as_it_was(error: BaseException, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(CONTENTS["trace"])

    def fail() -> None:
        with whole_file("trace", path, TRACE) as stream:
            stream.write(b"half")
            raise error

    with pytest.raises((KeyboardInterrupt, ValueError)) as told:
        fail()
    if isinstance(error, OSError):
        assert str(told.value) == f"trace is '{path}'; it cannot be written: No space left on device"
    assert path.read_bytes() == CONTENTS["trace"]
    assert names(tmp_path) == ["trace.json"]


def test_a_link_stays_a_link_and_a_mode_stays(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    real, link = tmp_path / "deep" / "page.html", tmp_path / "page.html"
    link.symlink_to(real)
    for mode in (None, 0o640):
        if mode:
            real.chmod(mode)
        with whole_file("--out", link, PAGE) as stream:
            stream.write(CONTENTS["page"])
        assert link.is_symlink()
        assert real.read_bytes() == CONTENTS["page"]
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    assert names(tmp_path / "deep") == ["page.html"]


def test_a_new_file_has_the_mode_that_any_other_has(tmp_path: Path) -> None:
    (tmp_path / "any").touch()
    with whole_file("--out", tmp_path / ("n" * 250), PAGE) as stream:
        stream.write(CONTENTS["page"])
    assert (tmp_path / ("n" * 250)).stat().st_mode == (tmp_path / "any").stat().st_mode


def test_every_kind_says_what_it_is() -> None:
    for name, kind in vars(kinds).items():
        if isinstance(kind, FileKind):
            assert kind.name.split()[0] in ("a", "an"), name
            assert not kind.fits(b"all of it")
