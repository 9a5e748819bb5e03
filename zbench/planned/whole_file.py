"""Text files that are written at once or not at all, and read with one sentence about what is wrong. Pure."""

import os
import tempfile
from contextlib import suppress
from pathlib import Path

_PATH = str | os.PathLike[str]


def write_whole(path: _PATH, text: str, called: str) -> None:
    """Writes a text file: the file that `path` names has all of it, or is as it was before.

    called: what a sentence calls the file, as in "plan file".

    Raises:
        ValueError: the folder or the file cannot be written.
    """
    named = path_of(path, called)
    other = ""
    try:
        if named.is_dir() or (named.exists() and not named.is_file()):
            raise ValueError(f"the {called} is {str(path)!r}, which is no file; it takes the name of one")
        target = named.resolve()  # a link stays one
        handle, other = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:40]}.")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        Path(other).chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
        Path(other).replace(target)
        other = ""
    except (OSError, RuntimeError) as error:
        told = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"the {called} is {str(path)!r}; it cannot be written: {told}") from error
    finally:
        if other:
            with suppress(OSError):
                Path(other).unlink()


def read_text(path: _PATH, called: str) -> str:
    """Returns the text of a file. called: as `write_whole` has it.

    Raises:
        ValueError: there is no such file, or it is no text.
    """
    try:
        return path_of(path, called).read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"the {called} is {str(path)!r}; it cannot be read: {error.strerror}") from error
    except UnicodeError as error:
        raise ValueError(f"the {called} is {str(path)!r}, which is no text (UTF-8): {error}") from error


def path_of(given: object, called: str) -> Path:
    """Returns a path that is given.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(given, str | os.PathLike) or "\0" in str(given):
        raise ValueError(f"the {called} is {given!r:.60}; it takes the path of one")
    return Path(given)


def _umask() -> int:
    """Returns what new files are not allowed, which can only be asked by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
