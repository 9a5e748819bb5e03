"""Seconds around attention kernels: joining partial results, and copies into the order that a kernel reads.

docs/cost.md derives each term. Pure: no torch.
"""

from dataclasses import replace

import numpy as np

from zbench.cost import staging
from zbench.cost.use import Given, Use
from zbench.describe.arrays import Floats
from zbench.describe.device import Device
from zbench.plans.area import Work
from zbench.plans.plan import Ints


def join_seconds(device: Device, row: int, work: Work, heads: Ints, kv_heads: Ints, backward: bool) -> Floats:
    """Returns the seconds of adding a partial result to an earlier one: read it, read and write the sum (o; or dq,
    dk and dv). row: bytes of one head of a token."""
    size = 3 * work.queries * heads * row + (6 * work.keys * kv_heads * row if backward else 0)
    return size / device.copy_bandwidth + 3 * device.kernel_seconds


def sum_seconds(device: Device, row: int, work: Work, use: Use, backward: bool, wrapped: bool) -> Floats:
    """Returns the seconds of joining the partial results of attends that share queries; backward also of those that
    share keys.

    wrapped: staged, as Transformer Engine does it, where the first partial result is added too, to zeros.
    """
    joins_q, joins_kv = (use.shares_q, use.shares_kv) if wrapped else (use.again_q, use.again_kv)
    buffered = replace(work, keys=use.buffer)
    seconds = np.where(joins_q, join_seconds(device, row, buffered, use.heads, use.kv_heads, backward), 0.0)
    if backward:
        only_kv = join_seconds(
            device, row, replace(buffered, queries=0 * work.queries), use.heads, use.kv_heads, backward
        )
        seconds += np.where(joins_kv & ~joins_q, only_kv, 0.0)
    if wrapped:
        more = staging.join_more_seconds(device, row, work, use, backward)
        seconds += np.where(joins_q, more, 0.0)
    return seconds


def arrange_seconds(device: Device, row: int, work: Work, use: Use, backward: bool) -> Floats:
    """Returns the seconds of bringing blocks into the order the kernel reads.

    Head ranges (all-to-all): one strided copy of q, o, k and v each. Several whole blocks (all-gather):
    k and v copied into one buffer, and dk and dv out of it, once for all attends that use it. Part of
    a block (half of it, in a causal ring): that part of q, or k and v, copied; backward also of o and do.
    """
    kv = 2 * use.kv_tokens * use.kv_heads * row
    strided = strided_seconds(device, row, use)
    copied = np.where(use.many & ~use.again_kv, kv * (2 if backward else 1), 0)
    part_q = np.where(work.queries < use.q_tokens, work.queries * use.heads * row * (3 if backward else 1), 0)
    read_there = use.cut & use.again_kv  # in the buffer that an earlier attend's strided copy made
    part_kv = np.where((use.buffer < use.kv_tokens) & ~read_there, 2 * use.buffer * use.kv_heads * row, 0)
    return np.asarray(strided + 2 * (copied + part_q + part_kv) / device.copy_bandwidth, np.float64)


def strided_seconds(device: Device, row: int, use: Given) -> Floats:
    """Returns the seconds of an all-to-all's strided copies: one each of q and o, and of k and v where no earlier
    attend had them, where heads are cut."""
    size = (2 * use.q_tokens * use.heads + np.where(use.again_kv, 0, 2 * use.kv_tokens * use.kv_heads)) * row
    return np.where(use.cut & ~use.again_q, repack_seconds(device, size), 0.0)


def repack_seconds(device: Device, size: Floats | Ints) -> Floats:
    """Returns the seconds of a strided copy of `size` bytes, as between the two layouts of an all-to-all."""
    return np.asarray(size / device.strided_rate, np.float64)
