"""Values after an encoded transfer, for the emulation of a step in one process: block quantisation in float64, written
for itself, so that what processes send can be compared with it."""

import numpy as np

from zbench.describe.arrays import Floats
from zbench.step.template import AWAY_FROM_TIES, Encoding


def after_transfer(value: Floats, encoding: Encoding | None) -> Floats:
    """Returns a cell as it arrives: of each block of its values the nearest multiples of the block's scale, which is
    its largest absolute value over the largest code, in float32, halves away from zero; as it was without a lossy
    encoding."""
    if encoding is None or not encoding.lossy:
        return value
    flat, most = np.asarray(value, np.float64).reshape(-1), 2 ** (encoding.bits - 1) - 1
    found = np.zeros_like(flat)
    for begin in range(0, len(flat), encoding.block or max(len(flat), 1)):
        part = flat[begin : begin + (encoding.block or len(flat))]
        scale = float(np.float32(np.abs(part).max() / most * AWAY_FROM_TIES))
        if scale > 0:
            found[begin : begin + len(part)] = np.clip(np.rint(part / scale * AWAY_FROM_TIES), -most, most) * scale
    return found.reshape(np.shape(value))
