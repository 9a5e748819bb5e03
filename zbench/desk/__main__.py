"""python -m zbench.desk scale cluster=a800_4x8 model=llama_7b [--shrink 32] ...: a cluster shrunk for executor=desk.
python -m zbench.desk measure cluster=desk_2x4_a800: what the links of a desk give, measured on it.
python -m zbench.desk port_order cluster=desk_2x4_a800: whether a ring waits for a gather that began before it.
python -m zbench.desk overlap FILE: how much of attention's messages hid behind its arithmetic, of recorded runs of
attention's plans (executor=torch_attention, desk_attention).
python -m zbench.desk waits FILE: what ranks of whole steps waited for, measured and simulated, of recorded runs.

The first prints the yaml of a desk cluster (conf/cluster/desk_*.yaml are made like this), the second payload's share of
each kind of link and the latency, the last two a line a run. Exit codes: 0; 1 a rank failed; 2 bad input; 130 stopped
by Ctrl-C.
"""

import sys
from collections.abc import Callable
from typing import TypeVar

from zbench.console.command import Parser, loading, ran
from zbench.console.overrides import added
from zbench.describe.checks import check_whole_number

with loading(__name__):
    import argparse
    import shlex
    from dataclasses import asdict

    from hydra import compose, initialize_config_dir
    from hydra.utils import instantiate

    from zbench import CONF
    from zbench.calibrate.quantity import quantity
    from zbench.calibrate.sheet import BUSY
    from zbench.describe.cluster import Cluster
    from zbench.describe.model import Model
    from zbench.describe.units import parse
    from zbench.desk.scale import Scale
    from zbench.record.record import Run
    from zbench.record.records import each, read_all
    from zbench.run.checks.yaml_units import check_units
    from zbench.run.known import add_trust
    from zbench.run.replay import Replay
    from zbench.run.target import make_model

Found = TypeVar("Found")
UNITS = {"bandwidth": "B/s", "latency": "s", "seconds": "s", "flops": "FLOP/s", "rate": "B/s", "bytes": "B"}


def main() -> int:
    """Runs the command and returns its exit code."""
    return ran(_main, "nothing is left")


def _main() -> int:
    asked = _arguments()
    return {"scale": _scale, "measure": _measure, "port_order": _port_order, "overlap": _overlap, "waits": _waits}[
        asked.what
    ](asked)


def _arguments() -> argparse.Namespace:
    parent = Parser(prog="python -m zbench.desk", description="Emulated nodes (docs/desk.md).")
    commands = parent.add_subparsers(dest="what", required=True, metavar="scale, measure, port_order, overlap or waits")
    of_runs = (("overlap", "of attention's messages and arithmetic"), ("waits", "what ranks of whole steps waited for"))
    for name, told in of_runs:
        recorded = commands.add_parser(name, help=f"{told}, of recorded runs")
        recorded.add_argument("file", help="a record, as written by python -m zbench out=FILE")
        add_trust(recorded)
    measure = commands.add_parser("measure", help="what the links of a desk cluster give")
    order = commands.add_parser("port_order", help="who goes first at a NIC: a ring beside a gather")
    parser = commands.add_parser("scale", help="a job shrunk for emulated nodes")
    for command in (measure, order, parser):
        command.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="cluster=..., model=..., as for zbench")
    parser.add_argument("--desk-model", default="desk", help="the shrunken model (default desk)")
    parser.add_argument("--name", default=None, help="of the cluster (default desk_NxG)")
    parser.add_argument("--shrink", type=int, default=32, help="of lengths and hidden size (default 32)")
    parser.add_argument("--flops", default="700 MFLOP/s", help="matmul rate of a rank (default 700 MFLOP/s)")
    for name, default in (("nodes", 2), ("gpus-per-node", 4), ("nics-per-node", 2)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"of the desk (default {default})")
    return parent.parse_args()


def _measure(asked: argparse.Namespace) -> int:
    from zbench.desk.links import measure

    found = _measured(asked, measure)
    for name, link in found.items():
        print(
            f"{name}: payload to all peers gets {link.efficiency:.1%} of {quantity(link.bandwidth, 'B/s')}, to one "
            f"alone {link.one:.1%}; a message of 8 bytes takes {quantity(link.latency, 's')}"
        )
    return 0


def _port_order(asked: argparse.Namespace) -> int:
    from zbench.desk.port_order import port_order

    found = _measured(asked, port_order)
    print(
        f"a ring alone takes {found.ring_alone:.3f} s, a gather {found.gather_alone:.3f} s; begun together, the gather "
        f"first, the ring is there after {found.ring:.3f} s and the gather after {found.gather:.3f} s"
    )
    print(
        f"the ring waited for {found.waited:.2f} of the gather: 1 in the plan's order, 0 where the longest waiting "
        f"goes first, {found.halves:.2f} where each has half of the NIC"
    )
    return 0


