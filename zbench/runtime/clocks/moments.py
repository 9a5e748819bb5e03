"""Moments at which the parts of a rank's step ended, and how long each took. No torch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Moments:
    """The moments of a step, as in zbench.runtime.clocks.events; `checked` is the host's alone, the others come once
    the device has done all that it was given.

    compiling: seconds in which plans became programs, before the step. began: the step, after a barrier. ran: forwards
    and backwards are done. reduced: gradients are summed. checked: they were compared where asked for, in time that is
    not the step's. ended: the optimizer has stepped.
    """

    compiling: float
    began: float
    ran: float
    reduced: float
    checked: float
    ended: float

    @property
    def seconds(self) -> float:
        """Seconds of the step, without what its checks took."""
        return self.ended - self.began - (self.checked - self.reduced)

    @property
    def running(self) -> float:
        """Seconds of forward and backward."""
        return self.ran - self.began

    @property
    def reduction(self) -> float:
        """Seconds of the reduction of gradients after the backward."""
        return self.reduced - self.ran

    @property
    def optimizer(self) -> float:
        """Seconds of the optimizer."""
        return self.ended - self.checked
