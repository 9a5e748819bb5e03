"""A small record for every figure, made by hand."""

import hashlib
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from tests.record.test_iterations import FIRST
from tests.record.test_record import end_line, start_line, step_line
from zbench.describe.strategy import STRATEGY_GROUPS
from zbench.figures import ablation, flexsp
from zbench.figures.records import Records
from zbench.figures.rollouts import seesaw
from zbench.record.record import Run

CONF = Path(__file__).parents[2] / "conf"
CLUSTERS = ("a800_4x8", "h800_4x8", "h200_4x8")
DEGREES = (  # system, degree, packing, seconds
    ("flexsp_batch_ada", None, "search", 4.0),
    ("flexsp", 0, "", 3.0),
    ("flexsp_batch_ada", 64, "published", 6.0),
    ("flexsp_batch_ada", None, "published", 5.0),
)
NIC_BANDWIDTH = 1000.0  # bytes/s
MACHINE = {"platform": "Linux", "processor": "CPU", "cores": 2}
ROUTED = {"partition": False, "route": True, "remap": True}
SWITCHES = [dict(zip(ROUTED, switches, strict=True)) for switches in ablation.PARTS]
OCTAVES = {"sequences": [0, 0, 3, 1], "tokens": [0, 0, 15, 9]}


def run_of(
    name: str,
    system: str,
    workload: str = "github",
    seconds: float = 2.0,
    gpus: int = 8,
    group: str = "a800_4x8",
    config: dict[str, Any] | None = None,
    **changes: Any,
) -> Run:
    """A finished run of experiment `name`, of two steps; config: settings of its groups; changes: of its step lines."""
    given = config or {}
    names = {"system": system, "workload": workload, "cluster": group, "model": "llama_3b", "executor": "simulated"}
    whole = {
        **{key: {"_target_": f"{key}.{choice}", **given.get(key, {})} for key, choice in names.items()},
        **{group: given[group] for group in STRATEGY_GROUPS if group in given},
        "seed": 0,
        "tokens_per_gpu": 8,
        "steps": 2,
        "trace": given.get("trace"),
        "changes": {},
        "choices": {**names, "experiment": name},
    }
    if "cluster" not in given:
        whole["cluster"]["gpus"] = gpus
    ring = {"_target_": "system.ring"}
    run = hashlib.sha256(f"{whole}".encode()).hexdigest()[:16]
    line = start_line(run, config=whole, baseline={"name": "ring", "system": ring}, time="1")
    line["facts"] |= {
        "cluster": group,
        "num_ranks": gpus,
        "num_gpus": gpus,
        "tensor_parallel": 1,
        "num_nics": 2,
        "nics_per_node": 1,
    }
    line["fingerprint"] = {"sources": "s", "commit": "0123456789abcdef", "dirty": False, **MACHINE}
    steps = [
        step_line(line["run"], number, **{"seconds": seconds, "num_sequences": 4, "octaves": OCTAVES, **changes})
        for number in range(2)
    ]
    return Run(line, steps, end_line(line["run"]))


def event(name: str, node: int, track: int, begin: float, seconds: float, template: str = "forward") -> dict[str, Any]:
    purposes = {"keys and values": "attention", "reduce gradients": "gradients"}
    args = {"template": template, **({"for": purposes[name]} if name in purposes else {})}
    return {"ph": "X", "name": name, "pid": node, "tid": track, "ts": 1e6 * begin, "dur": 1e6 * seconds, "args": args}


def thread(name: str, node: int, track: int) -> dict[str, Any]:
    return {"ph": "M", "name": "thread_name", "pid": node, "tid": track, "args": {"name": name}}


TRACKS = [
    {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "node 0"}},
    thread("critical path", 2, 0),
    *[
        thread(name, node, track)
        for node in range(2)
        for track, name in enumerate(
            (f"GPU {node}", f"NIC {node} sends", f"NIC {node} receives", f"GPU {node} NVLink sends")
        )
    ],
]
CROSSING = [
    *TRACKS,
    event("matmul queries", 2, 0, 0, 0.5),
    event("matmul queries", 0, 0, 0, 0.5),
    event("elementwise attention inputs", 0, 0, 0.5, 0.5),
    event("keys and values", 0, 1, 1, 2),
    event("keys and values", 1, 2, 1, 2),
    event("keys and values", 0, 3, 1, 2),
    event("attend backward", 1, 0, 3, 1, "backward"),
    event("reduce gradients", 0, 1, 3, 2, "backward"),
]
INSIDE = [
    *TRACKS,
    event("matmul logits", 0, 0, 0, 1, "head"),
    event("optimizer query weights", 0, 0, 1, 1, "optimizer"),
]
TRACES = {"crossing.json": CROSSING, "inside.json": INSIDE}


