"""A plan file on disk: JSON of one format, written at once or not at all. Pure.

docs/plan_file.md says what is in it, for readers in other languages.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from zbench import __version__
from zbench.planned.plan_values import check_plan_keys, shown

FORMAT = "zbench-plan/1"
KEYS = ("format", "written_by", "system", "cluster", "model", "lengths", "plans")
LATER_KEYS = ("strategy",)  # only where they say something, as files of before lack them


def write(path: str | os.PathLike[str], values: Mapping[str, Any]) -> None:
    """Writes a plan file: the file that `path` names has all of it, or is as it was before.

    values: of all KEYS but the first two, and of LATER_KEYS those that say something.

    Raises:
        ValueError: a value is no JSON, or the folder or the file cannot be written.
    """
    named = _path(path)
    try:
        whole = {"format": FORMAT, "written_by": f"zbench {__version__}", **values}
        text = json.dumps(whole, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the plan file {str(path)!r} cannot be written: {error}") from error
    other = ""
    try:
        if named.is_dir() or (named.exists() and not named.is_file()):
            raise ValueError(f"the plan file is {str(path)!r}, which is no file; it takes the name of one")
        target = named.resolve()  # a link stays one
        handle, other = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:40]}.")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
            stream.write("\n")
            stream.flush()
            os.fsync(stream.fileno())
        Path(other).chmod(target.stat().st_mode & 0o777 if target.exists() else 0o666 & ~_umask())
        Path(other).replace(target)
        other = ""
    except (OSError, RuntimeError) as error:
        told = error.strerror if isinstance(error, OSError) else error
        raise ValueError(f"the plan file is {str(path)!r}; it cannot be written: {told}") from error
    finally:
        if other:
            with suppress(OSError):
                Path(other).unlink()


def read_plan_file(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Reads a plan file; returns its values by KEYS, of which only the format has been checked.

    Raises:
        ValueError: there is no such file, or it is none of this format; the message says why.
    """
    name, named = str(path), _path(path)
    try:
        text = named.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(f"the plan file is {name!r}; it cannot be read: {error.strerror}") from error
    except ValueError as error:  # no UTF-8, or a name with a null
        raise ValueError(f"the plan file is {name!r}, which is no text (UTF-8): {error}") from error
    try:
        found = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        ended = isinstance(error, json.JSONDecodeError) and error.pos >= len(text.rstrip())
        cut = "it ends in the middle, as a file does that was not copied whole" if ended else f"{error}"
        raise ValueError(f"the plan file is {name!r}, which is no whole JSON: {cut}; zbench plan makes one") from error
    told = found.get("format") if isinstance(found, Mapping) else None
    if not isinstance(told, str) or not told.startswith("zbench-plan/"):
        raise ValueError(f"the plan file is {name!r}, which is no plan of zbench; its format has to be {FORMAT!r}")
    if told != FORMAT:
        raise ValueError(f"the plan file {name!r} has the format {shown(told)}; this zbench reads {FORMAT!r}")
    check_plan_keys(found, KEYS, f"the plan file {name!r}", LATER_KEYS)
    if not isinstance(found["plans"], list) or not found["plans"]:
        raise ValueError(f"plans of the plan file {name!r} is {shown(found['plans'])}; it has to be a list of plans")
    return dict(found)


def _path(given: object) -> Path:
    if not isinstance(given, str | os.PathLike):
        raise ValueError(f"the plan file is {given!r:.60}; it takes the path of one")
    return Path(given)


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


def _umask() -> int:
    """Returns what new files are not allowed, which can only be asked by setting it."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
