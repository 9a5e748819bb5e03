"""Cells in fewer bits: block quantisation of what an encoded transfer carries.

Every cell is encoded by itself, its values in the order in which they lie, in blocks: a scale of float32 for each, the
largest absolute value over the largest code, and a code for each value, the nearest multiple of the scale, halves away
from zero. A message has the scales of its cells, then their codes; those of 4 bits lie two in a byte. What a value
loses is at most half a scale.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from zbench.describe.degrees import SCALE_BYTES, largest_code
from zbench.runtime.handlers.formats import Fields, Format
from zbench.runtime.handlers.store import Slab
from zbench.runtime.kernels.memory import bytes_of
from zbench.runtime.steps.instructions import Cell, Parts
from zbench.step.template import AWAY_FROM_TIES, Encoding

RUN_BITS = (4, 8)


def check_runs(encodings: Sequence[Encoding]) -> None:
    """Refuses encodings that are not block quantisation.

    Raises:
        ValueError: there is one.
    """
    for one in encodings:
        if one.bits not in RUN_BITS or not one.block:
            blocks = f"blocks of {one.block}" if one.block else "no blocks"
            raise ValueError(
                f"encoding {one.name} has {one.bits} bits and {blocks}; those that run have 4 or 8, in blocks"
            )


def encoded_bytes(of: Format, cells: tuple[Parts, Parts], encoding: Encoding | None) -> int:
    """Returns the bytes of a message with the cells of two lists."""
    if encoding is None:
        return of.num_bytes(*cells)
    return sum(sum(_sizes(of, cell, encoding)) for cell in of.pairs(*cells))


def _sizes(of: Format, cell: Cell, encoding: Encoding) -> tuple[int, int]:
    """Returns the bytes of a cell's scales and of its codes."""
    values = of.num_bytes((cell[0],), (cell[1],)) // encoding.of
    return SCALE_BYTES * -(-values // encoding.block), -(-values * encoding.bits // 8)


def _cells(of: Format, cells: tuple[Parts, Parts], fields: Fields) -> Iterator[tuple[Cell, Tensor]]:
    """Yields every cell of a piece, as a view."""
    slab = Slab.of(of, *cells, fields)
    for a, b in of.pairs(*cells):
        found = slab.part(((a,), (b,)))
        assert found is not None, "a cell lies together"
        yield (a, b), found[0]


@dataclass(frozen=True)
class EncodedCells:
    """Cells as they travel. parts: of each its scales, float32, and the bytes of its codes."""

    encoding: Encoding
    parts: Mapping[Cell, tuple[Tensor, Tensor]]

    @staticmethod
    def of(given: Format, cells: tuple[Parts, Parts], fields: Fields, encoding: Encoding) -> "EncodedCells":
        """Encodes cells."""
        found = {}
        for cell, value in _cells(given, cells, fields):
            scales, codes = _quantised(value.reshape(-1), encoding)
            found[cell] = scales, _packed(codes, encoding.bits)
        return EncodedCells(encoding, found)

    @staticmethod
    def arrived(message: Tensor, given: Format, cells: tuple[Parts, Parts], encoding: Encoding) -> "EncodedCells":
        """Returns the cells of a message."""
        sizes = {cell: _sizes(given, cell, encoding) for cell in given.pairs(*cells)}
        each = [size for of_cell in zip(*sizes.values(), strict=True) for size in of_cell]
        parts = message.split(each)
        scales, codes = parts[: len(sizes)], parts[len(sizes) :]
        pairs = zip(sizes, scales, codes, strict=True)
        return EncodedCells(encoding, {cell: (one.view(torch.float32), other) for cell, one, other in pairs})

    @property
    def message(self) -> Tensor:
        """The bytes of all cells."""
        scales, codes = zip(*self.parts.values(), strict=True)
        return torch.cat([*(bytes_of(one) for one in scales), *codes])

    @property
    def lost(self) -> dict[Cell, float]:
        """The most that a value of each cell has lost, half a scale."""
        return {cell: float(scales.max()) / 2 if len(scales) else 0.0 for cell, (scales, _) in self.parts.items()}

    def fields(self, given: Format, cells: tuple[Parts, Parts]) -> Fields:
        """Returns the fields of the cells."""
        dtype = given.fields[0][1]
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        device = next(iter(self.parts.values()))[0].device
        found = torch.empty(given.shape(0, *cells), dtype=dtype, device=device)
        for cell, view in _cells(given, cells, (found,)):
            scales, data = self.parts[cell]
            count = view.numel()
            of_each = scales.repeat_interleave(self.encoding.block)[:count].to(wide)
            view.copy_((_unpacked(data, self.encoding.bits, count).to(wide) * of_each).view(view.shape))
        return (found,)


def _quantised(values: Tensor, encoding: Encoding) -> tuple[Tensor, Tensor]:
    """Returns the scales of blocks, and the codes of values, int8. A block with what is no number is none of all."""
    wide = values.to(torch.float64 if values.dtype == torch.float64 else torch.float32)
    count, most = len(wide), largest_code(encoding.bits)
    blocks = torch.nn.functional.pad(wide, (0, -count % encoding.block)).view(-1, encoding.block)
    largest = blocks.abs().amax(1) if len(blocks) else wide.new_zeros(0)
    scales = (largest / most * AWAY_FROM_TIES).to(torch.float32)
    over = scales.to(wide.dtype)[:, None]
    codes = torch.where(over > 0, blocks / over * AWAY_FROM_TIES, 0.0).nan_to_num(0.0).round().clamp(-most, most)
    return scales, codes.to(torch.int8).view(-1)[:count]


def _packed(codes: Tensor, bits: int) -> Tensor:
    """Returns codes as bytes."""
    if bits == 8:
        return codes.view(torch.uint8)
    pairs = torch.nn.functional.pad(codes, (0, len(codes) % 2)).view(-1, 2).to(torch.int16) & 15
    return (pairs[:, 0] | (pairs[:, 1] << 4)).to(torch.uint8)


def _unpacked(data: Tensor, bits: int, count: int) -> Tensor:
    """Returns the codes of bytes, int8."""
    if bits == 8:
        return data.view(torch.int8)
    pairs = torch.stack([data & 15, data >> 4], dim=1).view(-1)[:count].to(torch.int8)
    return torch.where(pairs > 7, pairs - 16, pairs)
