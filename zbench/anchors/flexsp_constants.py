"""FlexSP's own cost model, by the constants of its public code: GPT-7B on 64 A100-40G, 28 GB of each. Pure: no torch.

A group of d GPUs with sequences s takes (alpha1 sum(s^2) + alpha2 sum(s)) / d, the all-to-alls of sum(s) / d tokens at
the measured bandwidth of its degree, and a constant; a micro-batch is as long as its slowest group (arXiv 2412.01523,
equations 11 to 14). What the constant is made of is not published.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from zbench.anchors.anchor import GetCluster, published_rows
from zbench.anchors.flexsp import GPT_7B
from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.describe.arrays import Floats, Ints
from zbench.systems.flexsp.batches import MicroBatch
from zbench.systems.flexsp.cost import Objective

# PKU-DAIR/Hetu-Galvatron, branch flexsp (b4666892), galvatron/flexsp_solver/solver.py, gpt-7b.
FIXED = 0.6293563  # beta1, seconds a micro-batch
TOKEN_MIB, STATE_GIB = 4.480441895, 7.1174468994140625 * 16  # activations a token; states of the model, all GPUs'
BUDGET_MIB = 28 * 1024
GPUS = 64
MOVES = 8  # of a token's hidden states, forward and backward of a layer


def published_objective(get_cluster: GetCluster) -> Objective:
    """Returns FlexSP's objective with its published constants. What ZeRO-3's collectives take is in FIXED, if anywhere,
    so that none are charged beside it."""
    degree, moved = moved_seconds()
    square, linear = _coefficients()
    tokens = int((BUDGET_MIB - STATE_GIB * 1024 / GPUS) / TOKEN_MIB)
    none = Collectives.of(Cost(get_cluster("a100_8x8"), replace(GPT_7B, sharding="zero1")))
    fixed = np.full(len(degree), FIXED)
    return Objective(degree, square / degree, (linear + moved) / degree, fixed, tokens * degree, GPUS, none)


def moved_seconds() -> tuple[Ints, Floats]:
    """Returns (degrees, seconds for which the all-to-alls of each keep a GPU for one of its tokens, of all layers)."""
    rates = {int(row["degree"]): float(row["gigabytes_per_second"]) for row in published_rows("all_to_all")}
    # GB/s are taken as MiB a millisecond, as their code does.
    mib = MOVES * GPT_7B.num_layers * GPT_7B.hidden * 2 / 2**20
    moved = np.array([0.0, *(mib / rates[degree] / 1e3 for degree in sorted(rates))])
    return np.array([1, *sorted(rates)], np.int64), moved


def operations_by_constants(parts: Sequence[MicroBatch], lengths: Ints, degrees: Ints) -> Mapping[str, float]:
    """Returns the seconds of a step by what they go to, means over GPUs, by the published constants; they sum to what
    FlexSP's model has for the step. lengths: int64 [n], of the batch. degrees: those that groups' places are in."""
    known, moved = moved_seconds()
    square, linear = _coefficients()
    move_of = moved[np.searchsorted(known, degrees)]
    found = dict.fromkeys(("attention", "linear", "all-to-alls", "other GPUs", "constant"), 0.0)
    for part in parts:
        s = lengths[part.sequences].astype(np.float64)
        place = part.found.packed.index[part.found.packed.group]
        each = square * s * s, linear * s, move_of[place] * s  # seconds of all GPUs of the group
        number = len(part.found.packed.index)
        loads = np.bincount(part.found.packed.group, sum(each) / degrees[place], minlength=number)
        means = [float(of.sum()) / GPUS for of in each]
        for name, seconds in zip(found, [*means, float(loads.max()) - sum(means), FIXED], strict=True):
            found[name] += seconds
    return found


def _coefficients() -> tuple[float, float]:
    """Returns alpha1 and alpha2, seconds a token^2 and a token."""
    found = {row["coefficient"]: float(row["value"]) / 1e3 for row in published_rows("compute")}
    return found["alpha1"], found["alpha2"]
