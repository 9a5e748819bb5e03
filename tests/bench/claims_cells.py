"""What tests.bench.claims_worlds plays of each paper: the set-ups of results/docs/claims.md, of one workload each."""

from collections.abc import Mapping
from dataclasses import dataclass

WORLDS = (
    "nominal",
    *("compute_slowed", "compute_slowed_2", "matmul_shapes", "longest_waiting"),
    *("nic_1", "nic_2", "nic_3", "nvlink_1", "nvlink_3", "nvlink_7", "latency_3"),
    *(f"{what}_{how}_20" for what in ("nic", "nvlink", "attention", "matmul") for how in ("plus", "minus")),
)


@dataclass(frozen=True)
class Paper:
    """A set-up: words of the command for all sides, and each side's own.

    ratios: what is told, the side that takes longer, the one that it is over, and what was published. windows: whether
    a window changes anything. without: worlds that say nothing of this machine. last: of how many steps at the end
    seconds are taken; 0: of all.
    """

    name: str
    words: str
    sides: Mapping[str, str]
    ratios: tuple[tuple[str, str, str, str], ...]
    windows: bool = True
    without: tuple[str, ...] = ()
    last: int = 0


_NODES_A = "cluster=a800_4x8 workload=github steps=2"
_FLEXSP = (
    "cluster=a100_8x8 cluster.device.memory_bytes='28 GB' workload=commoncrawl workload.context_limit=196608 "
    "workload.over_limit=drop tokens_per_gpu=11100 steps=2"
)
_WLB = (
    "cluster=h100_4x8 recompute=full workload=wlb_pretrain workload.context_limit=131072 tokens_per_gpu=16384 steps=2"
)
_FCP = (
    "cluster=h100_4x8 cluster.num_nodes=8 model=llama3_8b model.num_heads=64 model.hidden=8 model.ffn_hidden=8 "
    "model.vocab=8 model.num_layers=4 workload=longtail_128k workload.max_length=524288 "
    "workload.context_limit=524288 tokens_per_gpu=32768 steps=2"
)
_DISTCA = (  # a node with tensor parallelism of 8 as one device
    "cluster=h200_4x8 cluster.num_nodes=8 cluster.gpus_per_node=1 cluster.nics_per_node=1 "
    "cluster.nic_bandwidth='3200 Gbit/s' cluster.device.memory_bytes='1128 GB' "
    "cluster.device.peak_flops='7912 TFLOP/s' "
    "cluster.device.matmul_flops='4560 TFLOP/s' cluster.device.attention_forward_flops='5640 TFLOP/s' "
    "cluster.device.attention_backward_flops='4960 TFLOP/s' cluster.device.copy_bandwidth='30720 GB/s' "
    "cluster.device.strided_rate='2480 GB/s' model=llama3_8b recompute=full workload=wlb_pretrain "
    "tokens_per_gpu=131072 "
    "steps=2"
)
_BYTESCALE = (
    "cluster=h100_4x8 cluster.num_nodes=8 recompute=full sharding=zero1 workload=github workload.context_limit=262144 "
    "tokens_per_gpu=32768 steps=2"
)
_HYDRAULIS = (
    "model=llama_7b cluster=a800_4x8 cluster.num_nodes=8 workload=commoncrawl workload.context_limit=65536 "
    "tokens_per_gpu=3125 steps=2"
)
_CO2 = (
    "model=llama_7b sharding=zero2 system=local_packing workload=fixed workload.length=4096 "
    "'cluster.nic_bandwidth=20 Gbit/s'"
)
_SIXTEEN, _ALL = "cluster.num_nodes=2", "cluster.num_nodes=16"  # of CO2's nodes, 16 and 128 GPUs
_NVLINK_AND_ATTENTION = (
    "nic_2",
    *(w for w in WORLDS if w.startswith(("nvlink", "attention"))),
)  # change nothing of CO2
_CUT = "parallel.expert_parallel=2 parallel.expert_tensor_parallel=4"  # experts over two nodes, cut over each

