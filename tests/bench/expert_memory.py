"""Planners' memory beside live ranges, for models with experts: python -m tests.bench.expert_memory COUNT SEED [KIND]

COUNT combinations, drawn from SEED, of two models with experts, shardings, recomputation, vocabularies, tensor
parallelism, layouts of experts over GPUs and exchanges beside matmuls; three sequences a rank, eight GPUs. What
planners reckon over live ranges (zbench.simulator.steps.account): of the GPU where that is least, and of the fullest.
KIND: how tokens choose experts, one of KINDS, "even" if none is said, or "uneven": each combination one of the others.
Combinations that no step has are left out. COUNT 400 takes some three minutes of a core.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import cycle, product
from typing import Any, NamedTuple

import numpy as np

from tests.helpers.oracles import small
from tests.step.test_exchanges import HOWS
from zbench.cost.job import make_cost
from zbench.cost.memory.peak import peak_bytes
from zbench.describe.batch import Batch
from zbench.describe.exchanges import WHOLE
from zbench.describe.expert_schedule import DIRICHLET, EXPERT_CHOICE, TOKEN_CHOICE, Experts
from zbench.describe.model import SOFTMAX_ALL, Model
from zbench.simulated.executor import Simulated
from zbench.systems.local_packing import LocalPacking

GPUS = 8
LAYOUTS = ((1, 1), (2, 1), (4, 1), (8, 1), (2, 2), (1, 4), (4, 2))  # groups of GPUs that hold all experts, and cuts
WAYS = ("", "async_tp", "commfuse", "commfuse direct", "sliced 2", "query_split")
KINDS = {
    "even": Experts(),
    "zipf": Experts(skew=0.9),
    "zipf 2": Experts(skew=2.0),
    "dirichlet": Experts(skew=0.5, popularity=DIRICHLET),
    "drift": Experts(skew=0.9, drift=20),
    "capacity": Experts(capacity=1.25),
    "capacity zipf": Experts(skew=0.9, capacity=1.25),
    "padded": Experts(capacity=1.25, padded=True),
    "padded zipf": Experts(skew=0.9, capacity=2.0, padded=True),
    "token_choice, seats": Experts(capacity=1.25, padded=True, routing=TOKEN_CHOICE),
    "expert_choice, seats": Experts(capacity=1.25, padded=True, routing=EXPERT_CHOICE),
    "token_choice, dropless": Experts(routing=TOKEN_CHOICE),
    "token_choice, capacity": Experts(capacity=1.25, routing=TOKEN_CHOICE),
}


class Combination(NamedTuple):
    """One combination of choices. fine: sixteen small experts, six a token, two that all pass; else eight, two each."""

    fine: bool
    sharding: str
    recompute: str
    vocab: int
    tensor_parallel: int
    layout: tuple[int, int]
    way: str
    length: int
    kind: str = "even"

    @property
    def experts(self) -> Experts:
        """How tokens choose experts."""
        return KINDS[self.kind]

    @property
    def model(self) -> Model:
        """The model of three layers."""
        shape: dict[str, Any] = {"hidden": 512, "num_heads": 8, "num_kv_heads": 8, "head_dim": 64, "num_layers": 3}
        many: dict[str, Any] = {"ffn_hidden": 128, "num_experts": 16, "experts_per_token": 6, "shared_experts": 2}
        few: dict[str, Any] = {"ffn_hidden": 1024, "num_experts": 8, "experts_per_token": 2}
        own: dict[str, Any] = {
            name: getattr(self, name) for name in ("sharding", "recompute", "vocab", "tensor_parallel")
        }
        own |= {"gate": SOFTMAX_ALL} if self.experts.routing == EXPERT_CHOICE else {}
        return replace(small(1, GPUS).model, **shape, **(many if self.fine else few), **own)

    def ratios(self) -> tuple[float, float]:
        """Returns what planners reckon over live ranges, of the GPU where that is least and of the fullest.

        Raises:
            ValueError: no step has this combination.
        """
        (groups, cut), exchanges = self.layout, HOWS[self.way] if self.way else WHOLE
        cluster = small(1, GPUS, memory=4e12).cluster
        cost = make_cost(cluster, self.model, False, True, groups * cut, cut, exchanges)
        batch = Batch(np.full(3 * cost.cluster.num_ranks, self.length), 0, 0)
        cost = cost.routed_by(self.experts, (batch.seed, batch.step))
        plans = LocalPacking(cost, pack_tokens=self.length).plan(batch)
        degrees = {"expert_parallel": groups, "expert_tensor_parallel": cut}
        run = Simulated(cost, exchanges=exchanges, experts=self.experts, **degrees)
        found = np.array(run.step(batch, plans).peak_bytes, float)
        reckoned = np.repeat(peak_bytes(plans, cost) / cost.tp, cost.tp)
        return float((reckoned / found).min()), float(reckoned.max() / found.max())


def drawn(count: int, seed: int, kinds: Sequence[str] = ("even",)) -> Iterator[Combination]:
    """Draws combinations, none of them twice, of these kinds in turn."""
    choices = ((False, True), ("none", "zero1", "zero2", "zero3"), ("none", "selective", "full"), (1000, 64000), (1, 2))
    every = [Combination(*one) for one in product(*choices, LAYOUTS, WAYS, (1024, 4096))]
    every = [one for one in every if one.tensor_parallel > 1 or not one.way]
    order = np.random.default_rng(seed).permutation(len(every))[:count].tolist()
    for at, kind in zip(order, cycle(kinds), strict=False):
        yield every[at]._replace(kind=kind)


def main(count: int, seed: int, kind: str = "even") -> None:
    found, kinds = [], list(KINDS)[1:] if kind == "uneven" else [kind]
    for number, one in enumerate(drawn(count, seed, kinds), start=1):
        try:
            found.append((*one.ratios(), one))
        except ValueError:
            continue
        print(f"\r{number} of {count}", end="", file=sys.stderr)
    print(file=sys.stderr)
    least, most = min(found), max(found, key=lambda one: one[1])
    print(f"{len(found)} combinations: {least[0]:.4f} to {most[1]:.4f}\nleast: {least[2]}\nmost: {most[2]}")
    for each in kinds:
        some = [one for one in found if one[2].kind == each]
        print(f"{each}: {len(some)}, {min(some)[0]:.4f} to {max(one[1] for one in some):.4f}")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:4])
