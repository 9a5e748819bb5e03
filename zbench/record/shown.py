"""A record's text as a terminal and a table may have it. Pure.

Escape sequences move a terminal's cursor, hide text or rename its window; a record's text has no business there.
"""

from typing import Any

MOST_NESTED = 100  # levels of a line; those of our records have seven


def plain(value: Any, level: int = 0) -> Any:
    """Replaces control characters by "?" in all text of a record's line, but not ends of lines and tabs.

    Raises:
        ValueError: it is nested more deeply than any line is.
    """
    if level > MOST_NESTED:
        raise ValueError(f"a line nested more than {MOST_NESTED} levels deep")
    if isinstance(value, str):
        return value if value.isprintable() else "".join(map(_sign, value))
    if isinstance(value, list):
        return [plain(one, level + 1) for one in value]
    if isinstance(value, dict):
        return {plain(key): plain(one, level + 1) for key, one in value.items()}
    return value


def _sign(letter: str) -> str:
    code = ord(letter)
    controls = (code < 32 and letter not in "\n\t") or 127 <= code < 160
    turns = 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069  # the direction of writing
    return "?" if controls or turns else letter
