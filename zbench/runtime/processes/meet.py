"""Lets the processes of a joined fleet find each other: by a store, where rank 0 says where it listens.

The store is torchrun's, else rank 0's own. Who calls has to know a secret that only who reads the store knows.
Imports torch only when used.
"""

import contextlib
import json
import os
import secrets
import socket
import time
from typing import Any

from zbench.runtime.processes.fleet import RankFailed
from zbench.runtime.processes.rendezvous import store_at
from zbench.runtime.processes.wire import exactly
from zbench.runtime.processes.world import ProcessPlace

CALL_SECONDS, HELLO_SECONDS = 10.0, 5.0
HELLO_BYTES = 54  # "secret rank local_rank": 32 hexadecimal digits and twice ten digits
PREFIX, FLEETS, BROKEN, LEFT = "zbench", "fleets", "broken", "left"  # keys in the store; fleet n's is its number
OVER = b"over"


def store_of(world: ProcessPlace, is_server: bool = False) -> Any:
    """Opens the world's store.

    Raises:
        RankFailed: nobody serves it, or it cannot be served here.
    """
    try:
        return store_at(world.address, world.port, f"{PREFIX}/{world.attempt}", is_master=is_server)
    except Exception as error:  # torch has several, most of them RuntimeErrors
        where = f"{world.address}:{world.port} (MASTER_ADDR, MASTER_PORT)"
        verb = "serve the store at" if is_server else "reach the store at"
        raise RankFailed(f"rank {world.rank} cannot {verb} {where}: {str(error).splitlines()[0]}") from error


def use_loopback(world: ProcessPlace) -> None:
    """Sets gloo to the loopback where all ranks are on this machine: it need not ask a resolver for this host's
    address."""
    if world.is_one_machine:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def keep_alive(connection: socket.socket) -> None:
    """Makes a connection send small messages at once, and notice after about half a minute a machine that is gone."""
    for level, option, value in (
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 10),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4),
    ):
        connection.setsockopt(level, option, value)


def gather_ranks(
    world: ProcessPlace, store: Any, number: int, patience: float, silence: float
) -> tuple[dict[int, socket.socket], list[int]]:
    """Says in the store where the driver listens, and waits until all other ranks have come.

    Returns a connection to each other rank, and the local rank of every rank.
    silence: seconds without a word of the driver, while it awaits an answer, after which the others give up.
    """
    secret = secrets.token_hex(16)
    found: dict[int, socket.socket] = {}
    local_ranks = [world.local_rank] * world.num_ranks
    deadline = time.monotonic() + patience
    with _listener(world) as listener:
        port = listener.getsockname()[1]
        told = {"hosts": _hosts(world), "port": port, "secret": secret, "silence": silence}
        store.set(str(number), json.dumps(told))
        while len(found) < world.num_ranks - 1:
            listener.settimeout(max(0.001, deadline - time.monotonic()))
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                for connection in found.values():
                    connection.close()
                missing = [str(rank) for rank in range(1, world.num_ranks) if rank not in found]
                words = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(missing)}"
                raise RankFailed(f"{words} did not join within {patience:g} s") from None
            if (hello := _greet(connection, secret)) is not None:
                rank, local_ranks[hello[0]] = hello
                found[rank] = connection
    return found, local_ranks


def _greet(connection: socket.socket, secret: str) -> tuple[int, int] | None:
    """Greets who calls and returns its rank and local rank; None, and closed, for who does not know the secret."""
    connection.settimeout(HELLO_SECONDS)
    try:
        hello = exactly(connection, HELLO_BYTES).decode(errors="replace")
    except (EOFError, OSError):
        hello = ""
    known, _, ranks = hello.partition(" ")
    if not secrets.compare_digest(known.encode(), secret.encode()):
        connection.close()
        return None
    keep_alive(connection)
    rank, local_rank = map(int, ranks.split())
    return rank, local_rank


def _listener(world: ProcessPlace) -> socket.socket:
    if world.is_one_machine:
        return socket.create_server(("127.0.0.1", 0), backlog=world.num_ranks)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=world.num_ranks)
    return socket.create_server(("", 0), backlog=world.num_ranks)


def _hosts(world: ProcessPlace) -> list[str]:
    """Names of this machine that others may reach it by: the address it reaches the store from, and its host name."""
    if world.is_one_machine:
        return ["127.0.0.1"]
    hosts = [socket.gethostname()]
    for family, kind, protocol, _, address in socket.getaddrinfo(world.address, world.port, type=socket.SOCK_DGRAM):
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing
            hosts.insert(0, probe.getsockname()[0])
    return list(dict.fromkeys(hosts))


def call(world: ProcessPlace, told: dict[str, Any]) -> socket.socket:
    """Connects to rank 0. told: what `gather_ranks` wrote into the store.

    Raises:
        RankFailed: there is no way.
    """
    reasons = []
    for host in told["hosts"]:
        try:
            connection = socket.create_connection((host, told["port"]), timeout=CALL_SECONDS)
        except OSError as error:
            reasons.append(f"{host}: {error.strerror or error}")
            continue
        keep_alive(connection)
        hello = f"{told['secret']} {world.rank:010} {world.local_rank:010}".encode()
        assert len(hello) == HELLO_BYTES
        connection.sendall(hello)
        return connection
    where = f"port {told['port']} of {', '.join(reasons)}"
    raise RankFailed(f"rank {world.rank} cannot reach rank 0 at {where}", world.rank)
