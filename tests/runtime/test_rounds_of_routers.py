"""Training in rounds on processes where routers choose experts: losses are those of workers in one process, whose
routers choose by their own parameters, and every byte is what steps say of what was chosen."""

from dataclasses import replace
from typing import Any

import pytest

from tests.runtime.test_rounds import ADAMW, DENSE_FIRST, MOE, SHARED, simulated, streamed, trained
from tests.runtime.test_rounds_on_hosts import STATE, on_hosts
from tests.runtime.test_step_executor import cost_of
from zbench.describe.expert_schedule import EXPERT_CHOICE, TOKEN_CHOICE, Experts
from zbench.describe.sync import CO2, DILOCO, SLOWMO, STREAMING_DILOCO, RoundSync
from zbench.systems.ring import Ring
from zbench.systems.zeppelin.planner import Zeppelin

pytestmark = pytest.mark.usefixtures("one_thread")
# (cost, rounds, planner, steps, how experts are laid out and chosen)
CASES: dict[str, Any] = {
    "slowmo, experts on two GPUs, a dense layer first, ZeRO-3": (
        cost_of(2, 2, DENSE_FIRST, sharding="zero3"),
        RoundSync(SLOWMO, 2, "node", lr=0.8, momentum=0.5),
        Zeppelin,
        4,
        {"expert_parallel": 2, "experts": Experts(routing=TOKEN_CHOICE)},
    ),
    "co2, experts cut over two GPUs, in chunks": (
        cost_of(2, 2, MOE, sharding="none"),
        RoundSync(CO2, 2, "node", momentum=0.4, penalty="gap_aware", clip=0.02),
        Ring,
        4,
        {"expert_tensor_parallel": 2, "experts": Experts("tutel", 2, routing=TOKEN_CHOICE)},
    ),
    "streaming, padded seats, an average a step late": (
        cost_of(2, 2, SHARED, sharding="zero1"),
        RoundSync(STREAMING_DILOCO, 4, "node", lr=0.6, momentum=0.7, fragments=2, delay=1, mixing=0.3),
        Zeppelin,
        6,
        {"expert_parallel": 2, "experts": Experts(routing=TOKEN_CHOICE, capacity=2, padded=True)},
    ),
    "diloco, experts at home, state on hosts": (
        on_hosts(cost_of(2, 1, MOE, sharding="zero1"), STATE),
        RoundSync(DILOCO, 2, "rank", lr=0.7, momentum=0.9),
        Ring,
        4,
        {"experts": Experts(routing=TOKEN_CHOICE)},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_routers_of_workers_choose_by_their_own_parameters(case: str) -> None:
    cost, sync, planner, steps, strategy = CASES[case]
    found, parts = trained(cost, sync, ADAMW, planner, steps, **strategy)
    played = streamed if sync.method == STREAMING_DILOCO else simulated
    wanted = played(sync, ADAMW, parts, replace(cost.model, offload="none"), strategy["experts"])
    assert [one.loss for one in found] == pytest.approx(wanted, rel=1e-12)
    assert all(one.checks["bytes"] >= 0 for one in found)
    assert [one.expert_rows["dropped"] for one in found] == pytest.approx([0] * steps, abs=1e-12)


def test_experts_choose_tokens_of_their_own_worker() -> None:
    cost, sync = cost_of(2, 2, replace(MOE, gate="softmax_all"), sharding="zero2"), RoundSync(SLOWMO, 2, "node")
    experts = Experts(routing=EXPERT_CHOICE, capacity=1, padded=True)
    found, _ = trained(cost, sync, ADAMW, Zeppelin, 4, expert_parallel=2, experts=experts)
    assert all(one.checks["bytes"] >= 0 for one in found)
    kept = [one.expert_rows["kept"] for one in found]
    assert [one for one in kept if not 1 <= one < 1.2] == []  # seats are rounded up, GPU by GPU
    assert found[0].loss != found[-1].loss
    assert not any("experts" in one.nic_tx_for for one in found)
