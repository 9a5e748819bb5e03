"""What processes print is shown line by line, under their name."""

import os

from zbench.runtime.words import LAST_LINES, Words


def test_lines_are_shown_whole_and_the_last_are_kept(capsys) -> None:
    end, writer = os.pipe()
    words = Words("rank 3", end)
    assert not words.read(show=True)  # nothing has come
    os.write(writer, b"one\ntw")
    assert words.read(show=True)
    assert capsys.readouterr().err == "rank 3: one\n"
    os.write(writer, "o ÿ\n".encode() + b"\xff\n\n")
    assert words.read(show=True)
    assert capsys.readouterr().err == "rank 3: two ÿ\nrank 3: \ufffd\nrank 3: \n"
    assert list(words.last) == ["one", "two ÿ", "\ufffd"]
    os.write(writer, b"rest")
    os.close(writer)
    words.close(show=True)
    assert capsys.readouterr().err == "rank 3: rest\n"
    assert words.last[-1] == "rest"


def test_what_is_not_shown_is_kept(capsys) -> None:
    end, writer = os.pipe()
    words = Words("rank 3", end)
    os.write(writer, b"".join(b"%d\n" % line for line in range(LAST_LINES + 5)))
    assert words.read(show=False)
    words.close(show=False)  # the other end is still open: that must not block
    os.close(writer)
    assert capsys.readouterr().err == ""
    assert list(words.last) == [str(line) for line in range(5, LAST_LINES + 5)]
