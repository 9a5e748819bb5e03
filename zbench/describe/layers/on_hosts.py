"""Layers of a model whose parameters or optimizer state rest in host memory, and when CPUs update them. Pure data."""

from typing import TypeGuard

from zbench.describe.pipeline.staged_layers import ALL_LAYERS

NOWHERE = "none"  # in place of a number of layers whose parameters are on hosts
CHOSEN = "auto"  # in place of a number of layers: the one of which a step takes least time, of those that fit
AS_GRADIENTS_COME, AFTER_BACKWARD, ACROSS_STEPS = HOST_UPDATES = (
    "as_gradients_come", "after_backward", "across_steps"
)  # fmt: skip


class LayersOnHosts:
    """Properties of a model that follow from what of its layers rests in host memory; zbench.describe.model.Model has
    the fields, and what they mean."""

    __slots__ = ()
    num_layers: int
    offload: str
    optimizer_layers: int | str
    parameter_layers: int | str
    host_updates: str
    carried_layers: int | str

    @property
    def optimizer_on_hosts(self) -> bool:
        """Whether optimizer state is in host memory, of some layers at least, and updated there."""
        return "optimizer" in self.offload.split("_and_")

    @property
    def layers_updated_on_hosts(self) -> int:
        """The layers, the last ones, whose optimizer state is in host memory; of those that are open, all."""
        if not self.optimizer_on_hosts:
            return 0
        return (
            self.num_layers if isinstance(self.optimizer_layers, str) else min(self.optimizer_layers, self.num_layers)
        )

    @property
    def layers_carried(self) -> int:
        """The layers whose gradients stay in host memory for the next step to update with; of those that are open,
        all whose optimizer state is there."""
        if self.host_updates != ACROSS_STEPS:
            return 0
        most = self.layers_updated_on_hosts
        return most if isinstance(self.carried_layers, str) else min(self.carried_layers, most)

    @property
    def parameters_on_hosts(self) -> int:
        """The layers, the first ones, whose parameters rest in host memory; of those that are open, all."""
        if isinstance(self.parameter_layers, str):
            return 0 if self.parameter_layers == NOWHERE else self.num_layers
        return min(self.parameter_layers, self.num_layers)

    @property
    def uses_hosts(self) -> bool:
        """Whether anything is in host memory."""
        return self.offload != "none" or self.parameters_on_hosts > 0

    @property
    def told_of_hosts(self) -> str:
        """The key that has something in host memory, for sentences."""
        key = "offload" if self.offload != "none" else "parameter_layers"
        return f"memory.{key} is {getattr(self, key)}"

    @property
    def rests_on_hosts(self) -> bool:
        """Whether optimizer state or parameters are in host memory, from step to step."""
        return self.optimizer_on_hosts or self.parameters_on_hosts > 0

    @property
    def told_of_resting(self) -> str:
        """The key by which either is, for sentences."""
        key = "offload" if self.optimizer_on_hosts else "parameter_layers"
        return f"memory.{key} is {getattr(self, key)}"


def check_on_hosts(optimizer: int | str, parameters: int | str, updates: tuple[str, int | str], on_hosts: bool) -> None:
    """Refuses layers whose optimizer state or parameters cannot be in host memory. updates: when, and of how many
    layers gradients are carried. on_hosts: whether any optimizer state is.

    Raises:
        ValueError: the message names the key.
    """
    when, carried = updates
    for key, value, words in (
        ("optimizer_layers", optimizer, (ALL_LAYERS, CHOSEN)),
        ("carried_layers", carried, (ALL_LAYERS, CHOSEN)),
        ("parameter_layers", parameters, (NOWHERE, ALL_LAYERS, CHOSEN)),
    ):
        if value not in words and not (_is_whole(value) and 1 <= value <= 2**24):
            raise ValueError(
                f"memory.{key} is {value!r}; it takes a whole number from 1 to {2**24}, {', '.join(words[:-1])} or "
                f"{words[-1]}"
            )
    if when not in HOST_UPDATES:
        raise ValueError(
            f"memory.host_updates is {when!r}; it takes {', '.join(HOST_UPDATES[:-1])} or {HOST_UPDATES[-1]}"
        )
    if carried != ALL_LAYERS and when != ACROSS_STEPS:
        raise ValueError(
            f"memory.carried_layers is {carried}; with memory.host_updates={when} it takes {ALL_LAYERS}, or "
            f"memory.host_updates={ACROSS_STEPS} beside it"
        )
    for key, value, usual in (
        ("optimizer_layers", optimizer, ALL_LAYERS),
        ("host_updates", when, AS_GRADIENTS_COME),
    ):
        if value != usual and not on_hosts:
            raise ValueError(
                f"memory.{key} is {value}; without optimizer state in memory.offload it takes {usual}, or "
                "memory.offload=optimizer beside it"
            )


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
