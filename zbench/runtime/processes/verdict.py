"""Finds of many failures the cause, and of many ranks that stand still the one to blame; and writes the sentence for
it.

Failures come in swarms: a rank dies, and the others raise because their connections to it closed. So after the first
sign of trouble there is a moment to listen, and then the likeliest cause is named: a rank killed by a signal, then
one that raised something of its own, then one that just ended, and last what others' ends explain. A rank that hangs
makes all others wait; of those that stand still, a stopped one is named first, then one that does not wait for
others. Torch-free.
"""

import signal
import time
from collections.abc import Callable, Sequence

from zbench.runtime.processes.fleet import Failure, RankFailed, ending, failure_sentence

GRACE = 0.3  # seconds from the first sign of trouble to the verdict
LATE_STATUS = 15.0  # the same, where how a lost rank's process ended is still to be told, as on a busy machine


class Troubles:
    """The troubles so far, rank by rank, in the order in which they showed; only the first of each rank."""

    def __init__(self) -> None:
        self._found: dict[int, Failure | str] = {}
        self._since: float | None = None

    def __bool__(self) -> bool:
        return bool(self._found)

    def raised(self, rank: int, failure: Failure) -> None:
        """Notes that a call raised on a rank."""
        self._found.setdefault(rank, failure)

    def lost(self, rank: int, at: str) -> None:
        """Notes that a rank's wire closed. at: where it was, "in step 3, backward"."""
        self._found.setdefault(rank, at)

    def is_ripe(self, is_told: Callable[[int], bool] = lambda rank: True) -> bool:
        """Returns whether it is time for the verdict; first asked when the first trouble shows. is_told: whether all
        that will be known of how a rank's process ended is known."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
        lost = [rank for rank, trouble in self._found.items() if isinstance(trouble, str)]
        return now - self._since >= (GRACE if all(map(is_told, lost)) else LATE_STATUS)

    def cause(self, status: Callable[[int], int | None], words: Callable[[int], Sequence[str]]) -> RankFailed:
        """Returns the likeliest cause. status: how a rank's process ended (a signal is negative), None where not known.
        words: the last lines that a rank printed."""

        def unlikeliness(rank: int) -> int:
            trouble, code = self._found[rank], status(rank)
            if isinstance(trouble, Failure):
                return 3 if trouble.of_peers else 1
            return 0 if code is not None and code < 0 and code != -signal.SIGABRT else 2

        rank = min(self._found, key=unlikeliness)
        trouble, who = self._found[rank], f"rank {rank}"
        if isinstance(trouble, Failure):
            at = f"in {trouble.place}" if trouble.place else ""
            return RankFailed(
                failure_sentence(who, trouble.what, at, trouble.message, trouble.where), rank, trouble.details
            )
        code, lines = status(rank), words(rank)
        what = "was lost (its process or its machine ended)" if code is None else ending(code)
        message = f"it last printed {lines[-1]!r}" if lines and code not in (None, -signal.SIGKILL) else ""
        return RankFailed(failure_sentence(who, what, trouble, message), rank, "\n".join(lines))


def stuck(
    suspects: Sequence[int], stillness: Callable[[int], str], is_waiting: bool, at: Callable[[int], str], seconds: float
) -> RankFailed:
    """Returns the failure to raise where no rank made progress for `seconds`.

    suspects: whom to blame, first the likeliest. stillness: why a rank cannot move, where that can be seen from
    outside ("is stopped"), else "". is_waiting: all suspects wait for others. at: where a rank is.
    """
    rank = min(suspects, key=lambda rank: not stillness(rank))  # the first that cannot move, else the first
    still = stillness(rank)
    what = f"{f'{still} and ' if still else ''}made no progress for {seconds:g} s"
    others = ", waiting for others, as do all" if is_waiting and not still else ""
    instead = "" if others or still else "a longer executor.timeout waits for it"
    return RankFailed(failure_sentence(f"rank {rank}", what, f"{at(rank)}{others}", instead), rank)
