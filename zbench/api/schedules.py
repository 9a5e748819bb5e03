"""The library's function for schedules inside a framework's contract: plan_schedule. A name of `zbench` itself."""

from typing import Any

from zbench.api.compiling import compiling_told
from zbench.api.functions import CLUSTER, MODEL, Lengths, checked_lengths
from zbench.api.parts import Worlds, cluster_named, machine_in, model_named, told
from zbench.api.yamls import Named
from zbench.contracts.contract import CONTRACTS, WholeOnDP, contract_named
from zbench.contracts.schedule import Schedule
from zbench.cost.job import make_cost
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.describe.units import with_noun
from zbench.systems.in_contract.planner import schedule_lengths


def plan_schedule(
    lengths: Lengths,
    *,
    cluster: Named | Cluster = CLUSTER,
    model: Named | Model = MODEL,
    contract: str = "aligned_pow2_rings",
    mask: str | None = None,
    world: Worlds = None,
    **keys: Any,
) -> Schedule:
    """Schedules a training step inside what a framework's engine can run: which ranks run which samples together.

        import zbench
        schedule = zbench.plan_schedule([60000, 5000, 300], cluster="a800_2x8", contract="aligned_pow2_rings")
        schedule.lists()  # [micro-batch][rank] -> samples, as Megatron-LM's sample_id_groups

    lengths: [num_samples], tokens of each; of equal_token_permutation the documents of one pack. cluster, model, mask,
    world: as of `zbench.plan`; the contract is for the cluster's ranks. keys: of the contract
    (zbench.contracts.contract); of whole_on_dp also ranks, where several GPUs are one data-parallel rank.

    Returns a schedule that has passed the contract's checker; samples are 0, 1, and so on. The same arguments give the
    same schedule on every machine.

    Raises:
        ValueError: a length, name, key or size cannot be, or no schedule of the contract holds the lengths; a sentence.
    """
    numbers = checked_lengths(lengths)
    with told(), compiling_told():
        cost = make_cost(*machine_in(world, cluster_named(cluster), model_named(model, mask=mask)))
        own = CONTRACTS.get(contract) is WholeOnDP and "ranks" in keys
        if not own and "ranks" in keys and contract in CONTRACTS:
            raise ValueError(
                f"ranks is {keys['ranks']!r:.60}; contract {contract} is for the "
                f"{with_noun(cost.cluster.num_ranks, 'rank')} of the cluster, and a cluster of others takes cluster="
            )
        ranks = keys.pop("ranks") if own else cost.cluster.num_ranks
        return schedule_lengths(numbers, contract_named(contract, ranks, keys), cost)
