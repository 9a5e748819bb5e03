"""python -m zbench.calibrate --nodes N --gpus-per-node G -o FILE.yaml: measures; writes a cluster for the simulator.

Alone it starts N x G processes on this machine; under torchrun or Slurm the processes are those that were started.
Exit codes: 0; 1 a rank failed; 2 bad input; 130 stopped by Ctrl-C. Only a whole file is ever written.
"""

import sys

from zbench.console.command import Parser, loading, ran
from zbench.describe.checks import check_whole_number
from zbench.describe.units import with_noun

with loading(__name__):
    import argparse
    import contextlib
    import json
    import math
    import os
    import shlex
    from datetime import date
    from pathlib import Path

    from hydra import compose, initialize_config_dir

    from zbench import CONF
    from zbench.calibrate.curves import Curves
    from zbench.calibrate.gauge import Gauge
    from zbench.calibrate.sheet import BUSY, Circumstances, device_sheet, others_words, sheet
    from zbench.calibrate.subject import Subject
    from zbench.calibrate.survey import Survey
    from zbench.console.extras import need
    from zbench.describe.model import Model
    from zbench.describe.units import parse
    from zbench.record.kinds import POINTS, SHEET
    from zbench.record.outputs import check_apart, check_output, whole_file
    from zbench.run.target import make_model
    from zbench.runtime.job.job import DEVICES, KERNELS
    from zbench.runtime.processes.fleet import Fleet
    from zbench.runtime.processes.world import ProcessPlace, found

TARGET = "zbench.calibrate.measure:Measure"


def main() -> int:
    """Runs the command and returns its exit code."""
    return ran(_main, "nothing is written")


def _main() -> int:
    world = found(os.environ)
    if world is not None and world.rank > 0:
        from zbench.runtime.processes.follow import follow

        return follow(world)
    with _leading(world):
        return _calibrate(_arguments(), world)


def _arguments() -> argparse.Namespace:
    parser = Parser(prog="python -m zbench.calibrate", description="Measures this machine as a cluster yaml.")
    parser.add_argument("--nodes", type=int, help="nodes (groups of ranks); under torchrun the machines, if left out")
    parser.add_argument("--gpus-per-node", type=int, help="ranks of a node; likewise")
    parser.add_argument("--nics-per-node", type=int, default=1, help="which ranks share evenly (default 1)")
    parser.add_argument("--model", default="tiny", help="of conf/model: its shapes and element size (default tiny)")
    parser.add_argument("--tokens", type=int, default=4096, help="on a rank (default 4096)")
    parser.add_argument("--kernel", choices=KERNELS, default="auto", help="of attention (default auto)")
    parser.add_argument("--seconds", type=float, default=0.2, help="of one measurement window (default 0.2)")
    parser.add_argument("--device", choices=DEVICES, default="auto", help="a GPU if there is one (auto), cpu or cuda")
    parser.add_argument("--peak", help="the device's own peak, as in --peak '989 TFLOP/s' (default: as measured)")
    parser.add_argument(
        "--only-device",
        action="store_true",
        help="one rank; the yaml is one of conf/cluster/device, with curves of its rates",
    )
    parser.add_argument("--matmuls", help="with --only-device: models whose matmuls are measured (default --model)")
    parser.add_argument(
        "--points",
        type=Path,
        metavar="FILE",
        help="with --only-device: every attention call that was measured, as JSON lines",
    )
    parser.add_argument("-o", dest="out", type=Path, metavar="FILE", help="the yaml; left out, it is printed")
    asked = parser.parse_args()
    need("torch", "python -m zbench.calibrate")
    return asked


