"""python -m zbench.workloads NAME...: the lengths that workloads give, as a table of quantiles.

An edge, not part of the pure layer: it reads conf/workload with hydra.
"""

import sys
import time
from collections.abc import Callable

from zbench.console.command import Parser, loading, ran
from zbench.describe.arrays import Ints

with loading(__name__):
    import time
    from collections.abc import Callable

    import numpy as np
    from hydra import compose, initialize_config_dir
    from hydra.utils import instantiate

    from zbench import CONF
    from zbench.interfaces.protocols import Workload
    from zbench.workloads.check import whole

_CONF = CONF / "workload"
_QUANTILES = (0.5, 0.9, 0.99, 0.999)
_NEED_PATH = ("corpus", "lengths_file", "responses_file", "rl_traces_file")


def main() -> int:
    """Runs the command and returns its exit code."""
    return ran(_main, "nothing was written")


def _main() -> int:
    """Prints one row per workload."""
    parser = Parser(prog="python -m zbench.workloads", description="Quantiles of what workloads draw.")
    parser.add_argument("name", nargs="*", help="a yaml of conf/workload; none: all that need no path")
    parser.add_argument("--tokens", type=int, default=1 << 22, help="tokens of a batch (default: 4 Mi)")
    parser.add_argument("--steps", type=int, default=16, help="batches drawn (default: 16)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="such as path=lengths.txt")
    args = parser.parse_args()
    names = args.name or [name for name in workload_names() if name not in _NEED_PATH]
    columns = ["p50", "p90", "p99", "p99.9", "max", ">=32K"]
    whole("--steps", args.steps, 1)
    rows = [_row(name, *_draw(load_workload(name, args.seed, args.tokens, args.set), args.steps)) for name in names]
    print(f"{'workload':18}{'documents':>10}{'mean':>9}" + "".join(f"{c:>9}" for c in columns) + f"{'batch':>10}")
    print("\n".join(rows))
    return 0


def workload_names() -> list[str]:
    """Lists the names of conf/workload's yamls."""
    return sorted(path.stem for path in _CONF.glob("*.yaml"))


def load_workload(name: str, seed: int, tokens: int, settings: list[str]) -> Workload:
    """Makes the workload of conf/workload/NAME.yaml, with settings such as "context_limit=65536"."""
    try:
        return loader(name, settings)(seed=seed, tokens=tokens)
    except TypeError as error:  # a key that its class does not know, or a value of a type it does not check itself
        raise ValueError(f"workload {name} cannot be made from its yaml: {error}") from error


def loader(name: str, settings: list[str]) -> Callable[..., Workload]:
    """Returns a function that makes such workloads, each from its `seed` and `tokens`: composing the yaml takes longer
    than all of them."""
    if name not in workload_names():
        raise ValueError(f"workload is {name!r}; it must be one of {', '.join(workload_names())}")
    with initialize_config_dir(str(_CONF.parent), version_base="1.3"):
        config = compose(overrides=[f"+workload={name}", *(f"workload.{setting}" for setting in settings)])
    made: Callable[..., Workload] = instantiate(config.workload, _partial_=True, _convert_="all")
    return made


def _draw(workload: Workload, steps: int) -> tuple[Ints, float]:
    """Returns (lengths of all steps, seconds of the slowest batch)."""
    lengths, slowest = [], 0.0
    for step in range(steps):
        begin = time.perf_counter()
        lengths.append(workload.batch(step).lengths)
        slowest = max(slowest, time.perf_counter() - begin)
    return np.concatenate(lengths), slowest


def _row(name: str, lengths: Ints, seconds: float) -> str:
    points = [*np.quantile(lengths, _QUANTILES), lengths.max()]
    long_share = lengths[lengths >= 32768].sum() / lengths.sum()
    numbers = "".join(f"{point:9.0f}" for point in points)
    return f"{name:18}{lengths.size:10d}{lengths.mean():9.0f}{numbers}{long_share:9.1%}{seconds * 1e3:7.1f} ms"


if __name__ == "__main__":
    sys.exit(main())