def samples() -> dict[str, Records]:
    """By the figure's name."""
    runs = {
        **batch_samples(),
        **system_samples(),
        **traced_samples(),
        **planner_samples(),
        **desk_samples(),
        **rollout_samples(),
        **strategy_samples(),
    }
    return {name: Records(found, TRACES) for name, found in runs.items()}


def batch_samples() -> dict[str, list[Run]]:
    """Figures of lengths and constants."""
    return {
        "lengths": [run_of("lengths", "ring", f"w{index}") for index in range(14)],
        "costs": [run_of("costs", "zeppelin", group=name, config=constants(name)) for name in CLUSTERS],
        "seesaw": [run_of("seesaw", "ring", group=seesaw.STUDIED[0], config=constants(*seesaw.STUDIED))],
    }


def system_samples() -> dict[str, list[Run]]:
    """Figures of systems' steps."""
    return {
        "throughput": [
            run_of("throughput", system, seconds=seconds, group=name, out_of_memory=full and name == CLUSTERS[2])
            for name in CLUSTERS
            for system, seconds, full in (("ring", 8.0, False), ("flexsp", 2.0, True), ("zeppelin", 4.0, False))
        ],
        "scaling": [
            run_of("scaling", system, "arxiv", seconds, gpus)
            for gpus in (16, 256)
            for system, seconds in (("ring", 8.0), ("zeppelin", 2.0))
        ],
        "ablation": [
            *(_part(gpus, 8.0, -1) for gpus in (16, 64)),
            *(
                _part(gpus, seconds / (1 + number), turn, form)
                for number, form in enumerate(ablation.FORMS.values())
                for gpus, seconds in ((16, 4.0), (64, 2.0))
                for turn in range(4)
            ),
        ],
        "headroom": [
            run_of("headroom", "ring"),
            run_of("headroom", "ring", "arxiv"),
            run_of("headroom", "zeppelin", seconds=1.0),
            run_of("headroom", "zeppelin", "arxiv", out_of_memory=True),
            run_of("headroom", "nodewise", seconds=1.25),
            run_of("headroom", "nodewise", "arxiv", seconds=1.25),
        ],
        "memory": [
            run_of(
                "memory_curve",
                system,
                seconds=seconds,
                config={"cluster": {"gib": gib}},
                capacity_bytes=gib * 2**30,
                out_of_memory=full,
                recompute=level,
            )
            for system, gib, seconds, full, level in (
                ("zeppelin", 48, 2.0, False, {"level": "none"}),
                ("zeppelin", 16, 3.0, False, {"level": "full"}),
                ("local_packing", 16, 9.0, True, {"level": "full"}),
                ("local_packing", 48, 6.0, False, {"level": "selective"}),
            )
        ],
    }


def traced_samples() -> dict[str, list[Run]]:
    """Figures of steps' traces."""
    return {
        "timeline": [
            run_of("timeline", system, "fixed", config={"trace": trace, "workload": {"length": length}})
            for system, trace in (("ring", "crossing.json"), ("zeppelin", "inside.json"))
            for length in (1024, 65536)
        ],
        "nics": [
            run_of("nics", system, config={"trace": trace, "system": settings})
            for system, trace, settings in (
                ("ring", "crossing.json", {}),
                ("zeppelin", "crossing.json", {"route": True}),
                ("zeppelin", "inside.json", {"route": False}),
            )
        ],
    }


def planner_samples() -> dict[str, list[Run]]:
    """Figures of planners, and of one planner's paper."""
    return {
        "planning": [
            run_of("planning", system, gpus=gpus, plan_seconds=gpus / 1e3, out_of_memory=gpus == 32 and system == "usp")
            for system in ("usp", "nodewise")
            for gpus in (16, 32)
        ],
        "flexsp": [
            run_of(
                "flexsp",
                system,
                workload,
                seconds,
                config={"system": {"degree": degree, "packing": packing}, "workload": {"context_limit": context}},
            )
            for context in (196608, 393216)
            for workload in flexsp.PUBLISHED
            for system, degree, packing, seconds in DEGREES
        ],
    }


