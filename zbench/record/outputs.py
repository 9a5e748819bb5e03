"""Files that commands write: checked before any work, and never over something that is not theirs. Pure: no torch.

A file that is there already has to be of the kind that is to be written (zbench.record.kinds), a regular file, and in
no other role of the same command, by whatever name or link. What is written as a whole takes its place at once, when it
is whole; a record is appended to (zbench.record.writer).
"""

import contextlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO

from zbench.record.kinds import HEAD, FileKind

_KINDS = (
    (stat.S_ISDIR, "a folder"),
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)


def check_output(field: str, path: str | Path, kind: FileKind, appended: bool = False) -> None:
    """Refuses a file that must not or cannot be written, before any work and without making it.

    appended: lines are added to it; else it is replaced as a whole.

    Raises:
        ValueError: it is no regular file or none of `kind`, its folder is missing, or writing is not allowed; the
            message names `field`.
    """
    told = f"{field} is {str(path)!r}"
    real, mode = _found(told, path)
    if mode is not None and not stat.S_ISREG(mode):
        name = next((name for test, name in _KINDS if test(mode)), "no regular file")
        raise ValueError(f"{told}; that is {name}, and it takes a file")
    if not real.parent.is_dir():
        raise ValueError(f"{told}; its folder {Path(path).parent} does not exist")
    try:
        if mode is not None:
            with os.fdopen(os.open(real, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK), "rb") as stream:
                check_kind(told, stream.read(HEAD), kind, appended)
    except OSError as error:
        raise ValueError(f"{told}; it cannot be written: {error.strerror}") from error
    if not (mode is not None and appended) and not os.access(real.parent, os.W_OK | os.X_OK):
        raise ValueError(f"{told}; its folder {Path(path).parent} is read-only")


def check_kind(told: str, head: bytes, kind: FileKind, appended: bool) -> None:
    """Refuses a file that begins with `head` and is none of `kind`; an empty one is as good as new.

    Raises:
        ValueError: it is none; the message begins with `told`.
    """
    if head.strip() and not kind.fits(head):
        kept = "nothing is added to it" if appended else "it is not replaced"
        raise ValueError(f"{told}; that file is not {kind.name}, so {kept}")


def check_apart(written: Mapping[str, str | Path | None], read: Iterable[str | Path] = ()) -> None:
    """Refuses a file in two roles of one command, by whatever name or link; reading one twice is fine.

    written: by field; None is no file.

    Raises:
        ValueError: a file is to be written twice, or is read as well; the message names the field.
    """
    files = [(field, path) for field, path in written.items() if path is not None]
    for number, (field, path) in enumerate(files):
        for other, another in files[:number]:
            if _same(path, another):
                raise ValueError(f"{field} is {str(path)!r}, the same file as {other}; each takes one of its own")
        for one in read:
            if _same(path, one):
                raise ValueError(f"{field} is {str(path)!r}; the command reads that file, so it is not replaced")


def check_outside(written: Mapping[str, str | Path | None], folders: Iterable[str | Path | None]) -> None:
    """Refuses a file in a folder that the command reads or replaces as a whole. None is no file, no folder.

    Raises:
        ValueError: one is in such a folder; the message names its field.
    """
    taken = [folder for folder in folders if folder is not None]
    for field, path in written.items():
        for folder in taken if path is not None else ():
            if os.path.realpath(folder) in map(str, Path(os.path.realpath(str(path))).parents):
                raise ValueError(f"{field} is {str(path)!r}, in the checkpoint {folder}; it takes a file elsewhere")


@contextlib.contextmanager
def whole_file(field: str, path: str | Path, kind: FileKind) -> Iterator[IO[bytes]]:
    """Opens a stream to write; it becomes the file `path` when the block ends well. A link stays, and its file is
    replaced.

    Raises:
        ValueError: as check_output, or writing failed; the file is as it was.
    """
    check_output(field, path, kind)
    real = Path(os.path.realpath(path))
    part = real.with_name(f".{real.name[:100]}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as stream:
            yield stream
        if real.exists():
            part.chmod(stat.S_IMODE(real.stat().st_mode))
        part.replace(real)
    except OSError as error:
        raise ValueError(f"{field} is {str(path)!r}; it cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


def _found(told: str, path: str | Path) -> tuple[Path, int | None]:
    """Returns the file that a name leads to through all links, and its mode; None where there is none yet."""
    try:
        real = Path(os.path.realpath(path))
    except ValueError as error:  # a NUL in the name
        raise ValueError(f"{told}; it cannot be written: {error}") from error
    try:
        return real, real.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return real, None
    except OSError as error:
        raise ValueError(f"{told}; it cannot be written: {error.strerror}") from error


def _same(one: str | Path, other: str | Path) -> bool:
    """Returns whether two names are of the same file, or would be once it is made."""
    if os.path.realpath(one) == os.path.realpath(other):
        return True
    try:
        return Path(one).samefile(other)
    except OSError:
        return False
