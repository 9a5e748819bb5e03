"""The degrees of training, p-t-d, and of generation inside each of its replicas, p-t."""

from dataclasses import dataclass

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.model import CUT_BY_SLICES, Model

MOST_GPUS = 2**16  # a judgement, so that a wrong number is told as one


@dataclass(frozen=True, slots=True)
class TrainDegrees:
    """The degrees of pipeline, tensor and data parallelism of training. GPUs are numbered as in Megatron-Core: those of
    a tensor-parallel group first, then of replicas, then of stages."""

    pipeline: int
    tensor: int
    data: int

    @staticmethod
    def of(text: str) -> "TrainDegrees":
        """Reads them of text such as 1-8-2.

        Raises:
            ValueError: it is something else.
        """
        return TrainDegrees(*_numbers("train", text, "p-t-d (pipeline, tensor, data), as in 1-8-2", 3))

    @property
    def num_gpus(self) -> int:
        """The number of GPUs."""
        return self.pipeline * self.tensor * self.data

    @property
    def replicas(self) -> Ints:
        """The GPUs of every replica, stage by stage, int64 [replicas, GPUs of one]."""
        grid = np.arange(self.num_gpus).reshape(self.pipeline, self.data, self.tensor)
        return grid.transpose(1, 0, 2).reshape(self.data, -1)

    @property
    def places(self) -> tuple[Ints, Ints]:
        """The stage of every GPU and its slice of the layers there, int64 [GPUs] each."""
        every = np.arange(self.num_gpus)
        return every // (self.tensor * self.data), every % self.tensor

    def __str__(self) -> str:
        return f"{self.pipeline}-{self.tensor}-{self.data}"


@dataclass(frozen=True, slots=True)
class GenerateDegrees:
    """The degrees of pipeline and tensor parallelism of generation. A replica of training is as many of generation as
    it has room for."""

    pipeline: int
    tensor: int

    @staticmethod
    def of(text: str, field: str = "generate") -> "GenerateDegrees":
        """Reads them of text such as 1-2. field: that has it, for sentences.

        Raises:
            ValueError: it is something else.
        """
        return GenerateDegrees(*_numbers(field, text, "p-t (pipeline, tensor), as in 1-2", 2))

    @property
    def num_gpus(self) -> int:
        """The number of GPUs of a replica."""
        return self.pipeline * self.tensor

    def __str__(self) -> str:
        return f"{self.pipeline}-{self.tensor}"


def check_degrees(train: TrainDegrees, generate: GenerateDegrees, model: Model) -> None:
    """Raises ValueError unless the degrees of generation divide those of training, and these the model."""
    for name in ("pipeline", "tensor"):
        if getattr(train, name) % getattr(generate, name):
            raise ValueError(
                f"generate is {generate}; its {name} degree has to divide that of train={train}, {getattr(train, name)}"
            )
    _check_model("train", train, model)


def check_own_gpus(train: TrainDegrees, generate: GenerateDegrees, model: Model) -> None:
    """Raises ValueError unless both degrees divide the model, as they have to where generation has GPUs of its own."""
    _check_model("train", train, model)
    _check_model("generate", generate, model)


def _check_model(field: str, degrees: TrainDegrees | GenerateDegrees, model: Model) -> None:
    if model.num_layers % degrees.pipeline:
        raise ValueError(
            f"{field} is {degrees}; its pipeline degree has to divide num_layers={model.num_layers} of model "
            f"{model.name}"
        )
    for name in CUT_BY_SLICES:
        if (size := getattr(model, name)) % degrees.tensor:
            told = f"{field} is {degrees}; its tensor degree has to divide {name}={size}"
            raise ValueError(f"{told} of model {model.name}")


def _numbers(field: str, text: str, takes: str, count: int) -> list[int]:
    words = text.split("-")
    numbers = [int(word) if word.isascii() and word.isdigit() else 0 for word in words]
    if len(words) != count or not all(1 <= number <= MOST_GPUS for number in numbers):
        raise ValueError(f"{field} is {text!r}; it takes {takes}")
    return numbers