def desk_samples() -> dict[str, list[Run]]:
    """Figures of the desk."""
    workloads = ("longtail_4k", "prolong64k_2k")
    systems = {"ring": 4.0, "ulysses": 3.0, "flexsp": 2.0, "zeppelin": 2.0, "nodewise": 1.0}
    desk_systems = [
        desk_run("desk_systems", system, workload, seconds + (simulated and system == "zeppelin"), simulated)
        for simulated in (False, True)
        for workload in workloads
        for system, seconds in systems.items()
    ]
    nics, parts = [{"nics": count} for count in (2, 4)], [{"system": switches} for switches in SWITCHES]
    desk_parts = [
        *(desk_run("desk_routing", "ring", "fixed", 4.0, config={"cluster": n}) for n in nics),
        *(desk_run("desk_routing", "zeppelin", "fixed", 1.0, config={"cluster": n, "system": ROUTED}) for n in nics),
        *(desk_run("desk_ablation", "ring", workload, 4.0) for workload in workloads),
        *(desk_run("desk_ablation", "zeppelin", workload, 2.0, config=one) for workload in workloads for one in parts),
    ]
    return {"desk_systems": desk_systems, "desk_parts": desk_parts}


def rollout_samples() -> dict[str, list[Run]]:
    """Figures of jobs with rollouts."""
    job = {"algorithm": "ppo", "schedule": "synchronous", "placement": "colocate"}

    def of(name: str, seconds: float, workload: str = "rl_traces", **changes: Any) -> Run:
        config = {"job": {**job, **changes}}
        return run_of(name, "ring", workload, seconds, config=config, rollouts=FIRST)

    placed = [
        run_of("placement", "ring", seconds=seconds, gpus=gpus, config={"job": {**job, "placement": name}}, **changes)
        for name, gpus, seconds, changes in (
            ("colocate", 128, 1.0, {"out_of_memory": True}),
            ("standalone", 32, 25.0, {}),
            ("split", 32, 12.5, {}),
            ("colocate", 32, 6.25, {}),
        )
    ]
    machine = constants("a800_4x8")
    resharded = [
        run_of(
            "resharding",
            "ring",
            config={
                **machine,
                "cluster": {**machine["cluster"], "num_nodes": 2},
                "model": {**machine["model"], "name": name, "num_layers": 2},
            },
        )
        for name in ("llama_7b", "llama_13b")
    ]
    return {
        "rlhf": [
            of("rlhf", 10.0),
            of("rlhf_schedules", 8.0),
            of("rlhf_schedules", 4.0, schedule="one_step_off"),
            of("rlhf_schedules", 2.0, "rl_traces_tail"),
        ],
        "resharding": resharded,
        "placement": placed,
    }


