"""Work that MagiAttention's benchmark does around attention calls and that no trainer needs.

It calls every context-parallel method through one wrapper (exps/dist_attn/baselines), with one of two backends:

- FLASH, on Hopper: FlashAttention-3. The wrapper gathers real tokens out of padded buffers and scatters results back.
- FUSED, on Blackwell: cuDNN through Transformer Engine, which takes padded buffers as they are and zeroes what it
  writes. Rings and all-gathers repeat k and v to as many heads as q before the backward and sum dk and dv over them.

Both follow Transformer Engine's ring: every partial result is added to zeros, the first too, log-sum-exps are joined by
unfused operations, dk and dv are copied side by side first. zbench.anchors compares with that benchmark.
"""

from typing import Literal

import numpy as np

from zbench.cost.use import Use
from zbench.describe.arrays import Flags, Floats
from zbench.describe.device import Device
from zbench.plans.area import Work

Backend = Literal["", "flash", "fused"]  # "": no wrapper
FLASH: Backend = "flash"
FUSED: Backend = "fused"
# Kernels of one number a document: sequence offsets on a rank (14 small operations, for q and kv each) and cuDNN's.
OFFSETS, RAGGED = 28, 4


def repeated(use: Use) -> Flags:
    """Returns whether FUSED repeats k and v: in all calls but Ulysses' one a rank."""
    return np.asarray(~use.cut | use.shares_q | use.shares_kv, np.bool_)


def staging_seconds(device: Device, row: int, work: Work, use: Use, backward: bool, backend: Backend) -> Floats:
    """Returns the seconds that the wrapper adds to attends, float64 [n]. row: bytes of a token's head."""
    if backend == FUSED:
        return _fused(device, row, work, use, backward)
    return _flash(device, row, work, use, backward)


def join_more_seconds(device: Device, row: int, work: Work, use: Use, backward: bool) -> Floats:
    """Returns the seconds that joining partial results takes beyond one pass over them, float64 [n].

    Forward: the log-sum-exp, in float32, seven unfused operations. Backward: dk and dv side by side.
    """
    size = 4 * use.buffer * use.kv_heads * row if backward else 14 * 4 * work.queries * use.heads
    return np.asarray(size / device.copy_bandwidth + (0 if backward else 6) * device.kernel_seconds, np.float64)


def _flash(device: Device, row: int, work: Work, use: Use, backward: bool) -> Floats:
    """Returns the seconds that FLASH's wrapper adds: real tokens are gathered out of padded buffers (2 passes), results
    scattered into zeros element by element."""
    q, kv = work.queries * use.heads * row, 2 * work.keys * use.kv_heads * row
    read, written = (3 * q + kv, q + kv) if backward else (q + kv, q)
    zeros = q + 2 * use.buffer * use.kv_heads * row if backward else q
    small = (12 if backward else 7) * device.kernel_seconds
    moved = (2 * read + zeros) / device.copy_bandwidth + written / device.strided_rate
    return np.asarray(moved + small, np.float64)


def _fused(device: Device, row: int, work: Work, use: Use, backward: bool) -> Floats:
    """Returns the seconds that FUSED's wrapper adds: results are zeroed; backward also k and v repeated (read and
    written), dk and dv summed (read and written)."""
    q, kv = work.queries * use.heads * row, 2 * use.buffer * use.kv_heads * row
    again = repeated(use)
    small = RAGGED + np.where(again, 0 if backward else OFFSETS, 0)
    size = q
    if backward:
        wide = np.where(again, 2 * use.buffer * use.heads * row, kv)
        size = q + wide + np.where(again, 2 * (wide + kv), 0)
    return np.asarray(size / device.copy_bandwidth + small * device.kernel_seconds, np.float64)
