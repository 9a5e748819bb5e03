"""Curves of attention's and matmuls' rates over the sizes of their pieces, as zbench.describe.device.Device has them.

Attention's calls are of three kinds: causal ones of whole sequences and full ones of squares, from both of which the
curves come, and others that the curves then have to predict: the two rectangles of a ring's step, and the same pieces
alone or a few to a call. Nothing is fitted. The driver's side; imports no torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from zbench.calibrate.charge import charge
from zbench.calibrate.gauge import Gauge
from zbench.calibrate.quantity import quantity
from zbench.calibrate.subject import AttentionCall, Subject, layer_shapes
from zbench.cost.kernel import BACKWARD_FLOPS, FORWARD_FLOPS
from zbench.describe.curve import Curve
from zbench.describe.model import Model
from zbench.plans.area import TILE

LENGTHS = [2**power for power in range(7, 17)]  # a tile to 64K
MATMUL_TOKENS = [2**power for power in range(6, 17, 2)]
FEW = (1, 4, 16)  # segments of the calls that are not full


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """An attention call and its measured seconds. predicted: by the curves; None for those they come from."""

    call: AttentionCall
    backward: bool
    seconds: float
    predicted: float | None = None

    def line(self) -> dict[str, Any]:
        """Returns the point as a mapping for a file, with the prediction's relative error."""
        off = None if self.predicted is None else self.predicted / self.seconds - 1
        return {
            **asdict(self.call),
            "backward": self.backward,
            "seconds": self.seconds,
            "predicted": self.predicted,
            "error": off,
        }


@dataclass(slots=True)
class Curves:
    """The curves of one device, measured and checked. constants: of the device, in SI units, measured before
    (zbench.calibrate.survey). models: whose matmuls.

    found: by field of Device, rates by size, FLOP/s.
    """

    gauge: Gauge
    subject: Subject
    constants: Mapping[str, float]
    models: Sequence[Model]
    found: dict[str, dict[int, float]] = field(default_factory=dict)
    matmuls: dict[str, dict[int, float]] = field(default_factory=dict)
    points: list[CurvePoint] = field(default_factory=list)

    def take(self) -> None:
        """Measures the curves, and calls that they have to predict.

        Raises:
            ValueError: a call took no longer than its rows should.
            zbench.runtime.processes.fleet.RankFailed: a rank failed.
        """
        for model in self.models:
            self.matmuls[model.name] = self._matmuls(model)
        for backward, way in ((False, "forward"), (True, "backward")):
            self.found[f"attention_{way}_causal"] = self._curve(
                backward, lambda n: AttentionCall.whole(n, self._fill(n))
            )
            self.found[f"attention_{way}_full"] = self._curve(
                backward, lambda n: AttentionCall(n, n, False, self._fill(n))
            )
        self._others()

    def errors(self) -> list[float]:
        """Returns the absolute relative errors of what the curves predict."""
        return [abs(p.predicted / p.seconds - 1) for p in self.points if p.predicted is not None]

    def _fill(self, length: int) -> int:
        """Returns how many segments a call of as many rows as the subject's tokens has."""
        return max(1, self.subject.tokens // length)

    def _matmuls(self, model: Model) -> dict[int, float]:
        return self.gauge.rising(
            f"linear modules of a layer of {model.name}, {{}} tokens",
            MATMUL_TOKENS,
            4,
            lambda n: 6.0 * sum(rows * ins * outs for rows, ins, outs in layer_shapes(model, n)),
            lambda n: self.gauge.seconds("matmul", layer_shapes(model, n), True),
        )

    def _curve(self, backward: bool, make: Callable[[int], AttentionCall]) -> dict[int, float]:
        """Returns the rate of whole tiles by the keys that a row of them sees."""
        rates, window, model = {}, self.gauge.window, self.subject.model
        per_tile = (BACKWARD_FLOPS if backward else FORWARD_FLOPS) * TILE**2 * model.num_heads * model.head_dim
        for length in LENGTHS:
            call = make(length)
            taken = self._measure(call, backward)
            rest = charge(self.constants, model, call, backward)
            if taken <= rest:
                raise ValueError(
                    f"attention of {call} took {quantity(taken, 's')}, no longer than its rows through memory should "
                    f"take ({quantity(rest, 's')}); --seconds is {window:g} and has to be longer"
                )
            tiles, rows = int(call.work.tiles[0]), int(call.work.rows[0])
            rates[TILE * tiles // rows] = per_tile * tiles / (taken - rest)
            self.points.append(CurvePoint(call, backward, taken))
            if (2 if self._fill(2 * length) > 1 else 4) * taken > window:
                break
        return rates

    def _others(self) -> None:
        """Lists the calls that the curves have to predict, within the lengths that they have."""
        curves = {name: Curve.of(name, rates) for name, rates in self.found.items()}
        for backward in (False, True):
            longest = max(p.call.queries for p in self.points if p.backward == backward)
            for call in _others(longest, self._fill):
                taken = self._measure(call, backward)
                predicted = charge(self.constants, self.subject.model, call, backward, curves)
                self.points.append(CurvePoint(call, backward, taken, predicted))
        if errors := self.errors():
            worst = f"median {median(errors):.0%}, worst {max(errors):.0%}"
            self.gauge.tell(f"{len(errors)} other calls are predicted by the curves: off by {worst}")

    def _measure(self, call: AttentionCall, backward: bool) -> float:
        taken = self.gauge.seconds("attention", call, backward)
        mask, way = "causal" if call.causal else "full", "backward" if backward else "forward"
        self.gauge.tell(
            f"attention {way}, {mask}, {call.segments} x {call.queries} x {call.keys}: {quantity(taken, 's')}"
        )
        return taken


def _others(longest: int, fill: Callable[[int], int]) -> list[AttentionCall]:
    """Lists a ring's steps (half of the queries against all keys, all queries against half of the keys), and calls of
    few segments."""
    lengths = [length for length in LENGTHS if 2 * TILE <= length <= longest]
    steps = [(n // 2, n) for n in lengths[::2]] + [(n, n // 2) for n in lengths[::2]]
    rings = [AttentionCall(m, n, False, fill(max(m, n))) for m, n in steps]
    return rings + [AttentionCall.whole(n, few) for n in lengths[1::3] for few in FEW if few < fill(n)]
