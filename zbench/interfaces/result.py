"""The result of one step: raw quantities only.

Throughput, MFU, utilisation and every other ratio are derived from these when a record is read
(zbench.record.metrics), so that a formula can be corrected without running again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# Parts that a step's seconds are told in: computing, waiting, and idle at the end. Simulated (whole steps,
# zbench.simulator.steps.breakdown) link and rank are told apart, which are messages where they are measured.
COMPUTES = (
    "attention", "linear", "optimizer", "recomputation", "repacking", "slowed", "interpreter", "generation", "scoring"
)  # fmt: skip
WAITS = ("link", "rank", "messages", "parameters", "gradients", "experts", "stages", "host", "generation")
SECONDS_FOR = (*COMPUTES, *(f"waiting_{name}" for name in WAITS), "end")
SWITCH = "switch"  # beside queues of zbench.step.operations: what moves because a step's strategy is another one
HANDED_OVER = "handed_over"  # what stays in its node's host memory then, where two processes have parts of it
NOT_ON_NVLINK = ("compute", "parameters", "gradients", SWITCH, HANDED_OVER)  # what nvlink_bytes leaves out


def kept_rows(expert_rows: Mapping[str, float]) -> float:
    """Returns the rows with a token in them that experts compute, over tokens' choices (tokens x experts of a token):
    1 where nothing is told. expert_rows: as StepResult has it."""
    return expert_rows.get("kept", 1 - expert_rows.get("dropped", 0.0))


@dataclass(frozen=True, slots=True)
class StepResult:
    """Raw quantities of one training step; seconds and bytes, lists are per rank or per NIC.

    A rank is a GPU: num_ranks counts those of all stages and tensor-parallel groups, in the cluster's order.

    seconds: the whole step on the slowest rank (the clock of the described cluster where simulated).
    bound_seconds: no plan could be faster under the same cost model (docs/metrics.md).
    ceiling_seconds: none with these gathers and reductions could be; None where training is real or nothing is proven.
    attention_seconds, linear_seconds: [num_ranks] busy time of the compute queue.
    communication_seconds: [num_ranks] time in which at least one of the rank's transfers was under way, plus
        that of parameters and gradients (which may overlap them: never more than the step);
        exposed_seconds: the part of it with the compute queue idle.
    exposed_nic_seconds: [num_ranks] the part of exposed_seconds with an attention message across nodes under way; None
        where that is not told apart.
    nic_tx_bytes, nic_rx_bytes: [num_nics] bytes that crossed each NIC: the same, and parameters and gradients.
    nic_tx_for: {} or, by what they were for ("attention", "parameters", "gradients" and the others of
        zbench.step.operations.QUEUES, and SWITCH), the bytes of nic_tx_bytes, [num_nics] each.
    seconds_for: {} or, by what they went to (of SECONDS_FOR), [num_ranks] seconds each;
        those of a rank sum to `seconds`, and what is left out is 0.
    nvlink_bytes: bytes that moved inside nodes for attention, tensor and pipeline parallelism (gradients are counted
        on NICs alone).
    peak_bytes: [num_ranks] highest memory in use; capacity_bytes: what a GPU has.
    host_bytes: [] or, where something is in host memory, the most bytes of it at a time, [num_nodes].
    store_bytes: [] or, of a whole step executed on CPUs, where peak_bytes are those of processes, the most bytes of the
        step's own tensors and of logits at a time, [num_ranks]: what peak_bytes are where the step is simulated.
    out_of_memory: some peak is above the capacity; a real run would have died here.
    loss: token-mean loss over the global batch; None where nothing was trained.
    checks: what the checks asked for found, by name; each has passed.
    valid: its seconds count; False where a paced device's real work took so much longer than modelled that they do not.
    nic_series: {} or, of every NIC, the bytes that crossed it in each "interval" (seconds) of the step: "tx", "rx",
        [num_nics][num_intervals].
    recompute: {} or, where training is real, what ran again and why (zbench.runtime.job.footprint.LevelChoice).
    expert_chunks: {} or the chunks in which tokens went to experts, and the seconds of those that were compared
        (zbench.simulated.expert_degrees.ChosenChunks); where workers train apart what they have in common, and of each
        by itself ("workers").
    exchange_slices: {} or, where their number was open, the "slices" of each GPU's own tokens in which exchanges of
        tensor-parallel groups went, and the "seconds" of the steps that were compared, by number.
    expert_rows: {} or, with a capacity of experts, the share of tokens' choices that are "dropped" and of experts' rows
        that are "padded"; what routers chose while the step ran where it was executed. Where they choose how many rows
        there are: how many of those that there could be are "taken". "drawn": 1 or not given, where a draw stands in
        the place of a router. Where experts choose, no choice of a token is dropped, and "kept" is the rows with a
        token over tokens' choices (`kept_rows`).
    rollouts: {} or of an iteration of rollouts: "seconds" and "tokens" by stage (reshard, generate, score, train), each
        by itself; "waited_seconds", those of generation that training waited for; "generation_imbalance", the slowest
        replica's seconds over the mean; "response_tokens" that were trained on, "off_policy_tokens" among them, by a
        policy that was "policy_age" updates old, and "given_up_tokens". "layouts", where prompts are read by a layout
        of their own: of the slowest replica, the seconds in which it reads them ("prefill"), decodes ("decode") and
        changes its layout ("change"), and how often it does ("changes").
    """

    seconds: float
    bound_seconds: float
    attention_seconds: list[float]
    linear_seconds: list[float]
    communication_seconds: list[float]
    exposed_seconds: list[float]
    nic_tx_bytes: list[int]
    nic_rx_bytes: list[int]
    nvlink_bytes: int
    peak_bytes: list[int]
    capacity_bytes: int
    out_of_memory: bool
    ceiling_seconds: float | None = None
    loss: float | None = None
    exposed_nic_seconds: list[float] | None = None
    phases: dict[str, float] = field(default_factory=dict)
    checks: dict[str, float] = field(default_factory=dict)
    valid: bool = True
    nic_tx_for: dict[str, list[int]] = field(default_factory=dict)
    seconds_for: dict[str, list[float]] = field(default_factory=dict)
    nic_series: dict[str, Any] = field(default_factory=dict)
    recompute: dict[str, Any] = field(default_factory=dict)
    expert_chunks: dict[str, Any] = field(default_factory=dict)
    exchange_slices: dict[str, Any] = field(default_factory=dict)
    expert_rows: dict[str, float] = field(default_factory=dict)
    rollouts: dict[str, Any] = field(default_factory=dict)
    host_bytes: list[int] = field(default_factory=list)
    store_bytes: list[int] = field(default_factory=list)
