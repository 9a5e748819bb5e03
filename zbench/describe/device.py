"""A described GPU and its constants, of which a cluster has one kind.

Constants come from `conf/cluster/device`, each with its source beside it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from zbench.describe.checks import check_boolean, check_name, check_slowdown, check_whole_number
from zbench.describe.curve import Curve
from zbench.describe.units import parse

# What each quantity is, by field; whoever reads a person's text asks here which numbers need a unit.
DEVICE_KINDS = {
    "peak_flops": "FLOP/s",
    "memory_bytes": "bytes",
    **dict.fromkeys(("copy_bandwidth", "strided_rate"), "bytes/s"),
    **dict.fromkeys(("matmul_flops", "attention_forward_flops", "attention_backward_flops"), "FLOP/s"),
    **dict.fromkeys(("kernel_seconds", "call_seconds", "empty_block_seconds"), "seconds"),
}
MAY_BE_ZERO = ("empty_block_seconds",)  # of a device's quantities
CURVES = ("attention_forward_causal", "attention_forward_full", "attention_backward_causal", "attention_backward_full")


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, described by its constants. Numbers are FLOP/s, bytes/s, bytes and seconds; text carries its unit
    (zbench.describe.units).

    peak_flops: dense bf16 matmul peak, the denominator of MFU.
    memory_bytes: what the program can use. copy_bandwidth: bytes/s, read plus written, of elementwise kernels.
    strided_rate: bytes/s at which a kernel moves 2-byte elements one a thread (transposes, indexed writes).
    matmul_flops: rate that the large matmuls of a layer reach.
    attention_forward_flops, attention_backward_flops: rate of whole tiles in a long flash-attention call.
    kernel_seconds: start-up and tail of one kernel. call_seconds: least time of one attention call (host work).
    tile: rows and columns that attention kernels work on at a time: 128 as GPU kernels do, or 1, only what is visible.
    packed_rows: the rows of forward tiles are all query heads of a kv head, so that a segment's last tile has no more
        rows than these. backward_rows: queries of a backward's tiles, 128 or 64.
    empty_block_seconds: of the whole GPU, for each block without work that a variable-length attention backward
        starts: for every sequence and head as many blocks of keys as the longest has. 0 where a kernel starts none.
    attention_*_causal, attention_*_full: the attention rates as measured curves, of segments that see each other
        causally and of rectangles, against the keys (in whole tiles) that a row of tiles sees on average; all four or
        none, and where they are, they are what counts and not the two rates above.
    compute_slowdown: how many times as long a compute takes while messages are under way at its GPU, at least 1.
    matmul_by_tokens: by model name, matmul_flops as a curve over a rank's tokens; other models have matmul_flops.
    multiprocessors: that take tiles of matmuls; 0: not known. matmul_shapes: whether matmuls of whole steps have the
        rate of their shape (zbench.cost.matmul), or all of them the same.
    """

    name: str
    peak_flops: float
    memory_bytes: float
    copy_bandwidth: float
    strided_rate: float
    matmul_flops: float
    attention_forward_flops: float
    attention_backward_flops: float
    kernel_seconds: float
    call_seconds: float
    tile: int = 128
    packed_rows: bool = False
    backward_rows: int = 128
    empty_block_seconds: float = 0.0
    compute_slowdown: float = 1.0
    multiprocessors: int = 0
    matmul_shapes: bool = False
    attention_forward_causal: Curve | None = None
    attention_forward_full: Curve | None = None
    attention_backward_causal: Curve | None = None
    attention_backward_full: Curve | None = None
    matmul_by_tokens: Mapping[str, Curve] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_name("cluster.device.name", self.name)
        if self.tile not in (1, 128):
            raise ValueError(f"cluster.device.tile is {self.tile!r}; it takes 128 or 1")
        check_boolean("cluster.device.packed_rows", self.packed_rows)
        if self.backward_rows not in (64, 128):
            raise ValueError(f"cluster.device.backward_rows is {self.backward_rows!r}; it takes 64 or 128")
        check_slowdown("cluster.device.compute_slowdown", self.compute_slowdown)
        check_whole_number("cluster.device.multiprocessors", self.multiprocessors, 0)
        check_boolean("cluster.device.matmul_shapes", self.matmul_shapes)
        if self.matmul_shapes and not self.multiprocessors:
            raise ValueError(
                "cluster.device.matmul_shapes is true; it takes cluster.device.multiprocessors, how many a GPU has"
            )
        for name, kind in DEVICE_KINDS.items():
            value = parse(f"cluster.device.{name}", getattr(self, name), kind)
            if not 0 <= value < float("inf") or (value == 0 and name not in MAY_BE_ZERO):
                least = "at least 0" if name in MAY_BE_ZERO else "above 0"
                raise ValueError(f"cluster.device.{name} is {getattr(self, name)!r}; it has to be {least}")
            object.__setattr__(self, name, value)
        self._take_curves()

    def _take_curves(self) -> None:
        """Makes curves of what a yaml has."""
        for name in CURVES:
            given = getattr(self, name)
            if given is not None and not isinstance(given, Curve):
                object.__setattr__(self, name, Curve.of(f"cluster.device.{name}", given))
        missing = [name for name in CURVES if getattr(self, name) is None]
        if 0 < len(missing) < len(CURVES):
            raise ValueError(f"cluster.device.{missing[0]} is not given; the curves of attention are four, or none")
        if not missing and self.tile == 1:
            raise ValueError("cluster.device.tile is 1; curves of attention are of whole tiles, so it takes 128")
        if not isinstance(self.matmul_by_tokens, Mapping):
            raise ValueError(f"cluster.device.matmul_by_tokens is {self.matmul_by_tokens!r}; it takes curves by model")
        curves = {
            model: one if isinstance(one, Curve) else Curve.of(f"cluster.device.matmul_by_tokens.{model}", one)
            for model, one in self.matmul_by_tokens.items()
        }
        object.__setattr__(self, "matmul_by_tokens", curves)

    def attention(self, backward: bool) -> tuple[Curve, Curve] | None:
        """Returns the curves of attention, (of causal segments, of rectangles), where there are curves."""
        way = "backward" if backward else "forward"
        causal, full = (getattr(self, f"attention_{way}_{mask}") for mask in ("causal", "full"))
        return None if causal is None else (causal, full)

    def without_curves(self) -> "Device":
        """Returns the device with single rates alone."""
        return replace(
            self,
            attention_forward_causal=None,
            attention_forward_full=None,
            attention_backward_causal=None,
            attention_backward_full=None,
            matmul_by_tokens={},
        )

    def at_best(self) -> "Device":
        """Gives the device with attention at the highest rates of its curves, whatever the pieces, and matmuls at the
        rate that none exceeds, whatever their shape.

        It is itself where it has neither. A curve of matmuls stays: a rank with fewer tokens is never faster at each.
        """
        if self.matmul_shapes:
            return replace(self, matmul_shapes=False).at_best()
        if self.attention(False) is None:
            return self
        forward, backward = (max(max(one.rates) for one in self.attention(back) or ()) for back in (False, True))
        plain = replace(self.without_curves(), matmul_by_tokens=self.matmul_by_tokens)
        return replace(plain, attention_forward_flops=forward, attention_backward_flops=backward)
