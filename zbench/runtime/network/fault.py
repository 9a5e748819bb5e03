"""A NIC of a desk cluster that goes down or slows down while a step runs, to see what a run makes of it. No torch."""

import threading
from dataclasses import dataclass

from zbench.describe.cluster import Cluster
from zbench.runtime.network.namespaces import run_inside
from zbench.runtime.network.place import Place
from zbench.runtime.network.wiring import SWITCH, degraded


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault of one NIC, as executor.fault describes it. nic: counted over the whole cluster. step: when it begins,
    `after` seconds from the step's start. share: of its rate that is left, 0: the link is down. seconds: until all is
    as before; None: for good."""

    nic: int
    step: int
    share: float = 0.0
    after: float = 0.0
    seconds: float | None = None

    def check(self, cluster: Cluster) -> None:
        """Checks the fault against the cluster.

        Raises:
            ValueError: there is no such NIC, or a number cannot be.
        """
        for name, value, least, most in (
            ("nic", self.nic, 0, cluster.num_nics - 1),
            ("step", self.step, 0, None),
            ("share", self.share, 0, 1),
            ("after", self.after, 0, None),
            ("seconds", self.seconds, 0, None),
        ):
            if name == "seconds" and value is None:
                continue
            kinds = int if name in ("nic", "step") else (int, float)
            fine = isinstance(value, kinds) and not isinstance(value, bool)
            if not fine or not least <= value or (most is not None and value > most):  # type: ignore[operator]
                bound = f"from {least} to {most}" if most is not None else f"of at least {least}"
                raise ValueError(f"executor.fault.{name} is {value!r}; it takes a number {bound}")

    def begin(self, cluster: Cluster, place: Place) -> None:
        """Begins the fault; called on the first rank of the NIC's node when the step begins."""
        _later(self.after, self._turn, cluster, place, self.share)
        if self.seconds is not None:
            _later(self.after + self.seconds, self._turn, cluster, place, 1.0)

    def _turn(self, cluster: Cluster, place: Place, share: float) -> None:
        for where, command in degraded(cluster, self.nic, share):
            done = run_inside(place.switch if where == SWITCH else place.node, command)
            assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


def _later(seconds: float, *call: object) -> None:
    timer = threading.Timer(seconds, call[0], call[1:])  # type: ignore[arg-type]
    timer.daemon = True
    timer.start()
