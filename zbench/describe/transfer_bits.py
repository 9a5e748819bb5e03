"""Bits of a value in transfers of parameters and gradients, which carry blocks of whole numbers with a scale each.

A value of a block is a whole number times the block's scale, the largest absolute value of the block over the largest
such number (127 of 8 bits, 7 of 4), as block quantisation is in ZeRO++ (Wang et al. 2023, arXiv 2306.10209).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from zbench.describe.checks import check_whole_number

SCALE_BYTES = 4  # of a block: a float32, as deepspeed's quantizer has them
BLOCK = 4096  # the best number of values a scale, as deepspeed 0.19.8 says beside its own (partition_parameters.py)
MOST_BLOCK = 2**30
KINDS = ("weights", "secondary", "gradients", "updates")
PARAMETER_KINDS = ("weights", "secondary", "updates")
FEW = (4, 8)


@dataclass(frozen=True)
class TransferBits:
    """Bits of a value in each kind of transfer, None: as it is computed with.

    weights: parameters, gathered for a forward. secondary: what stays of them, gathered for a backward. gradients:
    reduced, in every micro-batch and over the rest. updates: updated parameters, on their way from where they rest to
    where they are held in a step. block: values that share a scale.
    """

    weights: int | None = None
    secondary: int | None = None
    gradients: int | None = None
    updates: int | None = None
    block: int = BLOCK

    @staticmethod
    def of(given: Any) -> "TransferBits":
        """Reads bits by name, as a yaml has them; None: no transfer has fewer.

        Raises:
            ValueError: they are something else, or no transfer can have them.
        """
        if given is None:
            return PLAIN
        if not isinstance(given, Mapping) or set(given) - {*KINDS, "block"}:
            raise ValueError(f"sharding.bits is {given!r}; it takes null, or some of {', '.join(KINDS)} and block")
        for name in KINDS:
            bits = given.get(name)
            if bits is not None and (isinstance(bits, bool) or bits not in FEW):
                raise ValueError(
                    f"sharding.bits.{name} is {bits!r}; it takes 4, 8, or null for as many as values are computed with"
                )
        check_whole_number("sharding.bits.block", given.get("block", BLOCK), 1, MOST_BLOCK)
        return TransferBits(**given)

    def __str__(self) -> str:
        told = [f"{name}{bits}" for name, bits in asdict(self).items() if name in KINDS and bits is not None]
        return "+".join([*told, f"block{self.block}"]) if told else ""

    def of_kind(self, kind: str) -> int | None:
        """Returns the bits of a kind of transfer."""
        bits: int | None = getattr(self, kind)
        return bits

    def value_bytes(self, kind: str, plain: float) -> float:
        """Returns the bytes of a value in a kind of transfer, its share of a scale included. plain: without bits."""
        bits = self.of_kind(kind)
        return plain if bits is None else bits / 8 + SCALE_BYTES / self.block


PLAIN = TransferBits()


def largest_code(bits: int) -> int:
    """Returns the largest whole number that a value of so many bits is; the smallest is its negative."""
    return (1 << bits - 1) - 1
