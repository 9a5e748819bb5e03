"""Metrics: every derived number and its formula, but for the FLOPs of a step (zbench.record.flops). Pure: raw records
in, figures out; no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, TypeVar

from zbench.describe.sync import EVERY_STEP
from zbench.interfaces.result import SECONDS_FOR, SWITCH
from zbench.record.flops import Facts, mfu
from zbench.record.iterations import iteration_figures
from zbench.step.operations import QUEUES

IDLE = 0.05  # of a NIC's rate: acknowledgements of what the other direction carries are 1 to 2 %


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of a run (or of one step); None where one cannot be said, out of memory for instance."""

    tokens_per_second: float | None = None
    step_seconds: float | None = None
    mfu: float | None = None
    nic_utilization: float | None = None
    nic_utilization_min: float | None = None
    nic_utilization_max: float | None = None
    imbalance: float | None = None
    exposed_communication: float | None = None
    plan_seconds: float | None = None
    peak_bytes: float | None = None
    capacity_bytes: float | None = None
    bound_ratio: float | None = None
    nic_bytes: float | None = None
    nic_bytes_min: float | None = None
    nic_bytes_max: float | None = None
    first_loss: float | None = None
    loss: float | None = None
    out_of_memory: bool = False
    nic_idle: float | None = None
    bubble: float | None = None
    invalid_steps: int = 0
    ceiling_ratio: float | None = None
    nic_attention: float | None = None
    nic_tensor_parallel: float | None = None
    nic_parameters: float | None = None
    nic_gradients: float | None = None
    nic_experts: float | None = None
    nic_stages: float | None = None
    nic_switch: float | None = None
    time_attention: float | None = None
    time_linear: float | None = None
    time_optimizer: float | None = None
    time_recomputation: float | None = None
    time_repacking: float | None = None
    time_slowed: float | None = None
    time_interpreter: float | None = None
    time_waiting_link: float | None = None
    time_waiting_rank: float | None = None
    time_waiting_messages: float | None = None
    time_waiting_parameters: float | None = None
    time_waiting_gradients: float | None = None
    time_waiting_experts: float | None = None
    time_waiting_stages: float | None = None
    time_waiting_host: float | None = None
    time_end: float | None = None
    time_generation: float | None = None
    time_scoring: float | None = None
    time_waiting_generation: float | None = None
    reshard_seconds: float | None = None
    generate_seconds: float | None = None
    score_seconds: float | None = None
    train_seconds: float | None = None
    generate_tokens_per_second: float | None = None
    score_tokens_per_second: float | None = None
    train_tokens_per_second: float | None = None
    generation_imbalance: float | None = None
    off_policy: float | None = None
    policy_age: float | None = None
    given_up: float | None = None
    prefill_seconds: float | None = None
    decode_seconds: float | None = None
    layout_change_seconds: float | None = None
    layout_changes: float | None = None
    host_bytes: float | None = None
    store_bytes: float | None = None
    dropped_choices: float | None = None
    padded_rows: float | None = None


PURPOSES = (*(name for name in QUEUES if name not in ("compute", "host")), SWITCH)  # what a NIC sends for
Step = Mapping[str, Any]
T = TypeVar("T", bound=Mapping[str, Any])


