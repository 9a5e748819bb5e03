"""The schedule by which experts' exchanges with tokens' homes go beside their matmuls, and laws of how tokens choose
them, as a run chooses both.

Pure data: conf/experts sets it, zbench.step.passes.overlap.expert_chunks builds it. How degrees that a run leaves open
are chosen is zbench.simulated.expert_degrees.
"""

from dataclasses import dataclass

from zbench.describe.checks import MOST, check_boolean, check_choice, check_whole_number, is_whole

SEQUENTIAL, PIPEMOE, TUTEL, LINA, FSMOE, CLOCK = SCHEDULES = (
    "sequential", "pipemoe", "tutel", "lina", "fsmoe", "clock",
)  # fmt: skip
AUTO = "auto"  # of a degree: the schedule's own way to choose it
ZIPF, DIRICHLET = POPULARITIES = ("zipf", "dirichlet")
# Of rows: to each GPU with an expert of theirs; to each node once; to each such GPU through the GPU of its number in
# the home's node, which sends all of the node's there together (Tutel's two-dimensional hierarchical all-to-all).
FLAT, TWO_LEVEL, TWO_DIMENSIONAL = DISPATCHES = ("flat", "two_level", "2dh")
DRAWN, TOKEN_CHOICE, EXPERT_CHOICE = ROUTINGS = ("drawn", "token_choice", "expert_choice")  # who chooses, by what
PLANNED, ATTENTION, EVEN, EVEN_IN_NODE, PRICED, FASTEST = HOMES = (
    "planned", "attention", "even", "even_in_node", "priced", "fastest",
)  # fmt: skip
CHOSEN_HOMES = (PRICED, FASTEST)  # for every batch, among the others
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
        check_choice("experts' chunks weights", self.weights, WEIGHTS)

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
        check_choice("experts.schedule", self.name, SCHEDULES)
        if self.degree != AUTO and not (is_whole(self.degree) and 1 <= self.degree <= MOST_CHUNKS):
            raise ValueError(
                f"experts.degree is {self.degree!r}; it takes a whole number from 1 to {MOST_CHUNKS}, or {AUTO}"
            )
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


@dataclass(frozen=True, slots=True)
class Experts:
    """The way in which tokens choose experts, and the schedule by which they go there and back.

    schedule, degree, gradients: as ExpertSchedule has them. skew: how unevenly tokens choose, 0: all alike; popularity:
        the law that it is a number of; drift: how long an expert stays popular (all three:
        zbench.step.passes.routing.ExpertParallel). capacity: DROPLESS, or the tokens that an expert takes of each GPU's
        at most, over what it would have of them if all experts had as many; others are dropped.
        dispatch: FLAT, a row is sent to each GPU that has an expert of its token; TWO_LEVEL, to each node once, and
        from there to these GPUs; TWO_DIMENSIONAL, to the GPU of the home's node that has such a GPU's number in its
        own, and from there with the rows of the whole node.
        padded: whether experts get rows of zeros for the tokens that they would take more. routing: DRAWN by the
        workload's seed, or chosen by each layer's router while the step runs: TOKEN_CHOICE, a token goes to the experts
        with its largest logits; EXPERT_CHOICE, an expert takes those of a GPU's tokens that give it most. Where it is
        chosen and not padded, rows are counted while the step runs, and a clock plays those of a draw.
        homes: where tokens live, and go to experts from: where the planner has them (PLANNED), where their queries are
        attended (ATTENTION), as many on each rank (EVEN) or on each of a node's (EVEN_IN_NODE), or as the batch's step
        takes least by playing all (FASTEST).
    """

    schedule: str = SEQUENTIAL
    degree: int | str = 1
    skew: float = 0.0
    popularity: str = ZIPF
    drift: int = 1
    capacity: float | str = DROPLESS
    padded: bool = False
    dispatch: str = FLAT
    routing: str = DRAWN
    gradients: str = WITH_LAYER
    homes: str = PLANNED

    def __post_init__(self) -> None:
        _ = self.exchanges  # refuses what cannot be
        check_choice("experts.homes", self.homes, HOMES)
        if type(self.skew) not in (int, float) or not 0 <= self.skew < 100:
            raise ValueError(f"experts.skew is {self.skew!r}; it takes a number from 0 to below 100")
        factor = self.capacity if type(self.capacity) in (int, float) else 0  # a word is none, nor is a boolean
        if self.capacity != DROPLESS and not 0 < float(factor) <= MOST_CAPACITY:
            raise ValueError(
                f"experts.capacity is {self.capacity!r}; it takes {DROPLESS}, or a number above 0 and up to "
                f"{MOST_CAPACITY}"
            )
        check_boolean("experts.padded", self.padded)
        check_choice("experts.dispatch", self.dispatch, DISPATCHES)
        check_choice("experts.routing", self.routing, ROUTINGS)
        if self.dispatch != FLAT and self.routing != DRAWN:
            raise ValueError(
                f"experts.dispatch is {self.dispatch}; with experts.routing={self.routing} experts have seats, which "
                f"go to each GPU, so it takes {FLAT}"
            )
        if self.dispatch == TWO_LEVEL and self.padded:
            raise ValueError(
                f"experts.padded is true; with experts.dispatch={TWO_LEVEL} a node gets as many rows as tokens chose "
                "some expert on it, which is no number to fill up to, so it takes false"
            )
        if self.padded and self.capacity == DROPLESS:
            raise ValueError(
                f"experts.padded is true; with experts.capacity={DROPLESS} an expert has no number of rows "
                "that could be filled, so it takes false, or a capacity as in experts.capacity=1.25 beside it"
            )
        if self.routing != DRAWN:
            self._check_router()
        check_choice("experts.popularity", self.popularity, POPULARITIES)
        check_whole_number("experts.drift", self.drift, 1, MOST)
        for name, value, usual in (("popularity", self.popularity, ZIPF), ("drift", self.drift, 1)):
            if not self.skew and value != usual:
                raise ValueError(
                    f"experts.{name} is {value}; with experts.skew=0 all experts are alike, so it takes {usual}"
                )

    def _check_router(self) -> None:
        """Refuses what a step cannot have whose rows are not known before it runs.

        Raises:
            ValueError: the message names the key.
        """
        router = f"with experts.routing={self.routing} routers choose while the step runs"
        if self.routing == EXPERT_CHOICE and (self.capacity == DROPLESS or not self.padded):
            raise ValueError(
                f"experts.capacity is {self.capacity} and experts.padded {str(self.padded).lower()}; {router}, "
                "and an expert takes as many tokens as it has room for, so it takes a capacity and true, as in "
                "experts.capacity=1.25 experts.padded=true"
            )
        if self.skew and self.padded:
            raise ValueError(f"experts.skew is {self.skew}; {router}, among seats, so it takes 0")
        if self.schedule != SEQUENTIAL and self.capacity != DROPLESS:
            raise ValueError(
                f"experts.schedule is {self.schedule} and experts.capacity {self.capacity}; {router}, and a capacity "
                f"is of all of a GPU's tokens at once, so it takes {SEQUENTIAL}, or {DROPLESS}"
            )

    @property
    def counted(self) -> bool:
        """Whether rows are counted while the step runs."""
        return self.routing != DRAWN and not self.padded

    @property
    def exchanges(self) -> ExpertSchedule:
        """The schedule of what tokens' homes and experts exchange."""
        return ExpertSchedule(self.schedule, self.degree, self.gradients)


USUAL_EXPERTS = Experts()  # all tokens at once, to all experts alike
