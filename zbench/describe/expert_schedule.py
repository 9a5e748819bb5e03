"""The schedule by which experts' exchanges with tokens' homes go beside their matmuls, and laws of how tokens choose
them, as a run chooses both.

Pure data: conf/experts sets it, zbench.step.passes.overlap.expert_chunks builds it. How degrees that a run leaves open
are chosen is zbench.simulated.expert_degrees.
"""

from dataclasses import dataclass

from zbench.describe.checks import check_whole_number

SEQUENTIAL, PIPEMOE, TUTEL, LINA, FSMOE, CLOCK = SCHEDULES = (
    "sequential", "pipemoe", "tutel", "lina", "fsmoe", "clock",
)  # fmt: skip
AUTO = "auto"  # of a degree: the schedule's own way to choose it
ZIPF, DIRICHLET = POPULARITIES = ("zipf", "dirichlet")
FLAT, TWO_LEVEL = DISPATCHES = ("flat", "two_level")  # of rows: to each GPU with an expert of theirs; to each node once
DROPLESS = "dropless"  # of a capacity: an expert takes every token that chose it
MOST_CAPACITY = 1024  # of a factor: any model's number of experts, from which on nothing can be dropped: a judgement
DEGREES = (1, 2, 4, 8)  # among which schedules choose, as FSMoE's planner does (github xpan413/FSMoE, tools/optim.py)
MOST_CHUNKS = 64  # more are smaller than the tiles of a matmul for every batch that was tried: a guess
WITH_CHUNKS, AFTER_CHUNKS = WEIGHTS = ("chunk", "last")
WITH_LAYER, BETWEEN = REDUCED = ("layer", "between")  # when a layer's gradients are reduced
MOST_PIECES = 64  # of a layer's gradients: as many cells more of every parameter, which a proof pays for; a judgement


@dataclass(frozen=True, slots=True)
class GradientPieces:
    """The pieces in which a layer's gradients are reduced, and where these stand among experts' messages of the layer
    that is next in a backward.

    count: equal pieces. inside: how many of them go while tokens are with their experts, after all were sent there and
        before the first comes home. beside: how many go after the last came home, beside attention. What is over is
        reduced after the stage's backward. apart: whether each is a message of its own, or those of one place together.

    Raises:
        ValueError: one of them cannot be; the message names it.
    """

    count: int
    inside: int
    beside: int
    apart: bool = True

    def __post_init__(self) -> None:
        check_whole_number("pieces of gradients count", self.count, 1, MOST_PIECES)
        check_whole_number("pieces of gradients inside", self.inside, 0, self.count)
        check_whole_number("pieces of gradients beside", self.beside, 0, self.count - self.inside)

    def __str__(self) -> str:
        return f"{self.inside} {self.beside} of {self.count}"


@dataclass(frozen=True, slots=True)
class ExpertChunks:
    """The chunks of each GPU's own tokens that go to experts and back one after another, so that one chunk's messages
    are beside the matmuls of another.

    forward, backward: so many chunks of about as many tokens. weights: when experts' gradients are computed, for each
        chunk ("chunk", as autograd of a chunked forward does) or after all chunks ("last"). gradients: how those of a
        layer are reduced between messages; None: together, when its backward has made them.

    Raises:
        ValueError: one of them cannot be; the message names it.
    """

    forward: int = 1
    backward: int = 1
    weights: str = WITH_CHUNKS
    gradients: GradientPieces | None = None

    def __post_init__(self) -> None:
        for name in ("forward", "backward"):
            check_whole_number(f"experts' chunks {name}", getattr(self, name), 1, MOST_CHUNKS)
        if self.weights not in WEIGHTS:
            raise ValueError(f"experts' chunks weights is {self.weights!r}; it takes {' or '.join(WEIGHTS)}")

    def __str__(self) -> str:
        late = " gradients last" if self.weights == AFTER_CHUNKS else ""
        return f"{self.forward} {self.backward}{late}" + (f", {self.gradients}" if self.gradients else "")


TOGETHER_AT_ONCE = ExpertChunks()  # all tokens at once


@dataclass(frozen=True, slots=True)
class ExpertSchedule:
    """The schedule of experts' exchanges.

    name: sequential (all tokens at once), pipemoe or tutel (as many chunks forward as backward; where `degree` is
        AUTO, pipemoe chooses their number by a closed form and tutel by trying), lina (pipemoe's, and gradients in
        pieces of one size between messages), fsmoe (a number for each, and how much of gradients is reduced where, by a
        closed form) or clock (all of that, and when gradients are computed, by trying).
    degree: a number of chunks, or AUTO. gradients: "layer", a layer's are reduced when its backward has made them, or
        "between", in pieces between experts' messages.

    Raises:
        ValueError: one of them cannot be; the message names its key.
    """

    name: str = SEQUENTIAL
    degree: int | str = 1
    gradients: str = WITH_LAYER

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
        takes = {LINA: (BETWEEN,), FSMOE: REDUCED, CLOCK: REDUCED}.get(self.name, (WITH_LAYER,))
        if self.gradients not in takes:
            raise ValueError(
                f"experts.gradients is {self.gradients!r}; with experts={self.name} it takes {' or '.join(takes)}"
            )

    @property
    def is_open(self) -> bool:
        """Whether something of it is to be chosen for every batch."""
        return self.degree == AUTO or self.reduces_between

    @property
    def reduces_between(self) -> bool:
        """Whether gradients are reduced between experts' messages."""
        return self.gradients == BETWEEN

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
        """The chunks of a schedule that leaves nothing open; one where it does, and gradients in one piece."""
        degree = 1 if isinstance(self.degree, str) else self.degree
        return ExpertChunks(degree, degree, gradients=GradientPieces(1, 0, 0) if self.reduces_between else None)
