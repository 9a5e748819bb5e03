"""A plan file on disk: JSON of one format, written at once or not at all. Pure.

docs/plan_file.md says what is in it, for readers in other languages.
"""

import json
import os
from collections.abc import Mapping
from typing import Any, NoReturn

from zbench import __version__
from zbench.planned.plan_values import check_plan_keys, shown
from zbench.planned.whole_file import read_text, write_whole

FORMAT = "zbench-plan/1"
KEYS = ("format", "written_by", "system", "cluster", "model", "lengths", "plans")
_CALLED = "plan file"
LATER_KEYS = ("strategy",)  # only where they say something, as files of before lack them


def write(path: str | os.PathLike[str], values: Mapping[str, Any]) -> None:
    """Writes a plan file: the file that `path` names has all of it, or is as it was before.

    values: of all KEYS but the first two, and of LATER_KEYS those that say something.

    Raises:
        ValueError: a value is no JSON, or the folder or the file cannot be written.
    """
    try:
        whole = {"format": FORMAT, "written_by": f"zbench {__version__}", **values}
        text = json.dumps(whole, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the plan file {str(path)!r} cannot be written: {error}") from error
    write_whole(path, f"{text}\n", _CALLED)


def read_plan_file(path: str | os.PathLike[str]) -> Mapping[str, Any]:
    """Reads a plan file; returns its values by KEYS, of which only the format has been checked.

    Raises:
        ValueError: there is no such file, or it is none of this format; the message says why.
    """
    name, text = str(path), read_text(path, _CALLED)
    try:
        found = json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        if text.lstrip().startswith("step of "):
            raise ValueError(
                f"the plan file is {name!r}, which is a whole step's text; zbench step reads, proves and plays one"
            ) from error
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


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")
