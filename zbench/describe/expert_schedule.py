"""The schedule by which experts' exchanges with tokens' homes go beside their matmuls, and laws of how tokens choose
them, as a run chooses both.

Pure data: conf/experts sets it, zbench.step.passes.overlap.expert_chunks builds it. How degrees that a run leaves open
are chosen is zbench.simulated.expert_degrees.
"""

from dataclasses import dataclass

from zbench.describe.checks import check_whole_number

SEQUENTIAL, PIPEMOE, TUTEL, FSMOE, CLOCK = SCHEDULES = ("sequential", "pipemoe", "tutel", "fsmoe", "clock")
AUTO = "auto"  # of a degree: the schedule's own way to choose it
ZIPF, DIRICHLET = POPULARITIES = ("zipf", "dirichlet")
FLAT, TWO_LEVEL = DISPATCHES = ("flat", "two_level")  # of rows: to each GPU with an expert of theirs; to each node once
DROPLESS = "dropless"  # of a capacity: an expert takes every token that chose it
MOST_CAPACITY = 1024  # of a factor: any model's number of experts, from which on nothing can be dropped: a judgement
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

    def __str__(self) -> str:
        return f"{self.forward} {self.backward}" + (" gradients last" if self.weights == AFTER_CHUNKS else "")


TOGETHER_AT_ONCE = ExpertChunks()  # all tokens at once


@dataclass(frozen=True, slots=True)
class ExpertSchedule:
    """The schedule of experts' exchanges.

    name: sequential (all tokens at once), pipemoe or tutel (as many chunks forward as backward; where `degree` is
        AUTO, pipemoe chooses their number by a closed form and tutel by trying), fsmoe (a number for each, by a closed
        form) or clock (a number for each, and when gradients are computed, by trying).
    degree: a number of chunks, or AUTO.

    Raises:
        ValueError: one of them cannot be; the message names its key.
    """

    name: str = SEQUENTIAL
    degree: int | str = 1

    def __post_init__(self) -> None:
        if self.name not in SCHEDULES:
            raise ValueError(
                f"experts.schedule is {self.name!r}; it takes {', '.join(SCHEDULES[:-1])} or {SCHEDULES[-1]}"
            )
        if self.degree != AUTO:
            check_whole_number("experts.degree", self.degree, 1, MOST_CHUNKS)
        if self.name == SEQUENTIAL and self.degree != 1:
            raise ValueError(
                f"experts.degree is {self.degree}; experts=sequential has all tokens at once, so it takes 1"
            )
        if self.name in (FSMOE, CLOCK) and self.degree != AUTO:
            raise ValueError(
                f"experts.degree is {self.degree}; experts={self.name} chooses the chunks of forward and backward "
                f"itself, so it takes {AUTO}"
            )

    @property
    def is_open(self) -> bool:
        """Whether the number of chunks is to be chosen for every batch."""
        return self.degree == AUTO

    @property
    def plays(self) -> bool:
        """Whether it is chosen by playing steps."""
        return self.name in (TUTEL, CLOCK)

    @property
    def same_degree(self) -> bool:
        """Whether a forward has as many chunks as a backward."""
        return self.name not in (FSMOE, CLOCK)

    @property
    def chunks(self) -> ExpertChunks:
        """The chunks of a schedule that leaves nothing open; one where it does."""
        degree = 1 if isinstance(self.degree, str) else self.degree
        return ExpertChunks(degree, degree)
