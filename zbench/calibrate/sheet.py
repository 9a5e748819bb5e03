"""Writes a calibration as a yaml of conf/cluster, every constant with what it was measured of. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from zbench.calibrate.curves import Curves
from zbench.calibrate.quantity import quantity
from zbench.calibrate.subject import ELEMENT_BYTES, RankResources, Subject
from zbench.calibrate.survey import MeasuredConstant, written
from zbench.describe.units import with_noun

LINKS = ("nic", "nvlink")
BUSY = 0.1  # share of all cores, used by others, above which numbers are not this machine's
DEVICE = (
    "peak_flops",
    "memory_bytes",
    "copy_bandwidth",
    "strided_rate",
    "matmul_flops",
    "attention_forward_flops",
    "attention_backward_flops",
    "kernel_seconds",
    "call_seconds",
)


@dataclass(frozen=True, slots=True)
class Circumstances:
    """The circumstances of a calibration, as its yaml's head tells them. others: share of all cores that other
    processes used while something was measured, where that is known."""

    command: str
    date: str
    abouts: Sequence[RankResources]
    others: Mapping[str, float]


def sheet(name: str, subject: Subject, figures: Mapping[str, MeasuredConstant], where: Circumstances) -> str:
    """Returns the yaml of the cluster `name`; figures: by the names of zbench.describe.cluster's fields."""
    lines = [f"# {line}" for line in _head(subject, where)]
    lines += [
        "_target_: zbench.describe.cluster.Cluster",
        f"name: {json.dumps(name)}",
        f"num_nodes: {subject.num_nodes}",
        f"gpus_per_node: {subject.gpus_per_node}",
        f"nics_per_node: {subject.nics_per_node} # as asked for",
    ]
    for link in LINKS:
        lines.append(_line(f"{link}_bandwidth", figures))
        lines.append(f"{link}_efficiency: 1.0 # the bandwidth is what messages reach already")
        lines.append(_line(f"{link}_latency", figures))
        lines.append(_line(f"{link}_channels", figures))
    lines += ["device:", *(f"  {line}" for line in _device(where.abouts[0], figures))]
    return "\n".join(lines) + "\n"


def device_sheet(
    subject: Subject, figures: Mapping[str, MeasuredConstant], curves: Curves, where: Circumstances
) -> str:
    """Returns the yaml of the device alone, for conf/cluster/device, with its curves."""
    lines = [f"# {line}" for line in _head(subject, where)]
    if errors := curves.errors():
        lines.append(
            f"# The curves of attention come from calls of {with_noun(subject.tokens, 'row')}; {len(errors)} other "
            "calls (a ring's rectangles, fewer pieces)"
        )
        lines.append(
            f"# are predicted by them with an error of {median(errors):.1%} in the median, {max(errors):.1%} at worst."
        )
    lines += _device(where.abouts[0], figures)
    for name, rates in curves.found.items():
        what = "whole sequences, causal" if name.endswith("causal") else "squares, full"
        lines.append(f"{name}: # measured: {what}, by the keys that a row of tiles sees")
        lines += _curve(rates, "  ")
    lines.append("matmul_by_tokens: # measured: matmuls of a layer's linear modules, forward and backward")
    for model, rates in curves.matmuls.items():
        lines += [f"  {model}:", *_curve(rates, "    ")]
    return "\n".join(lines) + "\n"


def _device(one: RankResources, figures: Mapping[str, MeasuredConstant]) -> list[str]:
    constants = [_line(constant, figures) for constant in DEVICE]
    if one.multiprocessors:
        constants.append(f"multiprocessors: {one.multiprocessors} # as CUDA tells")
    return ["_target_: zbench.describe.device.Device", f"name: {json.dumps(one.device)}", *constants]


def _curve(rates: Mapping[int, float], indent: str) -> list[str]:
    return [f"{indent}{size}: {quantity(rate, 'FLOP/s')}" for size, rate in rates.items()]


def _head(subject: Subject, where: Circumstances) -> list[str]:
    one = where.abouts[0]
    hosts = len({about.host for about in where.abouts})
    machines = "one machine" if hosts == 1 else with_noun(hosts, "machine")
    devices = ", ".join(sorted({about.device for about in where.abouts}))
    lines = [
        f"Measured by zbench.calibrate on {where.date}; each constant says of what. It ran as",
        f"  {where.command}",
        f"{subject.num_nodes} x {with_noun(subject.gpus_per_node, 'rank')}, all measuring at once, on {machines}: "
        f"{devices}, {with_noun(one.cores, 'core')}, {with_noun(one.threads, 'thread')} a rank,",
        f"torch {one.torch}, {f'{one.driver}, ' if one.driver else ''}{one.backend}, attention by {one.kernel}; "
        f"shapes of model {subject.model.name}, {ELEMENT_BYTES[subject.model.element_bytes]}.",
    ]
    if hosts == 1 and subject.num_nodes > 1:
        lines.append(
            "The nodes are processes of that one machine: messages between nodes and inside them take the same way."
        )
    if where.others:
        advice = "; measure again when they are idle" if max(where.others.values()) > BUSY else ""
        lines.append(f"{others_words(where.others)}{advice}.")
    return lines


def others_words(others: Mapping[str, float]) -> str:
    """Says which share of all cores other processes used during the measurements."""
    shares = " and ".join(f"{share:.0%} while {what} were measured" for what, share in others.items())
    return f"Other processes used {shares} (of all cores)"


def _line(name: str, figures: Mapping[str, MeasuredConstant]) -> str:
    figure = figures[name]
    how = "measured" if figure.measured else "NOT measured"
    return f"{name}: {written(name, figure.value)} # {how}: {figure.of}"
