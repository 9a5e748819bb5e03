"""Layers of a model on the stages of a pipeline: how many each has, and of how many of these something runs again. Pure
data."""

ALL_LAYERS = "all"  # in place of a number of layers of a stage
EVEN = "even"  # stages of as many layers each, in place of their numbers


class StagedLayers:
    """Properties of a model that follow from its stages; zbench.describe.model.Model has the fields, and what they
    mean."""

    __slots__ = ()
    name: str
    num_layers: int
    pipeline_parallel: int
    recompute: str
    recompute_layers: int | str | tuple[int, ...]
    stage_layers: str | tuple[int, ...]

    @property
    def layers_of_stages(self) -> tuple[int, ...]:
        """The number of layers of every stage: as many each as can be, the later ones one more where they do not
        divide, unless `stage_layers` has their numbers."""
        if not isinstance(self.stage_layers, str):
            return self.stage_layers
        layers, stages = self.num_layers, self.pipeline_parallel
        return tuple((at + 1) * layers // stages - at * layers // stages for at in range(stages))

    @property
    def stages_differ(self) -> bool:
        """Whether stages have layers of their own numbers, or recompute of their own numbers of these."""
        alike = self.stage_layers == EVEN and isinstance(self.recompute_layers, int | str)
        return self.pipeline_parallel > 1 and not alike

    @property
    def recomputed_of_stages(self) -> tuple[int, ...]:
        """The layers of every stage of which something runs again."""
        if self.recompute == "none":
            return (0,) * self.pipeline_parallel
        every, again = self.layers_of_stages, self.recompute_layers
        if isinstance(again, str):
            return every
        most = (again,) * len(every) if isinstance(again, int) else again
        return tuple(map(min, zip(most, every, strict=True)))

    @property
    def recomputed_layers(self) -> int:
        """Layers of all stages of which something runs again."""
        return sum(self.recomputed_of_stages)

    @property
    def recomputed_share(self) -> float:
        """The share of layers of which something runs again."""
        return self.recomputed_layers / self.num_layers

    @property
    def forwards_again(self) -> float:
        """The share of layers whose whole forward runs again."""
        return self.recomputed_share if self.recompute == "full" else 0.0

    def check_stages(self) -> None:
        """Refuses numbers of layers that are not of these stages.

        Raises:
            ValueError: the message names the key.
        """
        stages, layers = self.pipeline_parallel, self.num_layers
        have, again = self.stage_layers, self.recompute_layers
        if not isinstance(have, str) and (len(have) != stages or sum(have) != layers):
            numbers = (
                f"{stages} numbers of layers that add up to the {layers} of {self.name}, or " if stages > 1 else ""
            )
            raise ValueError(
                f"parallel.stage_layers is {bracketed(have)}; with parallel.pipeline_parallel={stages} it takes "
                f"{numbers}{EVEN}"
            )
        if isinstance(again, str):
            return
        every = self.layers_of_stages
        if isinstance(again, int):
            if again > min(every):
                listed = f", a list of up to {bracketed(every)}, one for each stage," if len(every) > 1 else ""
                raise ValueError(
                    f"recompute.layers is {again}; a stage of {self.name} has {min(every)} of its layers, so it "
                    f"takes a whole number from 1 to {min(every)}{listed or ','} or {ALL_LAYERS}"
                )
        elif len(again) != stages or any(one > most for one, most in zip(again, every, strict=True)):
            raise ValueError(
                f"recompute.layers is {bracketed(again)}; stages of {self.name} have {bracketed(every)} "
                f"layers, so it takes as many numbers, none above its stage's, or {ALL_LAYERS}"
            )


def bracketed(value: object) -> object:
    """Returns numbers as a command line has them, as in [3,2]; what is no list stays as it is."""
    return f"[{','.join(map(str, value))}]" if isinstance(value, list | tuple) else value
