"""Layers of a model whose parameters or optimizer state rest in host memory, and when CPUs update them. Pure data."""

NOWHERE = "none"  # in place of a number of layers whose parameters are on hosts
AS_GRADIENTS_COME, AFTER_BACKWARD, ACROSS_STEPS = HOST_UPDATES = (
    "as_gradients_come", "after_backward", "across_steps"
)  # fmt: skip


class HostUse:
    """Properties that follow from what is in host memory, of a model and of a run's memory group, which have the fields
    (zbench.describe.model.Model says what they mean): whether it rests there, and the key that says so."""

    __slots__ = ()
    offload: str
    parameter_layers: int | str

    @property
    def optimizer_on_hosts(self) -> bool:
        """Whether optimizer state is in host memory, of some layers at least, and updated there."""
        return "optimizer" in self.offload.split("_and_")

    @property
    def activations_on_hosts(self) -> bool:
        """Whether all that layers keep waits in host memory."""
        return "activations" in self.offload.split("_and_")

    @property
    def layers_on_hosts(self) -> bool:
        """Whether something that layers keep, inputs or activations, waits in host memory."""
        return self.activations_on_hosts or "inputs" in self.offload.split("_and_")

    @property
    def uses_hosts(self) -> bool:
        """Whether anything is in host memory."""
        return self.offload != NOWHERE or self.parameter_layers != NOWHERE

    @property
    def told_of_hosts(self) -> str:
        """The key that has something there, for sentences."""
        return self._told("offload" if self.offload != NOWHERE else "parameter_layers")

    @property
    def parameters_rest_on_hosts(self) -> bool:
        """Whether parameters are in host memory alone between steps, of some layers at least."""
        return self.parameter_layers != NOWHERE

    @property
    def rests_on_hosts(self) -> bool:
        """Whether optimizer state or parameters are in host memory, from step to step."""
        return self.optimizer_on_hosts or self.parameters_rest_on_hosts

    def _told(self, key: str) -> str:
        return f"memory.{key} is {getattr(self, key)}"


class LayersOnHosts(HostUse):
    """Properties of a model that follow from what of its layers rests in host memory; zbench.describe.model.Model has
    the fields, and what they mean."""

    __slots__ = ()
    num_layers: int
    offload_layers: int | str
    optimizer_layers: int | str
    host_updates: str
    carried_layers: int | str

    def most_offloaded(self, layers: int) -> int:
        """Returns the most layers of a stage of so many of which something can wait in host memory: the last one's
        activations stay."""
        return layers - self.activations_on_hosts if self.layers_on_hosts else 0

    def offloaded_layers(self, layers: int) -> int:
        """Returns the layers of a stage of so many of which something waits in host memory; of those that are open, the
        most."""
        most = layers if isinstance(self.offload_layers, str) else self.offload_layers
        return min(most, self.most_offloaded(layers))

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
