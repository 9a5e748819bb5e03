"""The adapter of verl: work by the cost model, a balancer that keeps max_token_len, dynamic CP by our planner.

    from zbench.adapters import verl
    verl.install(cluster="h200_4x8", model="llama_7b")                            # in every process that balances
    verl.install_dynamic_cp(cluster="h200_4x8", model="llama_7b", num_nodes=2)    # in every Megatron worker

verl takes a sequence of L tokens for 24,576 L + L^2, which is a dense 7B model's on no particular GPU. `install` has it
take what the cost model has for this model and these GPUs, and deal micro-batches such that none has more than
max_token_len tokens wherever that can be done, in the fewest that can.

Source of the interface: verl, verl/utils/seqlen_balancing.py and dynamic_cp_scheduler.py (1dda039b, release 0.9.1).
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any

from zbench.adapters import megatron_core
from zbench.adapters.frameworks import framework_module, replace_function
from zbench.adapters.partitions import balanced_partitions, fewest_sets
from zbench.adapters.planning import Planning
from zbench.adapters.sequence_work import SequenceWork, fit_sequence_work
from zbench.api.yamls import Named
from zbench.describe.cluster import Cluster
from zbench.describe.model import Model

BALANCING, DYNAMIC_CP = "verl.utils.seqlen_balancing", "verl.utils.dynamic_cp_scheduler"
_INSTALL = "pip install 'verl>=0.9'"
# Tokens of every item and the most of a micro-batch, while verl divides a batch into micro-batches; else None.
_TOKENS: ContextVar[tuple[list[int], int] | None] = ContextVar("zbench_verl_tokens", default=None)


def get_seqlen_balanced_partitions(seqlen_list: Sequence[int], k_partitions: int, equal_size: bool) -> list[list[int]]:
    """Deals items to sets of about equal sums, as verl's function of this name. seqlen_list: the work of every item.

    While verl divides a batch into micro-batches, no set has more than max_token_len tokens, if that can be done.

    Raises:
        ValueError: there are fewer items than sets, or equal_size and no multiple of them.
    """
    works = [int(work) for work in seqlen_list]
    limited = _TOKENS.get()
    if limited is None or len(limited[0]) != len(works):
        return balanced_partitions(works, int(k_partitions), equal_size)
    return balanced_partitions(works, int(k_partitions), equal_size, limited[0], limited[1])


def install(
    *, cluster: Named | Cluster, model: Named | Model, mask: str | None = None, num_nodes: int | None = None
) -> SequenceWork:
    """Has verl balance by the cost model's work and within max_token_len, in this process; returns the work.

    cluster, model, mask, num_nodes: as of Planning.of; of the cluster only its GPUs matter. To be called in every
    process that balances: the driver, and the workers.

    Raises:
        ValueError: verl is not there, or a name cannot be.
    """
    work = fit_sequence_work(Planning.of(cluster, model, mask, num_nodes).cost)
    module = framework_module(BALANCING, "zbench.adapters.verl", _INSTALL)
    replace_function(module, "calculate_workload", work)
    replace_function(module, "get_seqlen_balanced_partitions", get_seqlen_balanced_partitions)
    own = module.rearrange_micro_batches
    replace_function(module, "rearrange_micro_batches", _within_limit(getattr(own, "__wrapped__", own)))
    return work


def install_dynamic_cp(
    *, cluster: Named | Cluster, model: Named | Model, mask: str | None = None, num_nodes: int | None = None
) -> type[Any]:
    """Has verl's dynamic context parallelism take its groups from our planner, in this process; returns the class.

    cluster, model, mask, num_nodes: as of Planning.of, a cluster of as many ranks as data parallel x context
    parallel.

    Raises:
        ValueError: verl or megatron-core's development branch is not there, or a name cannot be.
    """
    module = framework_module(DYNAMIC_CP, "zbench.adapters.verl", _INSTALL)
    made = megatron_core.scheduler_class(Planning.of(cluster, model, mask, num_nodes))

    def get_megatron_dynamic_cp_scheduler_cls() -> type[Any]:
        return made

    replace_function(module, "get_megatron_dynamic_cp_scheduler_cls", get_megatron_dynamic_cp_scheduler_cls)
    return made


def _within_limit(rearrange: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps verl's rearrange_micro_batches: it asks for as many micro-batches as its sequences need at least, and the
    balancer knows their tokens meanwhile."""
    signature = inspect.signature(rearrange)

    @wraps(rearrange)
    def rearranged(*args: Any, **keys: Any) -> Any:
        given = signature.bind(*args, **keys)
        given.apply_defaults()
        limit, each = int(given.arguments["max_token_len"]), int(given.arguments.get("force_group_size", 1))
        tokens = _item_tokens(given.arguments["batch"], each)
        asked = given.arguments.get("min_num_micro_batch")
        given.arguments["min_num_micro_batch"] = max(fewest_sets(tokens, limit), int(asked or 1))
        with _known(tokens, limit):
            return rearrange(*given.args, **given.kwargs)

    return rearranged


def _item_tokens(batch: Any, each: int) -> list[int]:
    """Returns the tokens of every item of a batch: of a sequence, or of `each` of them in a row that stay together."""
    ids = batch["input_ids"]
    lengths = (ids.offsets().diff() if ids.is_nested else batch["attention_mask"].sum(dim=1)).tolist()
    return [sum(lengths[start : start + each]) for start in range(0, len(lengths), each)]


@contextmanager
def _known(tokens: list[int], limit: int) -> Iterator[None]:
    before = _TOKENS.set((tokens, limit))
    try:
        yield
    finally:
        _TOKENS.reset(before)
