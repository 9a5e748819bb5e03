"""Chooses the channel of a link that each message is drawn on, so that no two events of a track overlap. Pure: no
torch."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Channels:
    """Channels of links, as a trace draws them. free: by link, since when each of its channels is free, as of what was
    taken so far; it goes on from layer to layer, as the clock's does (zbench.simulator.clock.Free)."""

    free: dict[int, list[float]] = field(default_factory=dict)

    def take(self, link: int, count: int, start: float, until: float, whole: bool) -> int:
        """Takes the first channel that is free at `start`, for a message until `until`; of a link, as the clock starts
        them.

        There always is one: the clock takes the channel that was free first, so what is free here is never less.
        count: of the link's channels. whole: it takes all of them, and is drawn on the first.
        """
        free = self.free.setdefault(link, [0.0] * count)
        if whole:
            free[:] = [until] * count
            return 0
        channel = next(channel for channel, since in enumerate(free) if since <= start)
        free[channel] = until
        return channel
