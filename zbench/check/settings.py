"""Reads settings of zbench check's words, KEY=VALUE each."""

from collections.abc import Sequence

from zbench.console.sentence import no_key


def split_settings(words: Sequence[str], keys: Sequence[str], of: str) -> dict[str, str]:
    """Returns the settings among the words, KEY=VALUE each.

    Raises:
        ValueError: one is of no such key, or is given twice.
    """
    given: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            continue
        if key not in keys:
            raise ValueError(no_key(key, f"a setting of {of}", keys))
        if key in given:
            raise ValueError(f"{key} is given twice, as {given[key]!r} and as {value!r}")
        given[key] = value
    return given


def whole_number(key: str, value: str, most: int) -> int:
    """Returns the number that a setting has, of at least 1.

    Raises:
        ValueError: it is none, or out of bounds.
    """
    if not (value.isascii() and value.isdigit()) or not 1 <= int(value[:20]) <= most:
        raise ValueError(f"{key} is {value!r}; it takes a whole number from 1 to {most}")
    return int(value)