PAPERS = (
    Paper(
        "flexsp",
        _FLEXSP,
        {
            "one_degree": "system=flexsp_batch_ada system.packing=published system.degree=64",
            "degree_a_batch": "system=flexsp_batch_ada system.packing=published",
            "by_time": "system=flexsp_batch_ada",
            "flexsp": "system=flexsp",
        },
        (
            ("over one degree of 64", "one_degree", "flexsp", "at most 1.72, 1.77 (commoncrawl)"),
            ("over one degree a batch", "degree_a_batch", "flexsp", "at most 1.42"),
            ("the same, packed by time", "by_time", "flexsp", ""),
        ),
    ),
    Paper(
        "bytescale",
        _BYTESCALE,
        {
            "ring": "system=ring",
            "published": "system=bytescale system.tokens_per_rank=58846",
            "improved": "system=bytescale",
        },
        (
            ("as published, over ring", "ring", "published", "at most 7.89 (github)"),
            ("improved, over ring", "ring", "improved", ""),
            ("stretch chosen over what a GPU holds", "published", "improved", "1.84, the third stage of its ablation"),
        ),
    ),
    Paper(
        "wlb_llm",
        _WLB,
        {
            "plain": "system=wlb_llm system.degree=8 system.equal_work_packs=false system.shard=sequence",
            "wlb_llm": "system=wlb_llm system.degree=8",
        },
        (("over plain packs, degree 8", "plain", "wlb_llm", "1.23 on average, 1.30 at 128K"),),
    ),
    Paper(
        "fcp",
        _FCP,
        {
            "bytescale": "system=bytescale system.tokens_per_rank=32768",
            "wlb_llm": "system=wlb_llm",
            "published": "system=fcp system.block_tokens=4096",
            "improved": "system=fcp",
        },
        (
            ("over WLB-LLM", "wlb_llm", "published", "1.13 to 2.21 over four others"),
            ("over ByteScale", "bytescale", "published", "likewise"),
            ("improved, over WLB-LLM", "wlb_llm", "improved", ""),
        ),
    ),
    Paper(
        "distca",
        _DISTCA,
        {"wlb_llm": "system=wlb_llm", "degree_4": "system=wlb_llm system.degree=4", "distca": "system=distca"},
        (
            ("over WLB-LLM", "wlb_llm", "distca", "1.07 to 1.20 without stages"),
            ("over WLB-LLM of degree 4", "degree_4", "distca", ""),
        ),
        without=("matmul_shapes",),  # eight GPUs have more multiprocessors than the one that stands for them
    ),
    Paper(
        "zeppelin",
        _NODES_A,
        {
            "ring": "system=ring",
            "ring_published": "system=ring variant=published",
            "allgather": "system=allgather",
            "hybrid_dp": "system=hybrid_dp",
            "published": "system=zeppelin variant=published",
            "zeppelin": "system=zeppelin",
        },
        (
            ("as published, over ring", "ring", "published", "2.80 on average, at most 6.60"),
            ("as published, over Transformer Engine's ring", "ring_published", "published", "the same"),
            ("search, over ring", "ring", "zeppelin", ""),
            ("all-gather over ring", "ring", "allgather", "above 1"),
            ("hybrid data parallelism over all-gather", "allgather", "hybrid_dp", "above 1"),
            ("Zeppelin by search over hybrid data parallelism", "hybrid_dp", "zeppelin", "above 1"),
            ("Zeppelin as published over hybrid data parallelism", "hybrid_dp", "published", "above 1"),
        ),
    ),
    Paper(
        "hydraulis",
        _HYDRAULIS,
        {
            "first_fit": "system=hydraulis 'system.tp_pp_pairs=[[16,1]]' system.batching=first_fit",
            "search": "system=hydraulis 'system.tp_pp_pairs=[[16,1]]' system.batching=search",
            "published": "system=hydraulis variant=published",
            "improved": "system=hydraulis",
        },
        (
            ("as published, over static with first fit", "first_fit", "published", "1.32 to 2.66"),
            ("improved, over the same", "first_fit", "improved", ""),
            ("as published, over static with its batching", "search", "published", ""),
            ("improved, over the same", "search", "improved", ""),
        ),
        windows=False,  # its pipelines keep a step's parameters
    ),
    Paper(
        "commfuse",
        "cluster=a800_4x8 workload=longtail_128k system=zeppelin parallel=tp8 steps=4",
        {
            "none": "overlap=none",
            "sliced": "overlap=sliced overlap.slices=8",
            "commfuse": "overlap=commfuse",
            "direct": "overlap=commfuse overlap.transfers=direct",
            "query_split": "overlap=query_split",
        },
        (
            ("a step, over none", "none", "commfuse", ""),
            ("a step, over slices", "sliced", "commfuse", ""),
            ("straight messages, a step, over none", "none", "direct", ""),
            ("a step with attention by queries, over CommFuse", "commfuse", "query_split", ""),
        ),
    ),
    Paper(
        "three_levels",
        "experiment=sharding tokens_per_gpu=2048",
        {
            "zero3": "sharding=zero3",
            "zeropp": "sharding=zeropp",
            "three_level": "sharding=three_level",
            "whole_bits": "sharding=three_level sharding.bits=null",
        },
        (
            ("over ZeRO++", "zeropp", "three_level", "1.71"),
            ("over ZeRO-3", "zero3", "three_level", "2.40"),
            ("over ZeRO-3, without fewer bits", "zero3", "whole_bits", ""),
        ),
    ),
    Paper(
        "co2",
        _CO2,
        {
            "every_16": f"{_SIXTEEN} steps=1",
            "every_128": f"{_ALL} steps=1",
            "co2_16": f"{_SIXTEEN} sync=co2 sync.steps=12 steps=24",
            "co2_128": f"{_ALL} sync=co2 sync.steps=12 steps=24",
        },
        (
            ("over every step, 128 GPUs", "every_128", "co2_128", "13.4"),
            ("over every step, 16 GPUs", "every_16", "co2_16", ""),
            ("12 steps a round, from 16 to 128 GPUs", "co2_16", "co2_128", "0.86"),
            ("every step, from 16 to 128 GPUs", "every_16", "every_128", "0.82"),
        ),
        without=_NVLINK_AND_ATTENTION,
        last=12,
    ),
    Paper(
        "fsmoe",
        f"experiment=experts sharding=zero2 model=moe_8x550m {_CUT}",
        {how: f"experts={how}" for how in ("sequential", "tutel", "lina", "fsmoe")},
        (
            ("over DeepSpeed-MoE (sequential)", "sequential", "fsmoe", "1.28 to 3.01"),
            ("over Tutel", "tutel", "fsmoe", "1.18 and 1.22"),
            ("over PipeMoE with Lina", "lina", "fsmoe", "1.14"),
        ),
    ),
    Paper(
        "rollpacker",
        "experiment=rlhf_schedules job=rlhf",
        {"synchronous": "workload=rl_traces", "tail": "workload=rl_traces_tail"},
        (("tail batching over synchronous", "synchronous", "tail", "2.03 to 2.56, with more than this"),),
    ),
    Paper(
        "hybridflow",
        "experiment=placement",
        {how: f"job.placement={how}" for how in ("colocate", "split", "standalone")},
        (
            ("colocate over split, 13B on 128 GPUs", "split", "colocate", "below 1 (standalone is best)"),
            ("colocate over standalone", "standalone", "colocate", "below 1"),
        ),
    ),
)
