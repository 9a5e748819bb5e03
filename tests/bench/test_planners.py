"""How long planners take on published length distributions.

Not collected by default: `make bench`. a100_8x8 and its larger kin, llama_7b, 4,096 tokens a GPU as drawn; and 512
documents within 192K on 64 ranks (FlexSP's set-up), which may need several micro-batches: 20 batches, one run each.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hydra import compose, initialize_config_dir

from zbench.describe.batch import Batch
from zbench.interfaces.protocols import System
from zbench.proof.verify import verify_step
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.run.warm import warm

CONF = Path(__file__).parents[2] / "conf"
NAMES = ("usp", "loongtrain", "fcp", "distca", "local_packing", "bytescale", "wlb_llm", "hydraulis")
LIMIT = 196_608


def setting(name: str, workload: str, ranks: int) -> tuple[System, Parts]:
    overrides = [
        "cluster=a100_8x8",
        f"cluster.num_nodes={ranks // 8}",
        "model=llama_7b",
        f"workload={workload}",
        "tokens_per_gpu=4096",
        f"system={name}",
        "tracker=none",
    ]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", overrides)
        parts = Parts.of(config, Settings.of(config))
        system = make_system(config, parts.cost)
    warm(system)
    return system, parts


@pytest.mark.parametrize("ranks", [64, 1024])
@pytest.mark.parametrize("workload", ["wikipedia", "github"])
@pytest.mark.parametrize("name", NAMES)
def test_as_drawn(benchmark: Callable, name: str, workload: str, ranks: int) -> None:
    system, parts = setting(name, workload, ranks)
    batch = parts.workload.batch(0)
    assert batch.num_tokens == 4096 * ranks
    plans = benchmark.pedantic(lambda: system.plan(batch), rounds=7, warmup_rounds=1)
    transfers = sum(plan.num_transfers for plan in plans)
    assert transfers == sum(plan.num_transfers for plan in system.plan(batch))  # nothing in a plan is left to chance
    benchmark.extra_info |= {"sequences": len(batch.lengths), "transfers": transfers}
    verify_step(batch, plans)


@pytest.mark.parametrize("workload", ["wikipedia", "github"])
@pytest.mark.parametrize("name", NAMES)
def test_512_sequences_on_64_ranks(benchmark: Callable, name: str, workload: str) -> None:
    system, parts = setting(name, workload, 64)
    count = []

    def drawn() -> tuple[tuple[Batch], dict[str, object]]:
        lengths = parts.workload.draw(np.random.default_rng((len(count), 7)), 1024)  # type: ignore[attr-defined]
        return (Batch(lengths[lengths <= LIMIT][:512], seed=0, step=len(count)),), {}

    def planned(batch: Batch) -> None:
        plans = system.plan(batch)
        assert len(batch.lengths) == sum(len(plan.lengths) for plan in plans) == 512
        count.append(len(plans))

    benchmark.pedantic(planned, setup=drawn, rounds=20, warmup_rounds=1)
    benchmark.extra_info["micro_batches"] = count[1:]
