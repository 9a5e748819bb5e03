"""Degrees by which a micro-batch finds parameters and leaves them.

With pipeline stages forwards of other micro-batches come between a forward and its backward, and find what stays of a
layer's parameters for backwards. So it stays from a stage's first forward to its last backward, and those forwards
gather from it: parameters of a layer come from all that have them in a step once. Where as many GPUs have what stays as
have parameters in a step, both are the same.
"""

from dataclasses import dataclass

from zbench.describe.degrees import ShardDegrees


@dataclass(frozen=True, slots=True)
class HeldParameters:
    """A micro-batch among those of a step. degrees: of parameters. number, count: which of how many it is.
    staged: whether it goes through a job's pipeline stages."""

    degrees: ShardDegrees
    number: int
    count: int
    staged: bool

    @property
    def _stays(self) -> bool:
        """Whether what stays for backwards is other than what a step holds, and stays between micro-batches."""
        return self.staged and self.degrees.secondary != self.degrees.weights

    @property
    def finds_copies(self) -> bool:
        """Whether the forward finds what stays of layers' parameters for backwards."""
        return self._stays and self.number > 0

    @property
    def before(self) -> int:
        """The degree by which the forward finds parameters of no layer: in the first one as they rest between steps."""
        return self.degrees.optimizer if self.number == 0 else self.degrees.weights

    @property
    def of_layers_before(self) -> int:
        """The degree by which the forward finds parameters of layers."""
        return self.degrees.secondary if self.finds_copies else self.before

    @property
    def of_layers_after(self) -> int:
        """The degree by which the backward leaves parameters of layers."""
        return self.degrees.secondary if self._stays and self.number + 1 < self.count else self.degrees.weights
