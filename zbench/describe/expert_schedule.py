"""The schedule by which experts' exchanges with tokens' homes go beside their matmuls, as a run chooses it.

Pure data: conf/experts sets it, zbench.step.passes.overlap.expert_chunks builds it. How degrees that a run leaves open
are chosen is zbench.simulated.experts.
"""

from dataclasses import dataclass

from zbench.describe.checks import check_whole_number

SEQUENTIAL, PIPEMOE, TUTEL, FSMOE, CLOCK = SCHEDULES = ("sequential", "pipemoe", "tutel", "fsmoe", "clock")
AUTO = "auto"  # of a degree: the schedule's own way to choose it
DEGREES = (1, 2, 4, 8)  # among which schedules choose, as FSMoE's planner does (github xpan413/FSMoE, tools/optim.py)
MOST_CHUNKS = 64  # more are smaller than the tiles of a matmul for every batch that was tried: a guess
WITH_CHUNKS, AFTER_CHUNKS = WEIGHTS = ("chunk", "last")


@dataclass(frozen=True, slots=True)
class ExpertChunks:
    """The chunks of each GPU's own tokens that go to experts and back one after another, so that one chunk's messages
    are beside the matmuls of another.

    forward, backward: so many chunks of about as many tokens. weights: when experts' gradients are computed, for each
        chunk ("chunk", as autograd of a chunked forward does) or after all chunks ("last").

    Raises:
        ValueError: one of them cannot be; the message names it.
    """

    forward: int = 1
    backward: int = 1
    weights: str = WITH_CHUNKS

    def __post_init__(self) -> None:
        for name in ("forward", "backward"):
            check_whole_number(f"experts' chunks {name}", getattr(self, name), 1, MOST_CHUNKS)
        if self.weights not in WEIGHTS:
            raise ValueError(f"experts' chunks weights is {self.weights!r}; it takes {' or '.join(WEIGHTS)}")


TOGETHER_AT_ONCE = ExpertChunks()  # all tokens at once