def figures(facts: Facts, steps: Sequence[Step], convention: str = "zbench") -> Figures:
    """Returns the figures over those of `steps` that count. Rates are total over total: long steps weigh more than
    short ones."""
    invalid, steps = len(steps) - len(counted(steps)), counted(steps)
    if not steps:
        return Figures(invalid_steps=invalid)
    planning = median(step["plan_seconds"] for step in steps)  # the first step may compile: a mean would tell of that
    peak = max(max(step["peak_bytes"]) for step in steps)
    host = max((size for step in steps for size in step.get("host_bytes", [])), default=None)
    stores = max((size for step in steps for size in step.get("store_bytes", [])), default=None)
    capacity = min(step["capacity_bytes"] for step in steps)
    if any(step["out_of_memory"] for step in steps):  # a real run would have died: it has no throughput
        memory = {"peak_bytes": peak, "capacity_bytes": capacity, "host_bytes": host}
        return Figures(plan_seconds=planning, out_of_memory=True, invalid_steps=invalid, **memory)
    seconds = sum(step["seconds"] for step in steps)
    nics = nic_utilization(facts, steps)
    carried = nic_bytes_per_step(steps)
    return Figures(
        tokens_per_second=sum(step["tokens"] for step in steps) / seconds,
        step_seconds=seconds / len(steps),
        mfu=mfu(facts, steps, convention),
        nic_utilization=sum(nics) / len(nics),
        nic_utilization_min=min(nics),
        nic_utilization_max=max(nics),
        imbalance=sum(map(imbalance, steps)) / len(steps),
        exposed_communication=exposed_communication(steps),
        plan_seconds=planning,
        peak_bytes=peak,
        capacity_bytes=capacity,
        bound_ratio=sum(step["bound_seconds"] for step in steps) / seconds,
        nic_bytes=sum(carried) / len(carried),
        nic_bytes_min=min(carried),
        nic_bytes_max=max(carried),
        first_loss=steps[0].get("loss"),
        loss=steps[-1].get("loss"),
        nic_idle=nic_idle(facts, steps),
        bubble=bubble(steps),
        invalid_steps=invalid,
        host_bytes=host,
        store_bytes=stores,
        ceiling_ratio=ceiling_ratio(steps),
        dropped_choices=expert_share(steps, "dropped"),
        padded_rows=expert_share(steps, "padded"),
        **{f"nic_{purpose}": share for purpose, share in nic_purposes(facts, steps).items()},  # type: ignore[arg-type]
        **{f"time_{name}": share for name, share in step_time_shares(steps).items()},  # type: ignore[arg-type]
        **iteration_figures(steps),  # type: ignore[arg-type]
    )


def ceiling_ratio(steps: Sequence[Step]) -> float | None:
    """Returns how near a step with the same gathers and reductions could be; None where a record has no ceiling."""
    if any(step.get("ceiling_seconds") is None for step in steps):
        return None
    return float(sum(step["ceiling_seconds"] for step in steps) / sum(step["seconds"] for step in steps))


def expert_share(steps: Sequence[Step], name: str) -> float | None:
    """Returns the share of tokens' choices that experts "dropped", or of their rows that were "padded", mean of the
    steps; None where a step does not tell."""
    found = [step.get("expert_rows", {}).get(name) for step in steps]
    return None if None in found else sum(found) / len(found)


def bubble(steps: Sequence[Step]) -> float | None:
    """Returns the share of the time for which other stages of a rank's stack are at work and it is not; None without
    stages."""
    waited = [step.get("phases", {}).get("bubble") for step in steps]
    return None if None in waited else sum(waited) / sum(step["seconds"] for step in steps)


def counted(steps: Sequence[T]) -> list[T]:
    """Returns the steps that count: those that an executor did not mark invalid (zbench.interfaces.result)."""
    return [step for step in steps if step.get("valid", True)]


def counted_rounds(steps: Sequence[Step], sync: Mapping[str, Any]) -> list[range]:
    """Returns where the rounds of a run lie whose steps all count; where workers come together in every step, each step
    is one. steps: of the whole run, in order. sync: of its configuration, {} of older ones."""
    size = int(sync.get("steps", 1)) if sync.get("method", EVERY_STEP) != EVERY_STEP else 1
    rounds = [range(at, at + size) for at in range(0, len(steps) - size + 1, size)]
    return [one for one in rounds if all(steps[at].get("valid", True) for at in one)]


def nic_bytes_per_step(steps: Sequence[Step]) -> list[float]:
    """Returns the bytes that every NIC sent and received, a step."""
    moved = [0] * len(steps[0]["nic_tx_bytes"])
    for step in steps:
        both = zip(moved, step["nic_tx_bytes"], step["nic_rx_bytes"], strict=True)
        moved = [total + tx + rx for total, tx, rx in both]
    return [total / len(steps) for total in moved]


