"""The page: data, styles, code and the charts' library in one file of html. Pure: no torch.

A content policy in the page forbids every connection, so that what works here works anywhere.
"""

import json
import re
from importlib.resources import files
from typing import Any

from zbench.console.extras import need

CODE = (
    "base.js",
    "runs.js",
    "charts.js",
    "worlds.js",
    "marks.js",
    "timeline.js",
    "step.js",
    "main.js",
)  # in this order
_POLICY = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


def page(data: dict[str, Any]) -> str:
    """Makes the page, one file that holds all it needs.

    Raises:
        ValueError: plotly, whose script draws the charts, is not installed.
    """
    folder = files("zbench.report") / "page"
    parts = {
        "POLICY": _POLICY,
        "STYLE": (folder / "page.css").read_text(),
        "LIBRARY": _library(),
        "DATA": encoded(data),
        "CODE": "\n".join((folder / name).read_text() for name in CODE),
    }
    whole = (folder / "page.html").read_text()
    return re.sub(r"{{(\w+)}}", lambda found: parts[found[1]], whole)  # once: what is put in is not looked at again


def encoded(data: Any) -> str:
    """Encodes data as JSON that may stand inside a script element and in what plotly draws: no tag can begin in it.

    plotly makes links of tags in text, and a record's text must make none: "<" becomes a sign that looks like it.
    """
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    return text.replace("<", "\u2039").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _library() -> str:
    need("plotly", "a report")
    from plotly.offline import get_plotlyjs

    library: str = get_plotlyjs()
    assert "</script" not in library
    return re.sub(r"""(\bhref\s*=\s*["'])https?://[^"']*""", r"\1#", library)  # its logo's, and maps' attributions
