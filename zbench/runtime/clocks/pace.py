"""A device's clock: how long the work of a rank takes, if not just as long as this machine needs for it.

On emulated nodes a rank stands for a device of the described rate. It does the real arithmetic and then waits until
the modelled time has passed. Work starts when the device is free and the data is there, so a wait that ends late
does not shift what comes after it.
Ranks of emulated nodes share processors. Arithmetic has until its modelled time, and no network waits for a processor:
so threads that have messages to move come before those that compute (zbench.runtime.clocks.slices).
"""

import ctypes
from time import CLOCK_MONOTONIC, clock_gettime
from typing import Protocol

from zbench.runtime.clocks import slices

_MESSAGES, _ARITHMETIC = 0.1e-3, 20e-3  # seconds of a slice; the shorter goes first
_TIMER_ABSTIME = 1  # time.h
# Seconds that waiting for a message takes which has arrived: gloo tells it only to who waits. A guess: far more than a
# call takes, far less than a message.
_THERE = 0.3e-3


class Pacer(Protocol):
    """A device whose work takes as long as it is modelled, or as it takes. overrun: seconds since begin() by which real
    work took longer than its modelled time, `modelled`."""

    overrun: float
    modelled: float

    def begin(self, hurries: bool = False) -> None:
        """Begins a step: the device is free from now on. hurries: nothing is waited for, modelled seconds are only
        summed."""

    def came(self, asked: float | None = None) -> None:
        """Notes that data came that the device had to wait for. asked: when it was asked for (`moment`); what was there
        by then has held up nothing."""

    def moment(self) -> float | None:
        """Returns this moment, for `came`."""

    def work(self) -> None:
        """Begins arithmetic; it goes on until spend()."""

    def spend(self, seconds: float) -> None:
        """Makes the work done since then take that long on the device; returns when it has passed."""


class Unpaced:
    """A device whose work takes as long as it takes on this machine."""

    overrun = modelled = 0.0

    def begin(self, hurries: bool = False) -> None: ...

    def came(self, asked: float | None = None) -> None: ...

    def moment(self) -> None: ...

    def work(self) -> None: ...

    def spend(self, seconds: float) -> None: ...


class Paced:
    """The clock of a device that is no faster than this machine, of the thread that makes it and computes.

    To be made before threads that move messages are: they take over the slice that it asks for.
    """

    def __init__(self) -> None:
        slices.ask(_MESSAGES)
        self.overrun = self.modelled = 0.0
        self._free = 0.0
        self._hurries = False
        self._nanosleep = ctypes.CDLL(None, use_errno=True).clock_nanosleep

    def begin(self, hurries: bool = False) -> None:
        self.overrun = self.modelled = 0.0
        self._hurries = hurries
        self.work()
        self._free = clock_gettime(CLOCK_MONOTONIC)

    def came(self, asked: float | None = None) -> None:
        now = clock_gettime(CLOCK_MONOTONIC)
        if asked is None or now - asked > _THERE:
            self._free = max(self._free, now)

    def moment(self) -> float:
        return clock_gettime(CLOCK_MONOTONIC)

    def now(self) -> float:
        """Returns the moment until which the device is taken: its own, as zbench.runtime.clocks.times.Clock has it."""
        return self._free

    def between(self, began: float, ended: float) -> float:
        """Returns the seconds between two of the device's moments."""
        return ended - began

    def work(self) -> None:
        slices.ask(_ARITHMETIC)

    def spend(self, seconds: float) -> None:
        slices.ask(_MESSAGES)
        self.modelled += seconds
        if self._hurries:
            return
        until = self._free + seconds
        late = clock_gettime(CLOCK_MONOTONIC) - until
        if late > 0:
            self.overrun += late
            until += late
        else:
            self._sleep(until)
        self._free = until

    def _sleep(self, until: float) -> None:
        """Sleeps until an absolute time; ctypes releases the interpreter meanwhile, so that messages go on."""
        whole = int(until)
        moment = _Timespec(whole, int((until - whole) * 1e9))
        while self._nanosleep(CLOCK_MONOTONIC, _TIMER_ABSTIME, ctypes.byref(moment), None) != 0:
            continue  # a signal


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]