def _measured(
    asked: argparse.Namespace,
    measure: Callable[[Cluster, Model, Callable[[str], None]], tuple[Found, float]],
) -> Found:
    """Returns what is measured on the desk that is asked for, and says so where the machine was busy with others."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["executor=desk", *map(added, asked.overrides)])
    check_units(config.cluster)
    cluster: Cluster = instantiate(config.cluster)
    found, others = measure(cluster, make_model(config), lambda line: print(f"desk: {line}", file=sys.stderr))
    if others > BUSY:
        print(f"desk: {others:.0%} of the processors was used by others; measure again when they are idle")
    return found


def _overlap(asked: argparse.Namespace) -> int:
    from zbench.desk.overlap import Overlap, overlap

    def of(run: Run) -> Overlap:
        replay = Replay.of(run, asked.trust)
        if not replay.of_attention:
            raise ValueError(
                f"run {run.start['run']} trained by whole steps, in which attention has no time of its own beside the "
                "rest of a step; python -m zbench.desk waits says what its ranks waited for"
            )
        return overlap(run, replay.cost, replay.plans)

    for one in each(read_all([asked.file]), of):
        print(
            f"{one.system}: attention took {one.attention:.3f} s; arithmetic {one.compute:.3f} s, busiest NIC "
            f"{one.transfer:.3f} s: {one.ratio:.2f} x the larger"
        )
    return 0


def _waits(asked: argparse.Namespace) -> int:
    from zbench.desk.waits import ComparedWaits, compared_waits, waits_table

    def of(run: Run) -> ComparedWaits:
        replay = Replay.of(run, asked.trust)
        return compared_waits(run, lambda steps: [asdict(one) for one in replay.played_in_order(steps)])

    measured = [run for run in read_all([asked.file]) if not run.start["facts"]["simulated"]]
    if not measured:
        raise ValueError(f"file is {asked.file}; it holds no measured run")
    print("\n".join(waits_table(each(measured, of))))
    return 0


def _scale(asked: argparse.Namespace) -> int:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", [*map(added, asked.overrides)])
        small = make_model(compose("config", [f"model={asked.desk_model}"]))
    check_units(config.cluster)
    cluster: Cluster = instantiate(config.cluster)
    model = make_model(config)
    for name in ("shrink", "nodes", "gpus_per_node", "nics_per_node"):
        check_whole_number(f"--{name.replace('_', '-')}", getattr(asked, name), 1)
    scale = Scale(
        asked.shrink,
        parse("--flops", asked.flops, "FLOP/s"),
        asked.nodes,
        asked.gpus_per_node,
        asked.nics_per_node,
        config.tokens_per_gpu,
    )
    desk = scale.cluster(cluster, model, small)
    print(f"# {cluster.name} and {model.name} shrunk by {asked.shrink} (docs/desk.md), as printed by")
    print(f"#   python -m zbench.desk {shlex.join(sys.argv[1:])}")
    print(f"# For lengths divided by {asked.shrink}, model={small.name}, tokens_per_gpu={scale.tokens(cluster)}.")
    print(_yaml(desk, asked.name or desk.name), end="")
    return 0


def _yaml(cluster: Cluster, name: str) -> str:
    lines = ["_target_: zbench.describe.cluster.Cluster", f"name: {name}"]
    lines += [f"{field}: {getattr(cluster, field)}" for field in ("num_nodes", "gpus_per_node", "nics_per_node")]
    for link in ("nic", "nvlink"):
        lines.append(f"{link}_bandwidth: {quantity(getattr(cluster, f'{link}_bandwidth'), 'B/s')}")
        lines.append(f"{link}_efficiency: {getattr(cluster, f'{link}_efficiency')}")
        lines.append(f"{link}_latency: {quantity(getattr(cluster, f'{link}_latency'), 's')}")
        lines.append(f"{link}_channels: {getattr(cluster, f'{link}_channels')}")
    lines += ["device:", "  _target_: zbench.describe.device.Device", f'  name: "{cluster.device.name}"']
    for field in type(cluster.device).__dataclass_fields__:
        value = getattr(cluster.device, field)
        if field == "tile":
            lines.append(f"  tile: {value}")
        elif field != "name" and value:  # no curves
            lines.append(f"  {field}: {quantity(value, UNITS[field.rpartition('_')[2]])}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
