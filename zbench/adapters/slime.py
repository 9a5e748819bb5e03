"""The adapter of slime: its schedule of micro-batches by our planner, in the contract that slime's trainer has.

    from zbench.adapters import slime
    slime.install(cluster="h200_4x8", model="llama_7b", num_nodes=1)   # in the process of slime's rollout manager

slime packs a step's samples first-fit in their order, and deals the packs to data-parallel ranks then. The planner
makes and deals packs together, by the cost model: in every micro-batch the ranks have about as much to do, and as few
micro-batches as that takes. What slime's docstring promises holds: as many micro-batches on every rank, no pack above
max_tokens_per_gpu x cp_size except a sample alone, every sample once.

Source of the interface: slime, slime/utils/dp_schedule.py (624b824a).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from zbench.adapters.frameworks import framework_module, replace_function
from zbench.adapters.planning import Planning
from zbench.api.yamls import Named
from zbench.contracts.contract import WholeOnDP
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model
from zbench.describe.units import with_noun

MODULE = "slime.utils.dp_schedule"
_INSTALL = "it is installed from its repository: pip install git+https://github.com/THUDM/slime"
# (samples of every rank, [rank][micro-batch] -> places in those, micro-batches of every step, rollouts of every step)
DPSchedule: TypeAlias = tuple[list[list[int]], list[list[list[int]]], list[int], list[int]]


def schedule_function(planning: Planning, static: Callable[..., DPSchedule] | None = None) -> Callable[..., DPSchedule]:
    """Returns a function to use as slime's build_dp_schedule. static: what schedules micro-batches of a fixed number of
    samples (use_dynamic_batch_size off), in which there is nothing to plan; None: they are refused."""

    def build_dp_schedule(
        args: Any,
        train_parallel_config: Mapping[str, int],
        total_lengths: Sequence[int],
        *,
        global_batch_size: int,
        rollout_indices: Sequence[int],
    ) -> DPSchedule:
        """Schedules the samples of a rollout; arguments and result are those of slime's function of this name.

        Raises:
            ValueError: there are too few samples or rollouts, or micro-batches are static and `static` is None.
        """
        sizes = {"global_batch_size": global_batch_size, "rollout_indices": rollout_indices}
        if not args.use_dynamic_batch_size:
            if static is None:
                raise ValueError("use_dynamic_batch_size is off; the planner takes it on, with max_tokens_per_gpu")
            return static(args, train_parallel_config, total_lengths, **sizes)
        steps = _steps(rollout_indices, global_batch_size)
        ranks = train_parallel_config["dp_size"]
        virtual = train_parallel_config["vpp_size"] > 1
        contract = WholeOnDP(
            ranks,
            max_tokens=args.max_tokens_per_gpu * train_parallel_config["cp_size"],
            multiple=train_parallel_config["microbatch_group_size_per_vp_stage"] if virtual else 1,
        )
        rows: list[list[int]] = [[] for _ in range(ranks)]
        micro_batches: list[list[list[int]]] = [[] for _ in range(ranks)]
        counts = []
        for samples in steps:
            planned = _packs(planning, contract, [(sample, int(total_lengths[sample])) for sample in samples])
            counts.append(len(planned))
            for packs in planned:
                for rank, pack in enumerate(packs):
                    start = len(rows[rank])
                    rows[rank].extend(pack)
                    micro_batches[rank].append(list(range(start, len(rows[rank]))))
        return rows, micro_batches, counts, [global_batch_size] * len(steps)

    return build_dp_schedule


def install(
    *, cluster: Named | Cluster, model: Named | Model, mask: str | None = None, num_nodes: int | None = None
) -> Callable[..., DPSchedule]:
    """Makes the planner slime's build_dp_schedule in this process; returns the function.

    cluster, model, mask, num_nodes: as of Planning.of, the cluster of as many ranks as data-parallel groups.

    Raises:
        ValueError: slime is not there, or a name cannot be.
    """
    planning = Planning.of(cluster, model, mask, num_nodes)
    module = framework_module(MODULE, "zbench.adapters.slime", _INSTALL)
    own = module.build_dp_schedule
    made = schedule_function(planning, getattr(own, "__wrapped__", own))
    vars(made)["__wrapped__"] = getattr(own, "__wrapped__", own)
    replace_function(module, "build_dp_schedule", made)
    return made


def _steps(rollout_indices: Sequence[int], size: int) -> list[list[int]]:
    """Returns the samples of every step: `size` rollouts each, in their order; rollouts left at the end are dropped."""
    of_rollout: dict[int, list[int]] = {}
    for sample, rollout in enumerate(rollout_indices):
        of_rollout.setdefault(rollout, []).append(sample)
    rollouts = list(of_rollout.values())
    if size < 1 or len(rollouts) < size:
        raise ValueError(f"global_batch_size is {size} with {len(rollouts)} rollouts; it takes 1 to {len(rollouts)}")
    whole = len(rollouts) // size * size
    return [[one for each in rollouts[at : at + size] for one in each] for at in range(0, whole, size)]


def _packs(planning: Planning, contract: WholeOnDP, samples: Sequence[tuple[int, int]]) -> list[list[list[int]]]:
    """Returns [micro-batch][rank] -> samples. A sample above the limit is planned as one that fills it, which keeps it
    alone."""
    if len(samples) < contract.ranks:
        raise ValueError(
            f"a step has {with_noun(len(samples), 'sample')} for {with_noun(contract.ranks, 'rank')}; every rank "
            "takes at least one"
        )
    assert contract.max_tokens is not None
    most = contract.max_tokens
    planned = planning.samples([(sample, min(length, most)) for sample, length in samples], contract)
    return [[[int(one) for one in pack] for pack in packs] for packs in planned.micro_batches]
