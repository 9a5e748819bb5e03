"""The job of processes that generate as Seesaw does, and what they answer with. Imports no torch."""

from dataclasses import dataclass

from zbench.describe.arrays import Ints
from zbench.describe.model import Model
from zbench.rollouts.degrees import GenerateDegrees


@dataclass(frozen=True)
class SeesawJob:
    """The job of replicas that follow one another. host_tokens: that host memory has room for, of a replica's keys and
    values; gpu_tokens: that its GPUs have; pass_tokens: of a pass that reads prompts. limit: of tokens of a response.

    Raises:
        ValueError: layouts take different numbers of processes, or do not divide the model.
    """

    model: Model
    prefill: GenerateDegrees
    decode: GenerateDegrees
    replicas: int
    host_tokens: int
    gpu_tokens: int
    pass_tokens: int
    limit: int
    seed: int

    def __post_init__(self) -> None:
        if self.prefill.num_gpus != self.decode.num_gpus:
            raise ValueError(f"prefill is {self.prefill} and decode {self.decode}; they take as many processes")
        for name, layout in (("prefill", self.prefill), ("decode", self.decode)):
            for degree, size in (
                (layout.pipeline, self.model.num_layers),
                (layout.tensor, self.model.num_kv_heads),
                (layout.tensor, self.model.ffn_hidden),
                (layout.tensor, self.model.vocab),
            ):
                if size % degree:
                    raise ValueError(f"{name} is {layout}; {degree} has to divide {size} of model {self.model.name}")

    @property
    def num_ranks(self) -> int:
        """The processes that it takes."""
        return self.replicas * self.decode.num_gpus


@dataclass(frozen=True)
class SeesawReport:
    """The outcome of a process. tokens: of each sequence of its replica, prompt and response, by number. loads: how
    often it loaded a layout's weights, at the begin, too. weights, written, read: bytes that it copied: of weights from
    the host, of keys and values to it and from it. most: sequences that decoded at once."""

    tokens: dict[int, Ints]
    loads: int
    weights: int
    written: int
    read: int
    most: int