def strategy_samples() -> dict[str, list[Run]]:
    """Figures of strategies on whole steps."""

    def of(name: str, seconds: float, gpus: int, chosen: tuple[str, str], given: dict[str, Any], **changes: Any) -> Run:
        config = {"cluster": {"gpus": gpus}, "system": dict([chosen]), **given}
        run = run_of(name, "zeppelin", seconds=seconds, gpus=gpus, config=config, **changes)
        group, choice = chosen
        run.start["config"]["choices"][group] = choice
        return run

    def rounds(gpus: int, steps: int, seconds: float, rate: str = "20 Gbit/s") -> Run:
        choice, name = ("co2", "sync_scaling") if steps else ("every_step", "sync_scaling_every")
        config = {"sync": {"steps": steps}, "cluster": {"gpus": gpus, "nic_bandwidth": rate}}
        return of(name, seconds, gpus, ("sync", choice), config)

    def experts(name: str, model: str, cut: int, schedule: str, seconds: float) -> Run:
        config = {"parallel": {"expert_tensor_parallel": cut}}
        run = of(name, seconds, 32, ("experts", schedule), config)
        run.start["config"]["choices"]["model"] = model
        return run

    def contexts(recompute: str) -> Run:
        named = {"recompute": recompute, "memory": "zero_offload"}
        yamls = {one: OmegaConf.to_container(OmegaConf.load(CONF / one / f"{of}.yaml")) for one, of in named.items()}
        return run_of("contexts", "ring", group="h100_4x8", config=constants("h100_4x8", "llama3_8b") | yamls)

    four: dict[str, Any] = {"workload": {"length": 2}}  # micro-batches a step
    return {
        "overlap": [
            of("overlap", seconds / degree, 32, ("overlap", method), {"parallel": {"tensor_parallel": degree}})
            for degree in (4, 8)
            for method, seconds in (("none", 12.0), ("sliced", 8.0), ("async_tp", 7.5), ("commfuse", 6.0))
        ],
        "experts": [
            experts(name, model, cut, schedule, seconds)
            for name, model, cut in (
                ("experts", "moe_8x550m", 1),
                ("experts_zero3", "mixtral_8x7b", 1),
                ("experts_cut", "moe_8x550m", 4),
            )
            for schedule, seconds in (("sequential", 12.0), ("tutel", 8.0), ("fsmoe", 6.0 - cut / 2), ("clock", 4.0))
        ],
        "contexts": [contexts("none"), contexts("full")],
        "sharding": [
            *(
                of("sharding", seconds, 384, ("sharding", name), {"workload": {"length": length}})
                for length in (8, 2)
                for name, seconds in (("zero3", 4.0), ("three_level", 2.0))
            ),
            of("sharding", 48.0, 384, ("sharding", "hpz"), four),
            *(of("sharding_scaling", gpus / 32, gpus, ("sharding", "hpz"), four) for gpus in (32, 64)),
            of("sharding_scaling", 1.0, 8, ("sharding", "three_level"), four, out_of_memory=True),
        ],
        "sync": [
            *(rounds(gpus, steps, 8.0 / steps) for gpus in (16, 128) for steps in (1, 2)),
            *(rounds(gpus, 0, 16.0) for gpus in (16, 128)),
            *(rounds(gpus, 0, 4.0, "200 Gbit/s") for gpus in (16, 128)),
        ],
    }


def desk_run(
    name: str, system: str, workload: str, seconds: float, simulated: bool = False, config: dict[str, Any] | None = None
) -> Run:
    """A run on two NICs; measured, each sends at its rate in the first half of a step."""
    half = [int(NIC_BANDWIDTH * seconds / 4)] * 2
    series = {} if simulated else {"interval": seconds / 4, "tx": [[*half, 0, 0]] * 2, "rx": [[0] * 4] * 2}
    whole = {"executor": {"simulated": simulated}, **(config or {})}
    run = run_of(name, system, workload, seconds, 8, "desk_2x4_a800", whole, nic_series=series, valid=True)
    nics = (config or {}).get("cluster", {}).get("nics", 1)
    run.start["facts"] |= {"simulated": simulated, "nic_bandwidth": NIC_BANDWIDTH, "nics_per_node": nics}
    return run


def _part(gpus: int, seconds: float, turn: int, form: tuple[str, str] = ("", "")) -> Run:
    """A bar of the ablation, or, with turn -1, the ring."""
    if turn < 0:
        return run_of("ablation", "ring", seconds=seconds, gpus=gpus)
    system = {**SWITCHES[turn], **dict(zip(("partitioner", "routed_transfers"), form, strict=True))}
    return run_of("ablation", "zeppelin", seconds=seconds / (1 + turn), gpus=gpus, config={"system": system})


def constants(cluster: str, model_name: str = "llama_7b") -> dict[str, Any]:
    """A cluster's and a model's yaml, and its strategy's, as a record has them."""
    plain = OmegaConf.to_container(OmegaConf.load(CONF / "cluster" / f"{cluster}.yaml"))
    assert isinstance(plain, dict)
    device = next(one["device"] for one in plain.pop("defaults") if isinstance(one, dict))
    plain["device"] = OmegaConf.to_container(OmegaConf.load(CONF / "cluster" / "device" / f"{device}.yaml"))
    model = OmegaConf.to_container(OmegaConf.load(CONF / "model" / f"{model_name}.yaml"))
    usual = (
        ("sharding", "zero3"),
        ("recompute", "none"),
        ("memory", "none"),
        ("parallel", "none"),
        ("overlap", "none"),
        ("experts", "sequential"),
        ("sync", "every_step"),
        ("job", "training"),
    )
    strategy = {group: OmegaConf.to_container(OmegaConf.load(CONF / group / f"{name}.yaml")) for group, name in usual}
    return {"cluster": plain, "model": model, **strategy}
