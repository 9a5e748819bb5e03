"""The adapter of megatron-core: the planner as its dynamic context-parallel scheduler, and a checker for what it ships.

The development branch has `scheduler_map["default_dynamic_cp"]`, whose class packs whole batches and forms a group of
ranks for every pack. Its configuration insists on that name, so the class is replaced and the key is kept:

    from zbench.adapters import megatron_core
    megatron_core.install(cluster="h200_4x8", model="llama_7b", num_nodes=2)     # ahead of training, on every rank

The installed release (0.16) has hybrid context parallelism, whose engine runs one sample at a time: no planner of ours,
but `check_released` has every schedule of its scheduler checked.

Source of the interface: NVIDIA/Megatron-LM, megatron/core/datasets/data_schedule.py (development branch, d48bd6be) and
megatron/core/pipeline_parallel/hybrid_cp_schedule.py (release 0.16.1).
"""

from collections.abc import Iterable, Sequence
from functools import wraps
from typing import Any

from zbench.adapters.frameworks import framework_module
from zbench.adapters.planning import Planning
from zbench.api.yamls import Named
from zbench.contracts.check import check_schedule
from zbench.contracts.contract import AlignedPow2Rings
from zbench.contracts.schedule import SampleId, SampleSchedule
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model

DEVELOPMENT = "megatron.core.datasets.data_schedule"
RELEASED = "megatron.core.pipeline_parallel.hybrid_cp_schedule"
KEY = "default_dynamic_cp"
_INSTALL_DEVELOPMENT = "the development branch has it: pip install git+https://github.com/NVIDIA/Megatron-LM@dev"
_INSTALL_RELEASED = "pip install 'megatron-core>=0.16,<0.17'"


def scheduler_class(planning: Planning) -> type[Any]:
    """Returns a subclass of megatron-core's DefaultDynamicCPScheduler that asks `planning` for its groups.

    Raises:
        ValueError: megatron-core is not there, or has no such class.
    """
    module = framework_module(DEVELOPMENT, "zbench.adapters.megatron_core", _INSTALL_DEVELOPMENT)
    base: Any = getattr(module, "DefaultDynamicCPScheduler", None)
    if base is None:
        raise ValueError(
            f"zbench.adapters.megatron_core needs {DEVELOPMENT}.DefaultDynamicCPScheduler, which the installed "
            f"megatron-core does not have; {_INSTALL_DEVELOPMENT}"
        )

    class PlannedDynamicCPScheduler(base):  # type: ignore[misc]
        """The scheduler whose groups zbench plans; its other methods are megatron-core's."""

        def get_groups_and_subsamples(
            self, sample_id_seqlens: Sequence[tuple[SampleId, int]]
        ) -> list[list[list[SampleId]]]:
            """Returns [micro-batch][rank] -> ids of samples. sample_id_seqlens: (id, padded tokens) of each.

            Raises:
                zbench.contracts.schedule.ContractError: no schedule of the contract holds these lengths.
            """
            contract = AlignedPow2Rings(
                int(self.total_hdp_gpus),
                max_tokens=int(self.max_seq_len_per_rank),
                least=int(self.min_cp_size),
                multiple=int(self.microbatch_group_size_per_vp_stage or 1),
            )
            return planning.samples(_pairs(sample_id_seqlens), contract).lists()

    return PlannedDynamicCPScheduler


def install(
    *, cluster: Named | Cluster, model: Named | Model, mask: str | None = None, num_nodes: int | None = None
) -> type[Any]:
    """Makes the planner megatron-core's dynamic context-parallel scheduler in this process; returns its class.

    cluster, model, mask, num_nodes: as of Planning.of. To be called on every rank, ahead of training.

    Raises:
        ValueError: megatron-core is not there or has no such scheduler, or a name cannot be.
    """
    made = scheduler_class(Planning.of(cluster, model, mask, num_nodes))
    framework_module(DEVELOPMENT, "zbench.adapters.megatron_core", _INSTALL_DEVELOPMENT).scheduler_map[KEY] = made
    return made


def check_groups(
    groups: Sequence[Sequence[Sequence[SampleId]]],
    samples: Sequence[tuple[SampleId, int]],
    ranks: int,
    max_tokens: int | None = None,
) -> None:
    """Returns if megatron-core's engine runs these groups, [micro-batch][rank] -> ids. max_tokens: of a rank, if
    limited.

    Raises:
        zbench.contracts.schedule.ContractError: it would hang, lose a sample or run one twice; the message says where.
    """
    check_schedule(SampleSchedule.of(_pairs(samples), groups), AlignedPow2Rings(ranks, max_tokens=max_tokens))


def check_released() -> None:
    """Has every schedule of the release's BalancedCPScheduler checked before the engine runs it.

    Raises:
        ValueError: megatron-core is not there, or has no such class.
    """
    module = framework_module(RELEASED, "zbench.adapters.megatron_core", _INSTALL_RELEASED)
    scheduler: Any = module.BalancedCPScheduler
    own = scheduler.get_groups_and_subsamples
    if hasattr(own, "__wrapped__"):
        return  # it is checked already

    @wraps(own)
    def checked(self: Any, sample_id_seqlens: Any, *args: Any, **keys: Any) -> Any:
        found = own(self, sample_id_seqlens, *args, **keys)
        check_groups(found[1], sample_id_seqlens, int(self.total_hdp_gpus))
        return found

    scheduler.get_groups_and_subsamples = checked


def _pairs(samples: Any) -> Any:
    """Returns (id, tokens) as Python's own, of what may be numbers of numpy or torch; what is neither is left for
    SampleSchedule.of to refuse."""
    if isinstance(samples, str) or not isinstance(samples, Iterable):
        return samples
    return [tuple(map(_own, one)) if isinstance(one, tuple | list) else _own(one) for one in samples]


def _own(value: Any) -> Any:
    return value.item() if getattr(value, "ndim", None) == 0 else value
