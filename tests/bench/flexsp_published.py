"""FlexSP, one degree a batch and one for all, each as published and improved, by the constants FlexSP's code has.

python tests/bench/flexsp_published.py [--workload wikipedia] [--limit 196608] [--batches 20]

Predicted seconds of a step of 512 documents by FlexSP's own cost model (64 A100-40G, GPT-7B), not played on a clock:
packing alone differs. Documents above the limit are left out.
"""

import argparse
from dataclasses import replace

import numpy as np
from test_flexsp import drawn

from zbench.anchors.anchor import published_rows
from zbench.anchors.flexsp import GPT_7B
from zbench.anchors.presets import cluster
from zbench.cost.collective import Collectives
from zbench.cost.cost import Cost
from zbench.plans.plan import Ints
from zbench.systems.flexsp.batches import split_batch, total_seconds
from zbench.systems.flexsp.cost import Objective
from zbench.systems.flexsp.search import glance, search_groups
from zbench.systems.flexsp_batch_ada import FlexSPBatchAda

# PKU-DAIR/Hetu-Galvatron, branch flexsp (b4666892), galvatron/flexsp_solver/solver.py, gpt-7b.
FIXED = 0.6293563  # beta1, seconds a micro-batch
TOKEN_MIB, STATE_GIB = 4.480441895, 7.1174468994140625 * 16  # activations a token; states of the model, all GPUs'
BUDGET_MIB = 28 * 1024
HIDDEN, LAYERS, GPUS = 4096, 32, 64


def objective() -> Objective:
    """Theirs; ZeRO-3's collectives are in FIXED, so that none are charged beside it."""
    alpha = {row["coefficient"]: float(row["value"]) / 1e3 for row in published_rows("compute")}
    rates = {int(row["degree"]): float(row["gigabytes_per_second"]) for row in published_rows("all_to_all")}
    degree = np.array([1, *sorted(rates)], np.int64)
    # 8 moves of a token's hidden states; GB/s are taken as MiB a millisecond, as their code does.
    moved = np.array([0.0, *(8 * LAYERS * HIDDEN * 2 / 2**20 / rates[d] / 1e3 for d in sorted(rates))])
    tokens = int((BUDGET_MIB - STATE_GIB * 1024 / GPUS) / TOKEN_MIB)
    none = Collectives.of(Cost(cluster("a100_8x8"), replace(GPT_7B, sharding="zero1")))
    linear = (alpha["alpha2"] + moved) / degree
    return Objective(degree, alpha["alpha1"] / degree, linear, np.full(len(degree), FIXED), tokens * degree, GPUS, none)


def ada(lengths: Ints, of: Objective, packing: str, degree: int | None) -> float:
    system = FlexSPBatchAda(Cost(cluster("a100_8x8"), GPT_7B), degree=degree, packing=packing)  # type: ignore[arg-type]
    object.__setattr__(system, "objective", of)
    parts = system.micro_batches(lengths)
    return total_seconds((part.found for part in parts), of)


def flexsp(lengths: Ints, of: Objective) -> float:
    parts = split_batch(lengths, of, 5, lambda x: glance(x, of), lambda x: search_groups(x, of))
    assert parts is not None
    return total_seconds((part.found for part in parts), of)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workload", default="wikipedia")
    parser.add_argument("--limit", type=int, default=196_608)
    parser.add_argument("--batches", type=int, default=20)
    given = parser.parse_args()
    of, rows = objective(), []
    for step in range(given.batches):
        lengths = drawn(given.workload, step, 512, given.limit).lengths
        row = [ada(lengths, of, packing, degree) for degree in (64, None) for packing in ("published", "search")]
        rows.append([*row, flexsp(lengths, of)])
    static, static_search, ada_, ada_search, own = np.mean(rows, axis=0)
    print(f"{given.workload} within {given.limit}, mean of {given.batches} batches of 512 documents, seconds a step")
    print(f"one degree of 64: {static:.2f} published, {static_search:.2f} search")
    print(f"one degree a batch: {ada_:.2f} published, {ada_search:.2f} search")
    print(f"flexsp: {own:.2f}; over one degree a batch {ada_ / own:.2f} published, {ada_search / own:.2f} search")
    print(f"of a single batch at most: {max(row[2] / row[4] for row in rows):.2f} over the published one")


if __name__ == "__main__":
    main()
