"""Rank 0 hears only who knows the secret."""

import json
import socket
import threading
from typing import Any

from zbench.runtime.processes.meet import HELLO_BYTES, call, gather_ranks
from zbench.runtime.processes.world import ProcessPlace


class Store:
    """Keeps one value; calls `then` with it."""

    def __init__(self, then: Any) -> None:
        self._then = then

    def set(self, key: str, value: str) -> None:
        assert key == "1"
        self._then(json.loads(value))


def world(rank: int, num_local: int | None) -> ProcessPlace:
    return ProcessPlace(rank, 2, rank, num_local, "127.0.0.1", 1, True, "0", False)


def meet(num_local: int | None) -> None:
    made: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def strangers_then_rank_1(told: dict[str, Any]) -> None:
        for words in (b"x" * HELLO_BYTES, b"", b"\xff" * 3):
            with socket.create_connection((told["hosts"][0], told["port"])) as stranger:
                stranger.sendall(words)
        thread = threading.Thread(target=lambda: made.append(call(world(1, num_local), told)))
        thread.start()
        threads.append(thread)

    found, local_ranks = gather_ranks(world(0, num_local), Store(strangers_then_rank_1), 1, patience=20.0, silence=1.0)
    threads[0].join()
    assert local_ranks == [0, 1]
    with found[1] as ours, made[0] as theirs:
        assert list(found) == [1]
        theirs.sendall(b"hello")
        assert ours.recv(5) == b"hello"


def test_on_one_machine() -> None:
    meet(num_local=2)


def test_on_machines_of_which_little_is_known() -> None:
    meet(num_local=None)
