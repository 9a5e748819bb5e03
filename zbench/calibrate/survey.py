"""A survey measures a calibration's operations and derives the constants of zbench.describe.cluster from their times.

Nothing is fitted: a constant comes from the time of the operation that its definition names, whatever the simulator
then makes of it. The driver's side; imports no torch.
"""

from dataclasses import dataclass, field

import numpy as np

from zbench.calibrate.charge import charge
from zbench.calibrate.gauge import Gauge
from zbench.calibrate.quantity import quantities, quantity
from zbench.calibrate.subject import ELEMENT_BYTES, AttentionCall, Subject, layer_shapes
from zbench.cost.kernel import BACKWARD_FLOPS, FORWARD_FLOPS
from zbench.describe.links import MOST_CHANNELS
from zbench.describe.units import with_noun
from zbench.plans.area import TILE, Work

TOKENS = (256, 1024)  # of a layer's matmuls, and as many as there are
SQUARES = [2**power for power in range(8, 15)]
LENGTHS = [2**power for power in range(8, 18)]
MESSAGES = [2**power for power in range(16, 29, 3)]  # 64 KiB to 256 MiB
SMALL_MESSAGE, SHORT_SEQUENCE = 8, 16  # bytes, tokens


@dataclass(frozen=True, slots=True)
class MeasuredConstant:
    """A constant in SI units, and words that say of what it was measured. measured: False where there was nothing to
    measure."""

    value: float
    of: str
    measured: bool = True


