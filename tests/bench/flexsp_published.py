"""FlexSP, one degree a batch and one for all, each as published and improved, by the constants FlexSP's code has.

python tests/bench/flexsp_published.py [--workload wikipedia] [--limit 196608] [--batches 20]

Predicted seconds of a step of 512 documents by FlexSP's own cost model (64 A100-40G, GPT-7B), not played on a clock:
packing alone differs. Documents above the limit are left out.
"""

import argparse

import numpy as np
from test_flexsp import drawn

from zbench.anchors.flexsp import GPT_7B
from zbench.anchors.flexsp_constants import published_objective
from zbench.anchors.presets import cluster
from zbench.cost.cost import Cost
from zbench.plans.plan import Ints
from zbench.systems.flexsp.batches import split_batch, total_seconds
from zbench.systems.flexsp.cost import Objective
from zbench.systems.flexsp.search import glance, search_groups
from zbench.systems.flexsp_batch_ada import FlexSPBatchAda


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
    of, rows = published_objective(cluster), []
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
