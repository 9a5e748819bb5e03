"""Seconds of flash-attention calls: tiles at the kernel's rate, rows through memory, starts of kernels.

docs/cost.md derives each term. Pure: no torch.
"""

import numpy as np

from zbench.describe.arrays import Floats
from zbench.describe.curve import Curve
from zbench.describe.device import Device
from zbench.describe.model import Model
from zbench.plans.area import HALF, STRIP, TILE, Work
from zbench.plans.plan import Ints

FORWARD_FLOPS = 4  # of a visible pair, per head and head dimension: q.k and p.v, a multiply and an add each
BACKWARD_FLOPS = 10  # five matmuls for the forward's two: flash attention computes q.k again


def kernel_seconds(device: Device, model: Model, work: Work, heads: Ints, kv_heads: Ints, backward: bool) -> Floats:
    """Returns the seconds of flash-attention calls, one each: its work, the start of its kernels, and no less than
    a call takes."""
    starts = (8 if backward else 1) * device.kernel_seconds + (_empty_seconds(device, work, heads) if backward else 0)
    return np.maximum(stream_seconds(device, model, work, heads, kv_heads, backward) + starts, device.call_seconds)


def _empty_seconds(device: Device, work: Work, heads: Ints) -> Floats:
    """Returns the seconds of those blocks of a variable-length backward that find nothing to do.

    FlashAttention-3 launches a block for every TILE keys of the longest segment, every segment and every head, and
    a block past its segment's end leaves at once (hopper/flash_bwd_launch_template.h). Its forward has a scheduler
    that skips them.
    """
    empty = np.maximum(work.segments * work.longest - -(-work.keys // TILE), 0)
    return np.asarray(empty * heads * device.empty_block_seconds, np.float64)


def stream_seconds(device: Device, model: Model, work: Work, heads: Ints, kv_heads: Ints, backward: bool) -> Floats:
    """Returns the seconds of the work of flash-attention calls: tiles at the kernel's rate, rows through memory.

    Memory traffic in bytes per row element of 2 bytes. Forward: q and o once, k and v once. Backward:
    o and do for the row sums, q and do, dq zeroed, summed in float32 and converted (18 a q row); k, v
    and dk, dv (8 a kv row) - with grouped queries dk and dv are added in float32 once a query head.
    """
    dim, e = model.head_dim, model.element_bytes / 2
    rate = device.attention_backward_flops if backward else device.attention_forward_flops
    pairs = work.area if device.tile == 1 else _tiles(device, work, heads, kv_heads, backward) * TILE * TILE
    flops = (BACKWARD_FLOPS if backward else FORWARD_FLOPS) * pairs * heads * dim
    curves = device.attention(backward)
    compute = flops / rate if curves is None else flops * _seconds_by_row(work, *curves)
    grouped = heads > kv_heads
    if backward:
        kv_rows = np.where(grouped, 12 * heads + 20 * kv_heads, 8 * heads)
        traffic = (work.queries * heads * 18 + work.keys * kv_rows) * dim * e
    else:
        traffic = (work.queries * heads + work.keys * kv_heads) * 4 * dim * e
    return np.asarray(compute + traffic / device.copy_bandwidth, np.float64)


def _tiles(device: Device, work: Work, heads: Ints, kv_heads: Ints, backward: bool) -> Ints | Floats:
    """Counts tiles, less the parts of them without a query that the kernel leaves out.

    FlashAttention-3's backward has tiles of 64 queries (80 where all see all). Its forward lays the g query heads
    of a kv head side by side in the rows of a tile, which then has 128 / g queries; between 1 and 8 heads the
    share of the strips of 16 that this leaves out is what it is of a last row of any length.
    """
    if backward:
        return work.tiles - work.spare_halves / 2 if device.backward_rows == HALF else work.tiles
    if not device.packed_rows:
        return work.tiles
    group = np.minimum(heads / np.maximum(kv_heads, 1), TILE // STRIP)
    share = (1 - 1 / group) / (1 - STRIP / TILE)
    return np.asarray(work.tiles - share * work.spare_strips * (STRIP / TILE), np.float64)


def _seconds_by_row(work: Work, causal: Curve, full: Curve) -> Floats:
    """Gives the seconds of a FLOP of whole tiles, by the keys that a row of them sees.

    Segments of an attend take their mean's.
    """
    keys = TILE * work.tiles / np.maximum(work.rows, 1)
    share = work.triangles / np.maximum(work.segments, 1)
    keys = np.maximum(keys, TILE)
    return np.asarray(share * causal.seconds(keys) + (1 - share) * full.seconds(keys), np.float64)
