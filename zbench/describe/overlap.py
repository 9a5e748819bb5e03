"""The exchanges of a step that are beside the work of its layers: parameter gathers and gradient reductions, as
frameworks say, at once or in two levels, what tensor-parallel groups and experts exchange, and whose tokens'
activations go to host memory.

Pure data: conf/sharding sets it with a yaml for each framework's default, conf/overlap and conf/experts with one for
each method, zbench.step.passes builds it.
"""

from dataclasses import dataclass
from math import lcm

from zbench.describe.checks import check_choice, is_whole
from zbench.describe.exchanges import WHOLE, ExchangeOverlap, TokenSlices
from zbench.describe.expert_schedule import BETWEEN, TOGETHER_AT_ONCE, ExpertChunks

ALL, BACKWARD = "all", "backward"  # of a window
LAYER, END = "layer", "end"  # of buckets
FLAT, HIERARCHICAL = "flat", "hierarchical"  # of collectives


@dataclass(frozen=True, slots=True)
class StepOverlap:
    """The layers whose parameters are gathered ahead, those whose gradients are reduced together, and how exchanges of
    tensor-parallel groups and of experts go beside matmuls.

    window: layers whose parameters are gathered ahead of the one under way; or ALL: every layer's are gathered before
        a step's first forward begins, and nothing is computed meanwhile; or BACKWARD: one in a backward, in a forward
        none.
    gradient_bucket: LAYER, a layer's gradients are reduced when its backward has made them; a number of a GPU's
        parameters, those of as many layers as it has room for are reduced when the last of these are made; or END, all
        of a stage's are reduced after its last backward, and nothing is computed meanwhile.
    collectives: FLAT, a gather or reduction is one operation among all its GPUs; or HIERARCHICAL, those of parameters
        and gradients over several nodes are of as many operations as a node has GPUs, among those of one number in all
        nodes, and of one in each node (zbench.step.passes.two_levels).
    exchanges: of tensor-parallel groups (zbench.describe.exchanges). experts: the chunks in which tokens go to experts
        (zbench.describe.expert_schedule).
    shares: of each plan and each of its sequences the share of tokens of which something waits in host memory where it
        does of a layer, chosen for a batch (zbench.simulated.offloading) or the run's; (): of all tokens.

    Raises:
        ValueError: one of them cannot be; the message names its key.
    """

    window: int | str = 1
    gradient_bucket: int | float | str = LAYER
    exchanges: ExchangeOverlap = WHOLE
    experts: ExpertChunks = TOGETHER_AT_ONCE
    collectives: str = FLAT
    shares: tuple[tuple[float, ...], ...] = ()

    def __post_init__(self) -> None:
        window = self.window
        if window not in (ALL, BACKWARD) and not (is_whole(window) and window >= 0):
            raise ValueError(
                f"sharding.window is {window!r}; it takes a whole number of at least 0, {ALL} or {BACKWARD}"
            )
        size = self.gradient_bucket
        whole = is_whole(size) or (isinstance(size, float) and size.is_integer())
        if size not in (LAYER, END) and not (whole and size >= 1):  # type: ignore[operator]
            raise ValueError(
                f"sharding.gradient_bucket is {size!r}; it takes {LAYER}, {END}, or a whole number of a GPU's "
                "parameters, as 500000000"
            )
        if self.experts.gradients is not None and size != LAYER:
            raise ValueError(
                f"sharding.gradient_bucket is {size}; with experts.gradients={BETWEEN} a layer's gradients are reduced "
                f"between experts' messages of the next one, so it takes {LAYER}"
            )
        check_choice("sharding.collectives", self.collectives, (FLAT, HIERARCHICAL))

    @staticmethod
    def of(window: "int | StepOverlap") -> "StepOverlap":
        """Returns an overlap itself, or that of a window alone."""
        return window if isinstance(window, StepOverlap) else StepOverlap(window)

    @property
    def token_slices(self) -> TokenSlices:
        """The slices of a GPU's own tokens of which slices of exchanges and chunks of experts are made."""
        number = lcm(self.exchanges.count, self.experts.forward, self.experts.backward)
        return self.exchanges.token_slices._replace(number=number)

    @property
    def gathers_first(self) -> bool:
        """Whether all parameters are gathered before anything is computed."""
        return self.window == ALL

    @property
    def layers_ahead(self) -> int:
        """The layers that are gathered ahead while another one is under way, in a backward."""
        return int(self.window == BACKWARD) if isinstance(self.window, str) else self.window

    @property
    def forward_ahead(self) -> int:
        """The layers that are gathered ahead while another one is under way, in a forward."""
        return 0 if isinstance(self.window, str) else self.window


USUAL = StepOverlap()  # as FSDP2 has it