@dataclass(frozen=True, slots=True)
class Survey:
    """A calibration; its methods fill `figures`, by names of zbench.describe.cluster, in order."""

    gauge: Gauge
    subject: Subject
    figures: dict[str, MeasuredConstant] = field(default_factory=dict)

    def take(self, links: bool = True) -> dict[str, MeasuredConstant]:
        """Measures all constants; links: between ranks too.

        Raises:
            ValueError: times contradict each other. zbench.runtime.processes.fleet.RankFailed: a rank failed.
        """
        with self.gauge.watched("devices"):
            self.matmuls()
            self.memory()
            self.attention()
        if links:
            with self.gauge.watched("links"):
                self.links()
        return self.figures

    def matmuls(self) -> None:
        """Measures the rates of matmuls: the best one, and those of a layer's shapes."""
        gauge, subject, model = self.gauge, self.subject, self.subject.model
        rates = gauge.rising(
            "matmul {0} x {0} x {0}",
            SQUARES,
            8,
            lambda n: 2.0 * n**3,
            lambda n: gauge.seconds("matmul", [(n, n, n)], False),
        )
        best = max(rates, key=rates.__getitem__)
        of = f"{ELEMENT_BYTES[model.element_bytes]} matmul {best} x {best} x {best}, best of {_flops(rates)}"
        if subject.peak_flops is None:
            self._set("peak_flops", rates[best], of)
        else:
            of = f"as given by --peak; measured were {quantity(rates[best], 'FLOP/s')}, {of}"
            self.figures["peak_flops"] = MeasuredConstant(subject.peak_flops, of, measured=False)
        rates = gauge.rising(
            "a layer's linear modules, {} tokens",
            [*(n for n in TOKENS if n < subject.tokens), subject.tokens],
            4,
            lambda n: 6.0 * sum(rows * ins * outs for rows, ins, outs in layer_shapes(model, n)),
            lambda n: gauge.seconds("matmul", layer_shapes(model, n), True),
        )
        of = f"matmuls of a layer's linear modules, forward and backward, by tokens on a rank: {_flops(rates)}"
        self._set("matmul_flops", rates[max(rates)], of)

    def memory(self) -> None:
        """Measures a rank's memory: its size, the rates of elementwise work and of strided copies, and the smallest
        kernel."""
        gauge, model, rows = self.gauge, self.subject.model, self.subject.tokens
        share = min(about.memory_bytes for about in gauge.abouts)
        self._set("memory_bytes", share, "a rank's share of its machine's memory, or its GPU's")
        columns = model.ffn_hidden
        rate = 3 * rows * columns * model.element_bytes / gauge.seconds("multiply", rows, columns)
        self._set("copy_bandwidth", rate, f"elementwise product of two [{rows}, {columns}] into a third")
        heads, dim = model.num_heads, model.head_dim
        rate = rows * heads * dim * model.element_bytes / gauge.seconds("permute", rows)
        of = f"[{rows}, {heads}, {dim}] copied into [{heads}, {rows}, {dim}], bytes counted once"
        self._set("strided_rate", rate, of)
        self._set("kernel_seconds", gauge.seconds("smallest"), "addition to one number, many in a row")

    def attention(self) -> None:
        """Measures attention: the least time of a call, and the rates of whole tiles, forward and backward."""
        calls = [
            self.gauge.seconds("attention", AttentionCall.whole(SHORT_SEQUENCE), backward) for backward in (False, True)
        ]
        of = f"attention of {SHORT_SEQUENCE} tokens, forward (backward: {quantity(calls[1], 's')})"
        self._set("call_seconds", calls[0], of)
        self._tiles("attention_forward_flops", False)
        self._tiles("attention_backward_flops", True)

    def _tiles(self, name: str, backward: bool) -> None:
        """Measures the rate of whole tiles: of the longest sequence's call, less what the cost model gives its rows and
        starts."""
        model, way = self.subject.model, "backward" if backward else "forward"
        per_tile = (BACKWARD_FLOPS if backward else FORWARD_FLOPS) * TILE * TILE * model.num_heads * model.head_dim
        rates = self.gauge.rising(
            f"attention {way}, {{}} tokens",
            LENGTHS,
            4,
            lambda n: float(per_tile * _whole(n).tiles[0]),
            lambda n: self.gauge.seconds("attention", AttentionCall.whole(n), backward),
        )
        longest = max(rates)
        flops = float(per_tile * _whole(longest).tiles[0])
        known = {name: figure.value for name, figure in self.figures.items()}
        call, rest = flops / rates[longest], charge(known, model, AttentionCall.whole(longest), backward)
        if call <= rest:
            raise ValueError(
                f"attention {way} of {longest} tokens took {quantity(call, 's')}, no longer than its rows through "
                f"memory should take ({quantity(rest, 's')}); --seconds is {self.gauge.window:g} and has to be longer"
            )
        of = f"attention {way}, tiles of one causal sequence, {longest} tokens; of calls by length: {_flops(rates)}"
        self._set(name, flops / (call - rest), of)

    def links(self) -> None:
        """Measures the links between nodes and inside a node, as far as there are any."""
        subject = self.subject
        if subject.num_nodes > 1:
            self._link("nic", True, subject.ranks_per_nic)
        if subject.gpus_per_node > 1:
            self._link("nvlink", False, 1)
        self._stand_in("nic", "nvlink", "one node")
        self._stand_in("nvlink", "nic", "one GPU a node")

    def _link(self, name: str, across: bool, ranks: int) -> None:
        """Measures latency, bandwidth and channels of one kind of link."""
        gauge, subject, where = self.gauge, self.subject, "between nodes" if across else "inside a node"
        of = f"{where}, all ranks sending and receiving at once"
        latency = gauge.transfer("exchange", across, False, SMALL_MESSAGE)
        self._set(f"{name}_latency", latency, f"message of {SMALL_MESSAGE} bytes {of}")
        peers = len(subject.peers(0, across))
        rates = self._rates(f"bytes to {peers} peers {where}", ranks, "together", across)
        shared = f", {with_noun(ranks, 'rank')} to a NIC" if across else ""
        all_peers = max(rates.values())
        of = f"bytes to {'all peers' if peers > 1 else 'the one peer'} {of}{shared}; best of {quantities(rates, 'B/s')}"
        self._set(f"{name}_bandwidth", all_peers, of)
        if ranks * peers == 1:
            self.figures[f"{name}_channels"] = MeasuredConstant(1, f"there is one peer {where}", measured=False)
            return
        one_peer = max(self._rates(f"bytes to one peer {where}", 1, "exchange", across, True).values())
        told = f"one peer has {quantity(one_peer, 'B/s')} and all together {quantity(all_peers, 'B/s')}"
        if one_peer > all_peers:  # what one peer has a link carries; many at once may keep processors from moving it
            self._set(f"{name}_bandwidth", one_peer, f"bytes to one peer {where}, more than {of}")
        if across and subject.nics_per_node > 1:
            routed = max(self._rates("bytes to one peer through all NICs", 1, "routed").values())
            told += f"; one peer through all {subject.nics_per_node} NICs of a node {quantity(routed, 'B/s')}"
        if one_peer > all_peers:
            told += f"; all have less than one, so {name}_bandwidth is the one peer's: measure again"
        self._set(f"{name}_channels", min(max(round(all_peers / one_peer), 1), MOST_CHANNELS), told)

    def _rates(self, words: str, ranks: int, method: str, *arguments: bool) -> dict[int, float]:
        """Returns bytes a second through a link that so many ranks share, by the bytes that each moves."""
        return self.gauge.rising(
            f"{{}} {words}",
            MESSAGES,
            8,
            lambda size: float(size * ranks),
            lambda size: self.gauge.transfer(method, *arguments, size),
            "B/s",
        )

    def _stand_in(self, name: str, other: str, missing: str) -> None:
        """Gives a link that is not there the constants of the other one; with one rank those of its memory. No plan
        uses it."""
        if f"{name}_channels" not in self.figures:
            self.figures[f"{name}_channels"] = MeasuredConstant(1, f"there is {missing}", measured=False)
        for kind, memory in (("latency", "kernel_seconds"), ("bandwidth", "copy_bandwidth")):
            if f"{name}_{kind}" not in self.figures:
                is_other = f"{other}_{kind}" in self.figures and self.figures[f"{other}_{kind}"].measured
                given = f"{other}_{kind}" if is_other else memory
                of = f"there is {missing}; this is {given}, and nothing uses it"
                self.figures[f"{name}_{kind}"] = MeasuredConstant(self.figures[given].value, of, measured=False)

    def _set(self, name: str, value: float, of: str) -> None:
        self.figures[name] = MeasuredConstant(value, of)
        self.gauge.tell(f"{name} = {written(name, value)}")


def written(name: str, value: float) -> str:
    """Writes a constant as a yaml has it."""
    return f"{value:.0f}" if name.endswith("_channels") else quantity(value, unit(name))


def unit(name: str) -> str:
    """Returns the unit of a constant that has one, by its name."""
    units = {"flops": "FLOP/s", "seconds": "s", "latency": "s", "bytes": "B"}
    return units.get(name.rpartition("_")[2], "B/s")


def _whole(length: int) -> Work:
    return Work.whole(np.array([length]))


def _flops(rates: dict[int, float]) -> str:
    return quantities(rates, "FLOP/s")
