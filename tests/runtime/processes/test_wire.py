"""Messages over sockets arrive whole and in order, however they are cut on the way."""

import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zbench.runtime.processes.wire import Wire, receive, send

MESSAGES = st.lists(st.lists(st.binary(max_size=20), min_size=1, max_size=3), max_size=6)


@given(MESSAGES, st.integers(1, 30))
def test_whole_messages_come_out_of_any_pieces(messages: list[list[bytes]], piece: int) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket() as unused:
        writer, reader = Wire(unused), Wire(theirs)
        for parts in messages:
            writer.put(*parts)
        stream = b"".join(writer._out)
        came = []
        for begin in range(0, len(stream), piece):
            ours.sendall(stream[begin : begin + piece])
            got, is_open = reader.take()
            assert is_open
            came += got
        assert came == [b"".join(parts) for parts in messages]


def test_a_wire_never_blocks_and_a_full_socket_loses_nothing() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        wire, size = Wire(ours), 1 << 23
        wire.put(b"a", bytes(size))
        wire.put(b"b")
        wire.flush()
        assert wire.is_sending
        came: list[bytearray] = []
        reader = threading.Thread(target=lambda: came.extend(receive(theirs) for _ in range(2)))
        reader.start()
        while wire.is_sending:
            wire.flush()
        reader.join(10)
        assert [len(message) for message in came] == [size + 1, 1]


def test_what_was_sent_before_the_end_still_comes() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        wire = Wire(ours)
        send(theirs, b"last words")
        theirs.sendall(b"\x05")  # the beginning of another
        theirs.close()
        assert wire.take() == ([b"last words"], False)
        wire.put(b"too late")
        wire.flush()
        assert not wire.is_sending


def test_a_blocking_reader_learns_of_the_end() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        send(theirs, b"x")
        theirs.close()
        assert receive(ours) == b"x"
        with pytest.raises(EOFError):
            receive(ours)
