"""What processes print is shown line by line, under their name."""

import os
import time

from zbench.runtime.processes.words import LAST_LINES, Words


def test_lines_are_shown_whole_and_the_last_are_kept(capsys) -> None:
    end, writer = os.pipe()
    words = Words("rank 3", end)
    assert not words.take()  # nothing has come
    os.write(writer, b"one\ntw")
    assert words.take()
    words.show()
    assert capsys.readouterr().err == "rank 3: one\n"
    os.write(writer, "o ÿ\n".encode() + b"\xff\n\n")
    assert words.take()
    words.show()
    assert capsys.readouterr().err == "rank 3: two ÿ\nrank 3: \ufffd\nrank 3: \n"
    assert list(words.last) == ["one", "two ÿ", "\ufffd"]
    os.write(writer, b"rest")
    os.close(writer)
    words.close()
    words.show()
    assert capsys.readouterr().err == "rank 3: rest\n"
    assert words.last[-1] == "rest"


def test_only_lines_of_before_are_shown_and_all_are_kept(capsys) -> None:
    end, writer = os.pipe()
    words = Words("rank 3", end)
    os.write(writer, b"before\n")
    assert words.take()
    now = time.monotonic()
    os.write(writer, b"".join(b"%d\n" % line for line in range(LAST_LINES)))
    words.close()  # the other end is still open: that must not block
    os.close(writer)
    words.show(until=now)
    assert capsys.readouterr().err == "rank 3: before\n"
    assert list(words.last) == [str(line) for line in range(LAST_LINES)]
