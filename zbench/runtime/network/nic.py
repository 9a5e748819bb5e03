"""Bytes that this machine's NICs carried, from the kernel's own counters. No torch.

InfiniBand and RoCE ports count 4-byte words below /sys/class/infiniband, other NICs bytes below /sys/class/net.
Virtual interfaces (loopback, bridges, containers' ends) have no device behind them and are left out: where that
leaves none, and on a cluster that one machine plays, bytes are the executor's own count.
"""

from dataclasses import dataclass
from pathlib import Path

INFINIBAND, NET = Path("/sys/class/infiniband"), Path("/sys/class/net")
_WORD = 4  # bytes: InfiniBand specification, PortXmitData and PortRcvData


@dataclass(frozen=True, slots=True)
class Counter:
    """A NIC's two counters, and what one of their counts is worth in bytes."""

    name: str
    tx: Path
    rx: Path
    unit: int

    def read(self) -> tuple[int, int]:
        """Returns the bytes (sent, received) so far."""
        return int(self.tx.read_text()) * self.unit, int(self.rx.read_text()) * self.unit


@dataclass(frozen=True, slots=True)
class PhysicalCounters:
    """The counters of every physical NIC; InfiniBand's alone where there is any."""

    counters: tuple[Counter, ...]

    @staticmethod
    def of(infiniband: Path = INFINIBAND, net: Path = NET) -> "PhysicalCounters":
        """Finds the counters of this machine's NICs."""
        found = [
            Counter(
                f"{port.parent.parent.name}:{port.name}",
                port / "counters" / "port_xmit_data",
                port / "counters" / "port_rcv_data",
                _WORD,
            )
            for port in sorted(infiniband.glob("*/ports/*"))
            if (port / "counters" / "port_xmit_data").is_file()
        ]
        found = found or [
            Counter(nic.name, nic / "statistics" / "tx_bytes", nic / "statistics" / "rx_bytes", 1)
            for nic in sorted(net.glob("*"))
            if (nic / "device").exists() and (nic / "statistics" / "tx_bytes").is_file()
        ]
        return PhysicalCounters(tuple(found))

    def read(self) -> dict[str, tuple[int, int]]:
        """Returns the bytes of every NIC since it came up, (sent, received) by name."""
        return {counter.name: counter.read() for counter in self.counters}
