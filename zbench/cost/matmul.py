"""Seconds of a matmul by its shape: whole tiles, waves of tiles, and what goes through memory. Pure.

A GPU cuts the result of a matmul into tiles, and its multiprocessors take a tile each, one wave of tiles after another.
A tile that sticks out of the result takes as long as a full one, and so does a last wave that leaves multiprocessors
idle (NVIDIA, Matrix Multiplication Background User's Guide, DU-09799-001, sections 2.1, 3.1 and 3.2). So a matmul takes
waves x multiprocessors x the FLOPs of a tile, and never less than its three matrices take through memory. The rate is
Device.matmul_flops for large tiles; smaller ones reuse less of what they load, a b / (a + b) elements of a tile of a by
b, and are slower by that (a guess: the guide has the order of tiles and no rates). The best tile for a shape is taken.
"""

import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.device import Device

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))  # rows and columns of the result
FULL_REUSE = 64.0  # of a tile of 128 x 128, and of larger ones


def matmul_seconds(device: Device, rows: Floats, columns: Floats, inner: Floats, element_bytes: int) -> Floats:
    """Returns the seconds of matmuls of [rows, inner] by [inner, columns], float64 of the arguments' shape.

    Without `device.matmul_shapes` a matmul has the rate `device.matmul_flops` whatever its shape. One without rows,
    columns or inner elements takes no time.
    """
    units = device.multiprocessors
    if not device.matmul_shapes:
        return np.asarray(2 * rows * columns * inner / device.matmul_flops, np.float64)
    made = [
        np.ceil(np.ceil(rows / high) * np.ceil(columns / wide) / units) * high * wide / _rate(high, wide)
        for high, wide in TILES
    ]
    seconds = 2 * units * np.minimum.reduce(made) * inner / device.matmul_flops
    elements = rows * inner + inner * columns + rows * columns
    seconds = np.maximum(seconds, element_bytes * elements / device.copy_bandwidth)
    return np.asarray(np.where(rows * columns * inner > 0, seconds, 0.0), np.float64)


def check_no_shapes(device: Device) -> None:
    """Raises ValueError if a device's matmuls are by shape, where there is one rate for all of them: everywhere but on
    the clock of whole steps."""
    if device.matmul_shapes:
        raise ValueError(
            "cluster.device.matmul_shapes is true (as in world=matmul_shapes); only executor=simulated plays matmuls "
            "by their shape, everything else takes false"
        )


def _rate(high: int, wide: int) -> float:
    """Returns the rate of a tile as a share of large ones'."""
    return min(1.0, high * wide / (high + wide) / FULL_REUSE)
