"""Network namespaces without names: each lives exactly as long as somebody has it open.

Nothing shows in `ip netns`, two desks never clash, and whatever way the processes that have them open end, the
kernel takes namespaces, cables and limits away. To make some takes root, or a user namespace of one's own.
"""

import ctypes
import fcntl
import os
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from zbench.runtime.network.lateness import SCHEDSTAT
from zbench.runtime.network.wiring import Namespace, Wiring

_CLONE_NEWNET = 0x40000000  # linux/sched.h
_SIOCGIFFLAGS = 0x8913  # linux/sockios.h
_IFF_UP, _IFF_RUNNING = 0x1, 0x40  # linux/if.h
TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}


class NoDesk(RuntimeError):
    """Emulated nodes cannot be made here; the message is one sentence saying why."""


class Network:
    """A wiring that is up. close(): takes it down; so does the end of all processes that have it open."""

    def __init__(self, wiring: Wiring) -> None:
        """
        Raises:
            NoDesk: this machine or user cannot have it.
        """
        for tool in ("ip", "tc", "nsenter"):
            _need(tool)
        if not SCHEDSTAT.is_file():
            raise NoDesk(f"emulated nodes need {SCHEDSTAT}, which this kernel lacks (CONFIG_SCHED_INFO makes it)")
        self.wiring = wiring
        self.descriptors: list[int] = []
        try:
            self.descriptors += [new_namespace() for _ in wiring.namespaces]
            for place, namespace in enumerate(wiring.namespaces):
                self._fill(place, namespace)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Takes the network down."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []

    def run(self, place: int, command: Sequence[str], text: str = "") -> "subprocess.CompletedProcess[str]":
        """Runs a command inside a namespace, `text` on its standard input."""
        return run_inside(self.descriptors[place], command, text, self.descriptors)

    def watched(self) -> "Links":
        """Returns all NICs, to be looked at."""
        places = [self.wiring.uplink(nic) for nic in range(self.wiring.num_nodes * self.wiring.nics_per_node)]
        return Links([(self.descriptors[place], name) for place, name in places], self.wiring.nics_per_node)

    def bytes(self, place: int, interface: str) -> tuple[int, int]:
        """Returns the bytes (sent, received) by an interface, from the kernel's counters."""
        listed = self.run(place, ["cat", "/proc/net/dev"]).stdout
        return interface_bytes(listed)[interface]

    def nic_bytes(self) -> list[tuple[int, int]]:
        """Returns the bytes (sent, received) by every NIC."""
        wiring = self.wiring
        listed = [
            interface_bytes(self.run(wiring.node(n), ["cat", "/proc/net/dev"]).stdout) for n in range(wiring.num_nodes)
        ]
        uplinks = [wiring.uplink(nic) for nic in range(wiring.num_nodes * wiring.nics_per_node)]
        return [listed[place - wiring.node(0)][name] for place, name in uplinks]

    def _fill(self, place: int, namespace: Namespace) -> None:
        paths = [f"/proc/self/fd/{descriptor}" for descriptor in self.descriptors]
        ip = "\n".join(line.format(*paths) for line in namespace.ip)
        for tool, lines in (("ip", ip), ("tc", "\n".join(namespace.tc))):
            done = self.run(place, [tool, "-batch", "-"], lines + "\n")
            if done.returncode != 0:
                raise NoDesk(f"{namespace.name} of the desk cannot be set up: {tool} says {_line(done.stderr)!r}")
        with_values = "\n".join(f"{value} > /proc/sys/{path}" for path, value in namespace.sysctl)
        if with_values:
            script = "\n".join(f"echo {line}" for line in with_values.splitlines())
            done = self.run(place, ["sh", "-e", "-s"], script)
            if done.returncode != 0:
                raise NoDesk(f"{namespace.name} of the desk cannot be set up: {_line(done.stderr)!r}")


class Links:
    """A watch over NICs that says whether they are up; asked through a socket in each one's namespace, so by whichever
    thread."""

    def __init__(self, uplinks: Sequence[tuple[int, str]], nics_per_node: int) -> None:
        self._nics_per_node = nics_per_node
        self._sockets = [(_socket_in(descriptor), name) for descriptor, name in uplinks]

    def down(self) -> list[str]:
        """Names in words the NICs that are down."""
        return [
            f"NIC {nic} (of node {nic // self._nics_per_node}) is down"
            for nic, (inside, name) in enumerate(self._sockets)
            if not _is_up(inside, name)
        ]


def _socket_in(descriptor: int) -> socket.socket:
    """Makes a socket that belongs to a namespace, whoever uses it."""

    def inside() -> socket.socket:
        enter(descriptor)
        return socket.socket(socket.AF_INET, socket.SOCK_DGRAM)

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(inside).result()


def _is_up(inside: socket.socket, name: str) -> bool:
    told = fcntl.ioctl(inside, _SIOCGIFFLAGS, struct.pack("16sh14x", name.encode(), 0))
    flags = struct.unpack("16sh14x", told)[1]
    return bool(flags & _IFF_UP and flags & _IFF_RUNNING)


def run_inside(
    descriptor: int, command: Sequence[str], text: str = "", passed: Sequence[int] = ()
) -> "subprocess.CompletedProcess[str]":
    """Runs a command inside a namespace, `text` on its standard input, with the descriptors `passed` open."""
    inside = ["nsenter", f"--net=/proc/self/fd/{descriptor}", *command]
    return subprocess.run(inside, input=text, capture_output=True, text=True, pass_fds={descriptor, *passed})


def new_namespace() -> int:
    """Makes a new network namespace and returns its descriptor.

    Raises:
        NoDesk: not allowed.
    """
    outcome: list[int | OSError] = []

    def inside() -> None:  # of a thread of its own: only that thread changes its namespace
        try:
            _system("unshare", _CLONE_NEWNET)
            outcome.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC))
        except OSError as error:
            outcome.append(error)

    thread = threading.Thread(target=inside)
    thread.start()
    thread.join()
    (found,) = outcome
    if isinstance(found, OSError):
        raise NoDesk(f"network namespaces cannot be made here, neither as this user nor in a user namespace: {found}")
    return found


def as_root() -> list[str]:
    """Returns the words that a command begins with to run as root, in a user namespace of its own if need be.

    Raises:
        NoDesk: this user is not root and gets no user namespace.
    """
    if os.geteuid() == 0:
        return []
    _need("unshare")
    own = ["unshare", "--user", "--map-root-user"]
    done = subprocess.run([*own, "true"], capture_output=True, text=True)
    if done.returncode != 0:
        raise NoDesk(
            "emulated nodes take root's rights or a user namespace, and this user is not root and gets none: "
            f"{_line(done.stderr)!r}"
        )
    return own


def enter(descriptor: int) -> None:
    """Moves the calling thread, and what it starts, to a namespace."""
    _system("setns", descriptor, _CLONE_NEWNET)


def interface_bytes(listed: str) -> dict[str, tuple[int, int]]:
    """Reads the bytes (sent, received) by interface of the text of /proc/net/dev."""
    out = {}
    for line in listed.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        columns = numbers.split()
        out[name.strip()] = (int(columns[8]), int(columns[0]))
    return out


def _need(tool: str) -> None:
    if shutil.which(tool) is None:
        raise NoDesk(f"emulated nodes need the command {tool} (package {TOOLS[tool]}), which is not on PATH")


def _system(name: str, *arguments: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _line(text: str) -> str:
    """Returns the first line that says something."""
    return next((line for line in text.splitlines() if line.strip()), "nothing")
