"""The planner inside a contract: the schedule that a framework's engine runs fastest, by the cost model and the clock.

docs/contracts.md describes contracts and planner. A schedule is a function of lengths, contract and cost alone, so that
every rank of a job finds the same one by itself.
"""

from dataclasses import dataclass

from zbench.contracts.check import check_schedule
from zbench.contracts.contract import Contract, EqualTokenPermutation, WholeOnDP, contract_named
from zbench.contracts.schedule import ContractError, SampleSchedule, Schedule
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.checks import check_whole_number
from zbench.passes.reverse import Mode, check_mode
from zbench.plans.plan import Ints, Plan
from zbench.systems.in_contract.choice import fastest_rounds
from zbench.systems.in_contract.laid import plans_of_rings

PLAYED = 6  # candidates that the clock decides between, a judgement


def schedule_lengths(
    lengths: Ints, contract: Contract, cost: Cost, backward: Mode = "carry", played: int = PLAYED
) -> Schedule:
    """Returns the schedule of the contract that is fastest on the clock; samples are 0, 1, and so on.

    lengths: int64 [num_samples]. backward: what becomes of received kv in rings.

    Raises:
        ContractError: no schedule of the contract holds them, or it is for another number of ranks than the cluster.
    """
    if contract.ranks != cost.cluster.num_ranks:
        raise ContractError(
            f"the contract is for {contract.ranks} ranks; the cluster {cost.cluster.name} has {cost.cluster.num_ranks}"
        )
    schedule = fastest_rounds(lengths, contract, cost, backward, played)
    check_schedule(schedule, contract)
    return schedule


@dataclass(frozen=True, slots=True)
class InContract:
    """The planner inside a contract as a system. contract: its name (zbench.contracts.contract). max_tokens,
    least_degree, multiple: the contract's. backward: what becomes of received kv. played: candidates that the clock
    decides between.

    Raises:
        ValueError: a key has no such value.
    """

    cost: Cost
    contract: str = "aligned_pow2_rings"
    max_tokens: int | None = None
    least_degree: int = 1
    multiple: int = 1
    backward: Mode = "carry"
    played: int = PLAYED

    def __post_init__(self) -> None:
        check_mode("system.backward", self.backward)
        check_whole_number("system.played", self.played, 1)
        self.of_cluster()

    def of_cluster(self) -> Contract:
        """Returns the contract, for the cluster's ranks."""
        keys = {"max_tokens": self.max_tokens, "least": self.least_degree, "multiple": self.multiple}
        return contract_named(self.contract, self.cost.cluster.num_ranks, keys)

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        schedule = schedule_lengths(batch.lengths, self.of_cluster(), self.cost, self.backward, self.played)
        return plans_of_rings(schedule, self.cost, self.backward)
