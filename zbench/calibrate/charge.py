"""The seconds that the cost model charges for an attention call, on a device as far as it is known. Pure: no torch."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from zbench.calibrate.subject import AttentionCall
from zbench.cost.cost import Cost
from zbench.describe.cluster import Cluster
from zbench.describe.curve import Curve
from zbench.describe.device import Device
from zbench.describe.model import Model

NEEDED = ("peak_flops", "memory_bytes", "copy_bandwidth", "strided_rate", "matmul_flops", "kernel_seconds")
_FAST = 1e30  # a rate at which work takes no time


def charge(
    constants: Mapping[str, float],
    model: Model,
    call: AttentionCall,
    backward: bool,
    curves: Mapping[str, Curve] | None = None,
) -> float:
    """Returns the seconds of a call, all heads. constants: by field of Device, NEEDED and, with curves, call_seconds.

    curves: of zbench.describe.cluster.CURVES, by which its tiles take their time. None: aside from its tiles, and from
    the least that a call takes.
    """
    known = {name: constants[name] for name in NEEDED}
    least = 1 / _FAST if curves is None else constants["call_seconds"]
    device = Device("", **known, attention_forward_flops=_FAST, attention_backward_flops=_FAST, call_seconds=least)  # type: ignore[arg-type]
    device = replace(device, **curves or {})  # type: ignore[arg-type]
    cost = Cost(Cluster("", 1, 1, 1, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, device), model)
    heads, kv_heads = np.array([model.num_heads]), np.array([model.num_kv_heads])
    return float(cost.kernel_seconds(call.work, heads, kv_heads, backward)[0])
