"""Sends whole messages over a stream socket: blocking for a rank, which does one thing at a time, or not for a driver.

A message is its length (8 bytes) and its bytes. Torch-free.
"""

import socket
import struct
from collections import deque

_LENGTH = struct.Struct("<Q")
_READ_BYTES = 1 << 20


def send(connection: socket.socket, message: bytes) -> None:
    """Blocks until `message` is on its way.

    Raises:
        OSError: the other end is gone.
    """
    connection.sendall(_LENGTH.pack(len(message)))
    connection.sendall(message)


def receive(connection: socket.socket) -> bytearray:
    """Blocks until a message has come, and returns it.

    Raises:
        EOFError: the other end is gone.
        TimeoutError: the socket has a timeout, and it is over.
    """
    (length,) = _LENGTH.unpack(exactly(connection, _LENGTH.size))
    return exactly(connection, length)


def exactly(connection: socket.socket, size: int) -> bytearray:
    """Reads `size` bytes; raises as `receive`."""
    data = bytearray(size)
    view, done = memoryview(data), 0
    while done < size:
        try:
            came = connection.recv_into(view[done:])
        except ConnectionError as error:
            raise EOFError from error
        if came == 0:
            raise EOFError
        done += came
    return data


class Wire:
    """A wire, one end of a socket that never blocks: messages to send are queued, those that came are handed out.

    The queue may be filled by several threads and served by one.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._out: deque[memoryview] = deque()
        self._in = bytearray()

    @property
    def is_sending(self) -> bool:
        """Whether messages wait to be sent."""
        return bool(self._out)

    def put(self, *parts: bytes) -> None:
        """Queues one message, made of `parts`."""
        message = [memoryview(_LENGTH.pack(sum(map(len, parts)))), *(memoryview(part) for part in parts if part)]
        self._out.extend(message)  # at once, so that messages of two threads do not mix

    def flush(self) -> None:
        """Sends as much as the socket takes now. A closed other end is noticed by `take`, not here."""
        while self._out:
            part = self._out[0]
            try:
                sent = self.connection.send(part)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                self._out.clear()
                return
            if sent == len(part):
                self._out.popleft()
            else:
                self._out[0] = part[sent:]

    def take(self) -> tuple[list[bytes], bool]:
        """Returns the whole messages that have come, and whether the other end is still there."""
        is_open = True
        while True:
            try:
                data = self.connection.recv(_READ_BYTES)
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                data = b""
            if not data:
                is_open = False
                break
            self._in += data
        return self._split(), is_open

    def _split(self) -> list[bytes]:
        messages, begin = [], 0
        while len(self._in) - begin >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._in, begin)
            end = begin + _LENGTH.size + length
            if len(self._in) < end:
                break
            messages.append(bytes(memoryview(self._in)[begin + _LENGTH.size : end]))
            begin = end
        del self._in[:begin]
        return messages

    def close(self) -> None:
        """Closes this end."""
        self.connection.close()

    def abandon(self) -> None:
        """Leaves this end open until the process ends, and never touches it again."""
        self.connection.detach()
