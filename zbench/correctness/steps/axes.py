"""The axes of a step's tensors as formulas have them, and how slices of a parameter lie in the whole one and in memory.

Axes: t tokens, e hidden, h heads (or kv heads), d their dimension, f columns of a feed-forward, v words, x experts, or
logits of these, y what a router's cosines are of, k two (keys and values; gate and up).
"""

from collections.abc import Mapping, Sequence

import numpy as np

from zbench.describe.arrays import Floats
from zbench.step.layout import StepLayout

# Axes of tensors by name; a gradient has those of its tensor.
DIMS: Mapping[str, str] = {
    "wq": "ehd", "wkv": "ehkd", "wo": "hde", "wz": "efk", "wd": "fe", "we": "ve", "wh": "ve", "g1": "e", "g2": "e",
    "gl": "e", "vh": "e", "val": "t", "q": "thd", "o": "thd", "kv": "thkd", "z": "tfk", "u": "tf",
    "wr": "ex", "r": "tx", "wp": "ey", "wc": "xy", "rh": "ty", "wzs": "efk", "wds": "fe", "zs": "tfk", "us": "tf",
    "wzf": "efk", "wdf": "fe", "zf": "tfk", "uf": "tf",
}  # fmt: skip
# The axis along which a parameter's slice is cut into parts of the formula's index.
CUT: Mapping[str, tuple[str, int]] = {
    "wq": ("h", 1), "wkv": ("g", 1), "wo": ("h", 0), "wz": ("f", 1), "wd": ("f", 0), "we": ("v", 0), "wh": ("v", 0),
    "ez": ("e", 0), "ed": ("e", 0), "wzs": ("f", 1), "wds": ("f", 0), "wzf": ("w", 1), "wdf": ("w", 0),
}  # fmt: skip
COLUMNS: Mapping[str, int] = {"ez": 2, "ed": 1}  # of experts' parameters: the axis of their columns
# The order of a parameter's axes in memory, of the same names; shards are pieces of what lies so. x: experts.
MEMORY: Mapping[str, tuple[str, str]] = {
    "wq": ("ehd", "hde"), "wkv": ("ehkd", "hkde"), "wz": ("efk", "kfe"), "ez": ("xefk", "xkfe"),
    "wr": ("ex", "xe"), "wp": ("ey", "ye"), "wzs": ("efk", "kfe"), "wzf": ("efk", "kfe"),
}  # fmt: skip


def dims(name: str) -> str:
    """Returns the axes of a tensor."""
    base = name.rstrip("~")
    return DIMS.get(base) or DIMS.get(base.removeprefix("d"), "te")


def from_memory(name: str, flat: Floats, shape: tuple[int, ...]) -> Floats:
    """Returns a slice of a parameter, or of its gradient, with axes as formulas have them. shape: of these axes."""
    axes, memory = MEMORY.get(name, ("", ""))
    if not axes:
        return flat.reshape(shape)
    lying = flat.reshape([shape[axes.index(axis)] for axis in memory])
    return np.asarray(np.einsum(f"{memory}->{axes}", lying))


def slice_in_whole(layout: StepLayout, name: str, shape: Sequence[int], share: int) -> tuple[slice, ...]:
    """Returns where a slice of a parameter lies in the whole one. shape: of the whole, of one layer."""
    axis, slices = CUT[name][1], layout.shape(layout.number[name])[0]
    cuts = {axis: (slices, share)}
    if name in COLUMNS:  # a run of experts, and some of their columns
        gpus = len(layout.index["e"]) // shape[axis]
        cuts = {axis: (slices // gpus, share // gpus), COLUMNS[name]: (gpus, share % gpus)}
    found = [slice(None)] * len(shape)
    for one, (count, at) in cuts.items():
        found[one] = slice(at * shape[one] // count, (at + 1) * shape[one] // count)
    return tuple(found)


def in_memory(name: str, value: Floats) -> Floats:
    """Returns a slice of a parameter, or of its gradient, flat, in the order in which it lies in memory."""
    axes, memory = MEMORY.get(name, ("", ""))
    return (np.einsum(f"{axes}->{memory}", value) if axes else value).reshape(-1)