def nic_utilization(facts: Facts, steps: Sequence[Step]) -> list[float]:
    """Returns every NIC's bytes over what it could have carried in the time of all steps, mean of both directions."""
    seconds = sum(step["seconds"] for step in steps)
    return [total * len(steps) / (2 * facts.nic_bandwidth * seconds) for total in nic_bytes_per_step(steps)]


def nic_purposes(facts: Facts, steps: Sequence[Step]) -> dict[str, float]:
    """Returns what NICs send for, {"attention": 0.2, ...}: the mean share of a NIC's sending rate. Together they
    are the utilisation, as what is sent is received. Empty where a step does not tell; one that sends nothing, as in
    the midst of a round, has nothing to tell. A purpose that nothing was sent for is left out."""
    if not all(step.get("nic_tx_for") or not any(step["nic_tx_bytes"]) for step in steps):
        return {}
    sent: dict[str, int] = {}
    for step in steps:
        for purpose, sizes in step.get("nic_tx_for", {}).items():
            sent[purpose] = sent.get(purpose, 0) + sum(sizes)
    whole = facts.nic_bandwidth * len(steps[0]["nic_tx_bytes"]) * sum(step["seconds"] for step in steps)
    return {purpose: sent[purpose] / whole for purpose in PURPOSES if sent.get(purpose)}


def step_time_shares(steps: Sequence[Step]) -> dict[str, float]:
    """Returns what a step's seconds go to, {"attention": 0.2, ...}: means over ranks, in the order of SECONDS_FOR.
    Together they are 1. Empty where a step does not tell; what nothing went to is left out."""
    if not all(step.get("seconds_for") for step in steps):
        return {}
    spent = dict.fromkeys(SECONDS_FOR, 0.0)
    for step in steps:
        for name, seconds in step["seconds_for"].items():
            spent[name] += sum(seconds) / len(seconds)
    whole = sum(step["seconds"] for step in steps)
    return {name: seconds / whole for name, seconds in spent.items() if seconds}


def nic_idle(facts: Facts, steps: Sequence[Step]) -> float | None:
    """Returns the share of all NICs' time, both directions, in which one carried less than IDLE of its rate; None: not
    sampled."""
    quiet = whole = 0
    for step in steps:
        if series := step.get("nic_series"):
            least = IDLE * facts.nic_bandwidth * series["interval"]
            carried = [size for way in ("tx", "rx") for nic in series[way] for size in nic]
            quiet, whole = quiet + sum(size < least for size in carried), whole + len(carried)
    return quiet / whole if whole else None


def nic_curves(facts: Facts, step: Step) -> dict[str, list[float]]:
    """Gives, by NIC and direction, the share of its rate in every interval, of a step whose NICs were sampled."""
    series = step["nic_series"]
    whole = facts.nic_bandwidth * series["interval"]
    return {
        f"NIC {nic} {words}": [size / whole for size in carried]
        for way, words in (("tx", "sends"), ("rx", "receives"))
        for nic, carried in enumerate(series[way])
    }


def imbalance(step: Step) -> float:
    """Returns the busiest rank's compute over the mean of all (attention and linear modules): 1 is balanced, or
    idle."""
    busy = [a + b for a, b in zip(step["attention_seconds"], step["linear_seconds"], strict=True)]
    return float(max(busy) * len(busy) / sum(busy)) if sum(busy) else 1.0


def exposed_communication(steps: Sequence[Step]) -> float:
    """Returns the share of the time under way that no compute hides, over all ranks; 0 where nothing is sent."""
    under_way = sum(sum(step["communication_seconds"]) for step in steps)
    exposed = sum(sum(step["exposed_seconds"]) for step in steps)
    return float(exposed / under_way) if under_way else 0.0


def memory_verdict(figures: Figures) -> str | None:
    """Returns the sentence that stands in place of a throughput; None where memory sufficed."""
    if not figures.out_of_memory or figures.peak_bytes is None or figures.capacity_bytes is None:
        return None
    return f"out of memory: needs {figures.peak_bytes / 2**30:.1f} GiB of {figures.capacity_bytes / 2**30:.1f} GiB"