def _calibrate(asked: argparse.Namespace, world: ProcessPlace | None) -> int:
    nodes, gpus = asked_shape(asked, world)
    peak = None if asked.peak is None else parse("--peak", asked.peak, "FLOP/s")
    subject = Subject(
        _model(asked.model), nodes, gpus, asked.nics_per_node, asked.tokens, asked.kernel, asked.device, peak
    )
    models = [_model(name) for name in (asked.matmuls or asked.model).split(",")]
    if not 0 < asked.seconds < math.inf:
        raise ValueError(f"--seconds is {asked.seconds:g}; it takes a number above 0")
    _check_out(asked)
    _check_cuda(asked.device)
    with _fleet(world, subject, asked.seconds) as fleet:
        gauge = Gauge(fleet, asked.seconds, _tell)
        one = gauge.abouts[0]
        _tell(
            f"{with_noun(fleet.num_ranks, 'rank')} on {one.device}, {with_noun(one.cores, 'core')}, {one.backend}, "
            f"attention by {one.kernel}"
        )
        figures = Survey(gauge, subject).take(links=not asked.only_device)
        curves = Curves(gauge, subject, {name: figure.value for name, figure in figures.items()}, models)
        if asked.only_device:
            with gauge.watched("curves"):
                curves.take()
    command = shlex.join(["python", "-m", "zbench.calibrate", *sys.argv[1:]])
    name = "calibrated" if asked.out is None else asked.out.stem
    where = Circumstances(command, f"{date.today()}", gauge.abouts, gauge.others)
    if asked.only_device:
        text = device_sheet(subject, figures, curves, where)
        if asked.points is not None:
            with whole_file("--points", asked.points, POINTS) as stream:
                stream.write("".join(json.dumps(point.line()) + "\n" for point in curves.points).encode())
    else:
        text = sheet(name, subject, figures, where)
    if max(gauge.others.values(), default=0.0) > BUSY:
        _tell(f"{others_words(gauge.others)}; measure again when they are idle")
    if asked.out is None:
        print(text, end="")
        return 0
    try:
        with whole_file("-o", asked.out, SHEET) as stream:
            stream.write(text.encode())
    except ValueError as error:
        print(text, end="")
        print(f"zbench: {error}; the yaml is printed instead", file=sys.stderr)
        return 1
    print(f"Wrote {asked.out}")
    return 0


def asked_shape(asked: argparse.Namespace, world: ProcessPlace | None) -> tuple[int, int]:
    """Returns (nodes, GPUs a node), given or, of processes already started, found."""
    nodes, gpus = asked.nodes, asked.gpus_per_node
    if asked.only_device:
        if (nodes, gpus, world) != (None, None, None):
            raise ValueError(
                "--only-device is of one rank that it starts itself; it takes no --nodes or --gpus-per-node"
            )
        return 1, 1
    for flag, value in (("--matmuls", asked.matmuls), ("--points", asked.points)):
        if value is not None:
            raise ValueError(f"{flag} is {value}; it belongs to --only-device")
    if world is not None:
        gpus = world.num_local if gpus is None else gpus
        nodes = world.num_ranks // gpus if nodes is None and gpus else nodes
    for flag, value in (("--nodes", nodes), ("--gpus-per-node", gpus)):
        if value is not None:
            check_whole_number(flag, value, 1)
    for flag, value in (("--nodes", nodes), ("--gpus-per-node", gpus)):
        if value is None:
            raise ValueError(f"{flag} has to be given, as in {flag} 2")
    if world is not None:
        if nodes * gpus != world.num_ranks:
            raise ValueError(f"--nodes x --gpus-per-node is {nodes * gpus}; {world.num_ranks} processes were started")
        if world.num_local not in (None, gpus, world.num_ranks):
            raise ValueError(f"--gpus-per-node is {gpus}; {world.num_local} processes were started on each machine")
    return nodes, gpus


def _model(name: str) -> Model:
    with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
        config = compose("config", overrides=[f"model={name}"])
    return make_model(config)


def _leading(world: ProcessPlace | None) -> contextlib.AbstractContextManager[None]:
    if world is None:
        return contextlib.nullcontext()
    from zbench.runtime.processes.join import lead

    return lead(world)


def _fleet(world: ProcessPlace | None, subject: Subject, window: float) -> Fleet:
    patience = 30.0 + 20 * window
    if world is None:
        from zbench.runtime.processes.launch import LocalFleet

        return LocalFleet(subject.num_ranks, TARGET, subject, timeout=patience)
    from zbench.runtime.processes.join import JoinedFleet

    return JoinedFleet(world, TARGET, subject, timeout=patience)


def _tell(line: str) -> None:
    print(f"calibrate: {line}", file=sys.stderr, flush=True)


def _check_out(asked: argparse.Namespace) -> None:
    """Refuses what would only be found out after measuring."""
    if asked.out is not None:
        if asked.out.suffix != ".yaml":
            raise ValueError(f"-o is {str(asked.out)!r}; it takes a file that ends in .yaml")
        check_output("-o", asked.out, SHEET)
    if asked.points is not None:
        check_output("--points", asked.points, POINTS)
    check_apart({"-o": asked.out, "--points": asked.points})


def _check_cuda(device: str) -> None:
    """Refuses a device that torch does not find; told here in one sentence, and not by every rank."""
    if device == "cuda":
        import torch

        if not torch.cuda.is_available():
            raise ValueError("--device is cuda; torch finds no CUDA device on this machine")


if __name__ == "__main__":
    sys.exit(main())
