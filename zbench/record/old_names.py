"""Tables of the names that zbench's own classes and keys had in earlier versions, with those of today. Pure.

Nothing is taken off these tables while records of that time are to be read.
"""

from collections.abc import Mapping

from zbench.describe.strategies.strategy_keys import typed_key
from zbench.describe.strategy import MODEL_FIELDS

MOVED: Mapping[str, str] = {
    "zbench.cluster.Cluster": "zbench.describe.cluster.Cluster",
    "zbench.cluster.Device": "zbench.describe.device.Device",
    "zbench.describe.cluster.Device": "zbench.describe.device.Device",
    "zbench.describe.strategy.Experts": "zbench.describe.expert_schedule.Experts",
    "zbench.desk.executor.Desk": "zbench.desk.attention_executor.DeskAttention",
    "zbench.desk.step_executor.DeskWholeStep": "zbench.desk.step_executor.Desk",
    "zbench.links.Domain": "zbench.describe.links.Domain",
    "zbench.model.Model": "zbench.describe.model.Model",
    "zbench.runtime.executor.Torch": "zbench.runtime.attention_executor.TorchAttention",
    "zbench.runtime.step_executor.TorchWholeStep": "zbench.runtime.step_executor.Torch",
    "zbench.worlds.World": "zbench.describe.worlds.World",
    "zbench.simulate.Simulated": "zbench.simulator.estimate.step.StepEstimate",
    "zbench.simulated.executor.WholeStep": "zbench.simulated.executor.Simulated",
    "zbench.simulator.simulate.Simulated": "zbench.simulator.estimate.step.StepEstimate",
    "zbench.simulator.simulate.SimulatedAttention": "zbench.simulator.estimate.step.StepEstimate",
    "zbench.systems.bytescale.ByteScale": "zbench.systems.bytescale.planner.ByteScale",
    "zbench.systems.flexsp.FlexSP": "zbench.systems.flexsp.planner.FlexSP",
    "zbench.systems.hydraulis.Hydraulis": "zbench.systems.hydraulis.planner.Hydraulis",
    "zbench.systems.magi_dispatch.MagiDispatch": "zbench.systems.magi_dispatch.planner.MagiDispatch",
    "zbench.systems.torch_cp.TorchCP": "zbench.systems.torch_cp.planner.TorchCP",
    "zbench.systems.nodewise.Nodewise": "zbench.systems.nodewise.planner.Nodewise",
    "zbench.systems.static_best.StaticBest": "zbench.systems.static_best.planner.StaticBest",
    "zbench.systems.wlb_llm.WLBLLM": "zbench.systems.wlb_llm.planner.WLBLLM",
    "zbench.systems.zeppelin.Zeppelin": "zbench.systems.zeppelin.planner.Zeppelin",
}
# Keys of a run itself.
_FREE = {"free": "free_groups", "free_model_keys": "free_groups"}
RUN_KEYS: Mapping[str, str] = {"again": "rerun", "planners": "planners_see", **_FREE}
# Of what a step says of its rollouts.
ITERATION_KEYS: Mapping[str, str] = {
    "responses": "response_tokens",
    "given_up": "given_up_tokens",
    "off_policy": "off_policy_tokens",
}
_RECEIVED_KV = {"backward": "received_kv"}
# By class: what a key of its yaml was called before, and what it is today. Any yaml that names the class may be an old
# one, a user's own, too.
KEYS: Mapping[str, Mapping[str, str]] = {
    "zbench.systems.allgather.AllGather": _RECEIVED_KV,
    "zbench.systems.bytescale.planner.ByteScale": {**_RECEIVED_KV, "balance": "balance_micro_batches"},
    "zbench.systems.distca.DistCA": {
        **_RECEIVED_KV,
        "tolerance": "imbalance_tolerance",
        "coalesce": "rounds_per_attend",
    },
    "zbench.systems.dynamic_cp.DynamicCP": _RECEIVED_KV,
    "zbench.systems.fcp.FCP": {**_RECEIVED_KV, "coalesce": "rounds_per_attend", "tolerance": "reshuffle_tolerance"},
    "zbench.systems.flexsp.planner.FlexSP": {
        **_RECEIVED_KV,
        "nodes": "solver_nodes",
        "seconds": "solver_seconds",
        "buckets": "solver_buckets",
        "trials": "tried_micro_batch_counts",
    },
    "zbench.systems.flexsp_batch_ada.FlexSPBatchAda": {**_RECEIVED_KV, "trials": "tried_micro_batch_counts"},
    "zbench.systems.hybrid_dp.HybridDP": _RECEIVED_KV,
    "zbench.systems.hybrid_dp_megatron.HybridDPMegatron": _RECEIVED_KV,
    "zbench.systems.hydraulis.planner.Hydraulis": {
        "schemes": "tp_pp_pairs",
        "trials": "dispatch_orders",
        "whole_step": "compare_whole_steps",
    },
    "zbench.systems.in_contract.planner.InContract": {
        **_RECEIVED_KV,
        "multiple": "micro_batch_multiple",
        "played": "played_candidates",
    },
    "zbench.systems.loongtrain.LoongTrain": {
        **_RECEIVED_KV,
        "degree": "head_parallel_degree",
        "inner": "inner_ring_ranks",
    },
    "zbench.systems.nodewise.planner.Nodewise": {
        "operations": "max_played_operations",
        "pipelines": "rival_pipelines",
        "chunks": "head_chunks",
        "groups": "sequence_groups",
        "heads": "share_heads",
        "fewest": "fewest_nodes",
        "front": "fill_with_beginnings",
        "first": "place_cut_first",
        "wide": "share_heads_across_nodes",
        "uneven": "allow_uneven_nodes",
        "careful": "play_least_nic_use",
        "homes": "homes_where_lacking",
        "pairs": "pair_backward_keys",
        "even": "move_cuts",
        "swap": "move_sequences",
        "order": "list_schedule",
        "rivals": "adopt_rivals",
        "tries": "played_placements",
    },
    "zbench.systems.ring.Ring": _RECEIVED_KV,
    "zbench.systems.static_best.planner.StaticBest": _FREE,
    "zbench.systems.torch_cp.planner.TorchCP": _RECEIVED_KV,
    "zbench.systems.ulysses.Ulysses": _RECEIVED_KV,
    "zbench.systems.usp.USP": {**_RECEIVED_KV, "degree": "ulysses_degree"},
    "zbench.systems.verl_balance.VerlBalance": {"within_limit": "enforce_pack_tokens"},
    "zbench.systems.wlb_llm.planner.WLBLLM": {**_RECEIVED_KV, "by_work": "equal_work_packs"},
    "zbench.systems.zeppelin.planner.Zeppelin": {
        **_RECEIVED_KV,
        "legs": "routed_transfers",
        "order": "list_schedule",
        "tolerance": "remap_tolerance",
    },
    "zbench.workloads.delayed.Delayed": {
        "outliers": "outlier_lengths",
        "hold": "released_together",
        "window": "window_steps",
    },
    "zbench.workloads.mixture.Mixture": {"by": "weights_of"},
    "zbench.workloads.shrunk.Shrunk": {"by": "divisor"},
}
# By group of conf/: earlier names of choices, as users typed them.
CHOICES: Mapping[str, Mapping[str, str]] = {
    "executor": {"whole_step": "simulated", "torch_whole_step": "torch", "desk_whole_step": "desk"},
    "experts": {"even": "sequential"},
    "model": {"deepseek_moe_16b_routed": "deepseek_moe_16b"},
}
# By group of conf/: choices that are no more, and what there is instead.
GONE: Mapping[str, Mapping[str, str]] = {
    "executor": {"simulated_attention": "executor=simulated plays whole steps, attention and all the rest"}
}
# By `_target_`: classes that yamls named once, by group and choice; they are no choice of users today.
GONE_TARGETS: Mapping[str, tuple[str, str]] = {
    "zbench.simulator.estimate.step.StepEstimate": ("executor", "simulated_attention")
}
# By key as it is typed today: earlier words for its values.
VALUES: Mapping[str, Mapping[object, str]] = {
    "memory.loss_chunk_tokens": {"chunked": "auto"},
    "sharding": {"sharded": "zero3", "replicated": "none"},
}
_OF_ATTENTION_RUNS = {"parameters": "sharding", "recompute": "recompute"}
# By class: keys that were its own and are set in other groups today, as they are typed. Records of before are read into
# these groups (zbench.record.older).
REGROUPED: Mapping[str, Mapping[str, str]] = {
    "zbench.describe.model.Model": {
        **{field: typed_key(field) for field in MODEL_FIELDS},
        "loss": "memory.loss_chunk_tokens",
    },
    "zbench.simulated.executor.Simulated": {
        "window": "sharding.window",
        "expert_parallel": "parallel.expert_parallel",
        "routing_skew": "experts.skew",
    },
    "zbench.runtime.step_executor.Torch": _OF_ATTENTION_RUNS,  # keys that executor=torch had of its own
    "zbench.desk.step_executor.Desk": _OF_ATTENTION_RUNS,
}
