"""A record's text plays no tricks on a terminal."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.record.test_record import end_line, start_line
from zbench.record.record import read
from zbench.record.shown import plain


@given(st.text())
def test_what_is_printed_has_no_controls(text: str) -> None:
    shown = plain(text)
    assert len(shown) == len(text)
    assert all(ord(letter) >= 32 or letter in "\n\t" for letter in shown)
    assert not set(shown) & {"\x1b", "\x7f", "\x9b", "\u202e", "\u2066"}
    if text.isprintable():
        assert shown == text


def test_keys_lists_and_numbers() -> None:
    found = plain({"a\x1b[2J": ["\x07b", {"c": "d\r"}], "n": 1, "f": 0.5, "t": True, "0": None})
    assert found == {"a?[2J": ["?b", {"c": "d?"}], "n": 1, "f": 0.5, "t": True, "0": None}
    assert plain("Prüfung äö 中文\nzwei\tdrei") == "Prüfung äö 中文\nzwei\tdrei"


def test_a_record_is_read_without_them(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    lines = [
        start_line(config={"steps": 2, "choices": {"system": "\x1b]0;mine\x07"}}),
        {**end_line(), "message": "\x1b[2Jgone"},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ((run,), _) = read(str(path))
    assert run.start["config"]["choices"]["system"] == "?]0;mine?"
    assert run.end is not None
    assert run.end["message"] == "?[2Jgone"


def test_a_bottomless_line_is_one_sentence() -> None:
    deep: list[object] = []
    for _ in range(200):
        deep = [deep]
    with pytest.raises(ValueError, match="nested more than 100 levels deep"):
        plain(deep)
