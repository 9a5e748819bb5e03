"""Network namespaces without names: each lives exactly as long as somebody has it open.

Nothing shows in `ip netns`, two desks never clash, and whatever way the processes that have them open end, the
kernel takes namespaces, cables and limits away. To make some takes root, or a user namespace of one's own.
"""

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence

from zbench.desk.wiring import Namespace, Wiring

_CLONE_NEWNET = 0x40000000  # linux/sched.h
TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux"}


class NoDesk(RuntimeError):
    """Emulated nodes cannot be made here; the message is one sentence saying why."""


class Network:
    """A wiring that is up. close(): takes it down; so does the end of all processes that have it open."""

    def __init__(self, wiring: Wiring) -> None:
        """
        Raises:
            NoDesk: this machine or user cannot have it.
        """
        for tool, package in TOOLS.items():
            if shutil.which(tool) is None:
                raise NoDesk(f"emulated nodes need the command {tool} (package {package}), which is not on PATH")
        self.wiring = wiring
        self.descriptors: list[int] = []
        try:
            self.descriptors += [made() for _ in wiring.namespaces]
            for place, namespace in enumerate(wiring.namespaces):
                self._fill(place, namespace)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = []

    def run(self, place: int, command: Sequence[str], text: str = "") -> "subprocess.CompletedProcess[str]":
        """A command inside a namespace, `text` on its standard input."""
        inside = ["nsenter", f"--net=/proc/self/fd/{self.descriptors[place]}", *command]
        return subprocess.run(inside, input=text, capture_output=True, text=True, pass_fds=self.descriptors)

    def bytes(self, place: int, interface: str) -> tuple[int, int]:
        """(sent, received) by an interface, from the kernel's counters."""
        listed = self.run(place, ["cat", "/proc/net/dev"]).stdout
        return counted(listed)[interface]

    def nic_bytes(self) -> list[tuple[int, int]]:
        """(sent, received) by every NIC."""
        wiring = self.wiring
        listed = [counted(self.run(wiring.node(n), ["cat", "/proc/net/dev"]).stdout) for n in range(wiring.num_nodes)]
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


def made() -> int:
    """A new network namespace, as a descriptor.

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


def enter(descriptor: int) -> None:
    """Moves the calling thread, and what it starts, to a namespace."""
    _system("setns", descriptor, _CLONE_NEWNET)


def counted(listed: str) -> dict[str, tuple[int, int]]:
    """(sent, received) bytes by interface, of the text of /proc/net/dev."""
    out = {}
    for line in listed.splitlines()[2:]:
        name, _, numbers = line.partition(":")
        columns = numbers.split()
        out[name.strip()] = (int(columns[8]), int(columns[0]))
    return out


def _system(name: str, *arguments: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if getattr(library, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _line(text: str) -> str:
    """The first line that says something."""
    return next((line for line in text.splitlines() if line.strip()), "nothing")
