"""One forward, one backward: when the stages of a pipeline run each micro-batch.

Narayanan et al. 2019 (PipeDream, doi 10.1145/3341301.3359646), as flushed at the end of a step (Megatron-LM's
schedule without interleaving). Stage s of pp begins with pp - s - 1 forwards and then takes turns, so it holds the
activations of at most pp - s micro-batches. Micro-batches need not be alike: every start is played out.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numba as nb
import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.compiled import ENTERED


@dataclass(frozen=True, slots=True)
class Schedule:
    """The schedule of a pipeline, one forward and one backward in turn. forward, backward: [stages, micro_batches],
    when each starts. ready: [stages], when the last backward ends. waited: [stages], seconds for which a stage idled
    only because a message was on its way."""

    forward: Floats
    backward: Floats
    ready: Floats
    waited: Floats


def schedule(forward: Floats, backward: Floats, hops: Floats) -> Schedule:
    """Schedules the micro-batches of a pipeline. forward, backward: seconds [stages, micro_batches]. hops: [stages - 1,
    micro_batches], of what passes between a stage and the next, in either direction."""
    return Schedule(*_schedule(forward, backward, hops))


def turns(stages: int, count: int) -> Iterator[tuple[int, bool, int]]:
    """Lists every stage's work on `count` micro-batches, (stage, whether backward, micro-batch), each stage's in its
    order and each piece after the one of the neighbouring stage that it waits for."""
    done = np.zeros((2, stages), np.int64)  # forwards and backwards of every stage
    while done[1, 0] < count:
        for s in range(stages):
            while True:
                forward = done[0, s] < count and done[0, s] - done[1, s] < stages - s
                way, before = (0, s - 1) if forward else (1, s + 1)
                if done[way, s] == count or (0 <= before < stages and done[way, before] <= done[way, s]):
                    break
                yield s, not forward, int(done[way, s])
                done[way, s] += 1


@nb.njit(**ENTERED)
def _schedule(forward, backward, hops):  # type: ignore[no-untyped-def]
    stages, count = forward.shape
    f_start, b_start = np.full((stages, count), -1.0), np.full((stages, count), -1.0)
    ready, waited = np.zeros(stages), np.zeros(stages)
    done_f, done_b = np.zeros(stages, np.int64), np.zeros(stages, np.int64)
    left = 2 * stages * count
    while left:
        for s in range(stages):
            while done_b[s] < count:
                ahead = min(stages - s, count)  # micro-batches a stage holds at most
                goes_forward = done_f[s] < count and done_f[s] - done_b[s] < ahead
                if goes_forward:
                    i = done_f[s]
                    if s > 0 and done_f[s - 1] <= i:
                        break
                    made = f_start[s - 1, i] + forward[s - 1, i] if s > 0 else 0.0
                    hop = hops[s - 1, i] if s > 0 else 0.0
                else:
                    i = done_b[s]
                    if s + 1 < stages and done_b[s + 1] <= i:
                        break
                    made = b_start[s + 1, i] + backward[s + 1, i] if s + 1 < stages else 0.0
                    hop = hops[s, i] if s + 1 < stages else 0.0
                could = max(ready[s], made)
                start = max(ready[s], made + hop)
                waited[s] += start - could
                if goes_forward:
                    f_start[s, i] = start
                    ready[s] = start + forward[s, i]
                    done_f[s] += 1
                else:
                    b_start[s, i] = start
                    ready[s] = start + backward[s, i]
                    done_b[s] += 1
                left -= 1
    return f_start, b_start, ready, waited
