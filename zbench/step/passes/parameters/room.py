"""Checks that a GPU has room for parameters gathered ahead and for gradients reduced together, whatever its tokens.

Both are whole for a moment beside what every GPU keeps of parameters and optimizer state all the time. Where that alone
is more than its memory no batch has a step, so a run is refused before it begins. What fits here may still be too much
with activations, which is the verdict of each step's account.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from zbench.step.passes.parameters.weights import weight_elements
from zbench.step.passes.parameters.zero import GRADIENT_BYTES, MOMENT_BYTES, ShardedParameters
from zbench.step.tensor import FOLLOWING, LEADING


@dataclass(frozen=True)
class _Room:
    """A GPU of a stage of `layers` layers, with so many bytes of memory."""

    of: ShardedParameters
    layers: int
    memory: float

    @cached_property
    def _of_kinds(self) -> Mapping[str, int]:
        """The stage's layers that are dense where others have experts, and those others. Of one stage of several,
        which may have none of the former, all count as the latter."""
        leading = self.of.model.dense_layers if self.layers == self.of.model.num_layers else 0
        return {LEADING: leading, FOLLOWING: self.layers - leading}

    def kept(self, degree: int) -> float:
        """Returns the bytes of parameters that are cut over so many groups, and of optimizer state; without those of
        the table and the head where these are on different stages."""
        of, elements, optimizer = self.of, weight_elements(self.of.model), self.of.degrees.optimizer
        counts = {name: self._of_kinds.get(of.kinds[name], self.layers) for name in of.of_layers}
        if self.layers == of.model.num_layers:
            counts |= dict.fromkeys(of.outside, 1)
        model, found = of.model, 0.0
        updated, leading = model.layers_updated_on_hosts, self._of_kinds[LEADING]
        resting = min(model.parameters_on_hosts, self.layers)  # of a stage, the most that may be
        rest_of = {LEADING: min(resting, leading), FOLLOWING: max(resting - leading, 0)}
        every = updated == model.num_layers  # else a stage's layers, or a kind's, may be those whose state is here
        updated = updated if self.layers == model.num_layers and not model.dense_layers else 0
        for name, count in counts.items():
            inside = name in of.of_layers
            moments = 0 if every else count - updated if inside else count
            here = count - rest_of.get(of.kinds[name], resting) if inside else count
            found += elements[name] * model.element_bytes * here / of.every(name, degree)
            found += elements[name] * MOMENT_BYTES * moments / of.every(name, optimizer)
        return found

    def gathered(self, layers: int) -> float:
        """Returns the most bytes that the parameters of so many layers take, without the part of them that a GPU keeps
        in any case."""
        of, size = self.of, self.of.model.element_bytes
        parts = {name: of.slices(name)[1] / of.every(name, of.degrees.secondary) for name in of.of_layers}
        return self._most(layers, {name: size * (1 - part) for name, part in parts.items()}, True)

    def reduced(self, layers: int) -> float:
        """Returns the most bytes that the gradients of so many layers take."""
        each = dict.fromkeys(self.of.of_layers, float(max(GRADIENT_BYTES, self.of.model.element_bytes)))
        return self._most(layers, each, self.of.reduced_last)

    def _most(self, layers: int, each: Mapping[str, float], of_both: bool) -> float:
        """Returns the most bytes that so many layers of one kind have; of both kinds, all of the stage's. each: bytes
        of a parameter of every weight. of_both: whether both are there together."""
        of, elements = self.of, weight_elements(self.of.model)
        sizes = {
            kind: sum(each[name] * (elements[name] // of.slices(name)[1]) for name in of.of_kind(kind))
            for kind in self._of_kinds
        }
        if of_both and layers == self.layers:
            return sum(count * sizes[kind] for kind, count in self._of_kinds.items())
        return max(min(layers, count) * sizes[kind] for kind, count in self._of_kinds.items())


def check_room(parameters: ShardedParameters, stage_layers: int, memory_bytes: float) -> None:
    """Refuses layers gathered ahead, and buckets of gradients, that do not fit a GPU's memory beside what it keeps of
    parameters and optimizer state. Where not even one layer fits, neither is the cause, and nothing is refused here.

    stage_layers: the most layers of a stage.

    Raises:
        ValueError: one does not; the message names its key, what it takes, what is there, and the largest that fits.
    """
    of, room = parameters, _Room(parameters, stage_layers, memory_bytes)
    ahead = min(1 + of.window, stage_layers) if of.gathered else 0
    together = min(of.bucket_layers, stage_layers) if of.in_buckets else 0
    # A backward begins with all parameters as forwards leave them, and ends with them as forwards take them.
    forward, backward = room.kept(of.degrees.secondary), room.kept(of.degrees.weights)
    for key, value, what, layers, bytes_of, kept in (
        ("window", of.overlap.window, "parameters", ahead, room.gathered, forward),
        ("gradient_bucket", of.overlap.gradient_bucket, "gradients", together, room.reduced, backward),
    ):
        free = memory_bytes - kept
        fitting = max((some for some in range(1, layers + 1) if bytes_of(some) <= free), default=0)
        if fitting in (0, layers):
            continue
        most, told = f"at most {fitting - 1}", value if isinstance(value, str) else f"{value:.0f}"
        if key == "gradient_bucket":
            most = f"layer, or less than {(fitting + 1) * of.layer_elements} parameters, {fitting} layers"
        raise ValueError(
            f"sharding.{key} is {told}; the {what} of {layers} layers of {of.model.name} take "
            f"{bytes_of(layers) / 2**30:.1f} GiB on every GPU, of whose {memory_bytes / 2**30:.1f} GiB "
            f"{free / 2**30:.1f} are left beside parameters and optimizer state: it takes {most}"
        )
