"""The FLOPs that a step needs, by convention, and the facts of a run that these and other metrics are derived from.
Pure.

The FLOPs, constant by constant (tokens N = sum of s, S = sum of s^2 over its sequences):

    matmuls     2 FLOPs (multiply and add) x parameter x token forward; backward needs two products of
                the same size (for the input and for the weights): 2 x (1 + 2) = 6 x parameters x N.
                What a capacity of experts drops is computed by nobody: of the parameters of experts that tokens
                choose only the share that is kept counts.
    attention   a query of a causal sequence sees itself and what stands before it: s(s+1)/2 pairs; under another
                mask (zbench.describe.mask) the step's `pairs` are those that are visible.
                Each pair costs 2 x head_dim for q.k and 2 x head_dim for weighting v: 4 x head_dim, in
                every head and layer. Backward has four such products (dV, dP, dQ, dK), twice the
                forward. Together 3 x 4 x head_dim x heads x layers x (S + N) / 2.
                A flash-attention kernel does 2.5 times the forward in its backward, as it computes q.k
                again to save memory. That is recomputation, and MFU counts none.

MFU = FLOPs / (seconds x GPUs x peak dense bf16 FLOP/s). Conventions differ by up to five times on
batches with a long tail, so every table names its own; see CONVENTIONS and docs/metrics.md.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from zbench.interfaces.result import kept_rows

CONVENTIONS = {
    "zbench": "6 x active matmul parameters x tokens + visible attention over the real lengths, forward and backward, "
    "no recomputation counted",
    "megatron": "6 x active matmul parameters x tokens + attention over half of sum s^2, embedding look-up left out",
    "verl": "6 x all active parameters, embedding included, x tokens + attention over half of sum s^2",
    "torchtitan": "6 x active parameters without the embedding x tokens + full, non-causal attention as if every "
    "sequence were as long as the context limit",
    "6nd": "6 x all active parameters x tokens, no attention",
}


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of the cluster and the model that metrics need, from a run's start line.

    num_ranks: GPUs of a training step, that its lists are of; num_gpus: with those that generate, or train others.
    active_params: parameters a token meets, embedding, norms and active experts included.
    active_matmul_params: those it is multiplied with; head_params: of the output projection among them.
    embedding_params: of the embedding table, 0 where it is tied to the head.
    context_limit: longest sequence the workload can make; None where it has no such limit.
    routed_params: of active_matmul_params those of experts that a token chooses, which one that is dropped does not
        meet; 0 without experts, and of older records.
    """

    num_ranks: int
    num_gpus: int
    nics_per_node: int
    nic_bandwidth: float
    peak_flops: float
    num_layers: int
    num_heads: int
    head_dim: int
    active_params: int
    active_matmul_params: int
    head_params: int
    embedding_params: int
    context_limit: int | None
    routed_params: int = 0

    @staticmethod
    def of(facts: Mapping[str, Any]) -> "Facts":
        """Reads the facts of a start line.

        Raises:
            ValueError: a fact is missing or no number.
        """
        for field in fields(Facts):
            value = facts.get(field.name, 0 if field.name in _MAY_BE_MISSING else "missing")
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            none = field.name == "context_limit" and value is None
            if not none and not (number and value >= (0 if field.name in _MAY_BE_ZERO else 1)):
                raise ValueError(f"facts.{field.name} of the start line is {value!r}, not a number of at least 1")
        return Facts(**{field.name: facts[field.name] for field in fields(Facts) if field.name in facts})


_MAY_BE_ZERO = ("embedding_params", "routed_params")  # parameters of which a model may have none
_MAY_BE_MISSING = ("routed_params",)  # facts that older records do not have


def mfu(facts: Facts, steps: Sequence[Mapping[str, Any]], convention: str = "zbench") -> float:
    """Returns the model FLOPs utilisation: needed FLOPs over what all GPUs could have done in the same time."""
    longest = max(step["max_length"] for step in steps)
    limit = longest if facts.context_limit is None else facts.context_limit
    needed = sum(
        flops(
            facts,
            step["tokens"],
            step["sum_squared"],
            limit,
            convention,
            step.get("pairs"),
            kept_rows(step.get("expert_rows", {})),
        )
        for step in steps
    )
    seconds: float = sum(step["seconds"] for step in steps)
    return needed / (seconds * facts.num_gpus * facts.peak_flops)


def flops(
    facts: Facts,
    tokens: int,
    sum_squared: int,
    context_limit: int,
    convention: str = "zbench",
    pairs: int | None = None,
    kept: float = 1.0,
) -> float:
    """Returns how many FLOPs a batch needs, as `convention` counts them; the module docstring derives the constants.

    context_limit: only torchtitan's convention asks for it. pairs: visible (query, key) pairs, None for a causal mask;
    only zbench's convention asks for it, the others count what they count whatever is visible. kept: rows that experts
    compute with a token in them, over tokens' choices; likewise.
    """
    width = facts.num_layers * facts.num_heads * facts.head_dim
    half_square = 3 * 4 * width * sum_squared / 2  # 3: forward and twice that backward; /2: causal
    if convention == "zbench":  # the diagonal is seen too: s(s+1)/2 pairs, not s^2/2
        attention = 3 * 4 * width * (sum_squared + tokens) / 2 if pairs is None else 3 * 4 * width * pairs
        return 6 * facts.active_matmul_params * tokens + attention - 6 * facts.routed_params * tokens * (1 - kept)
    if convention == "megatron":  # num_floating_point_operations on sums of real tokens and of their squares
        return 6 * facts.active_matmul_params * tokens + half_square
    if convention == "verl":  # flops_counter: embedding table and head both counted, tied or not
        return 6 * (facts.active_matmul_params + facts.head_params) * tokens + half_square
    if convention == "torchtitan":  # 6 (params - embedding) + 12 x layers x heads x head_dim x seq_len, per token
        return (6 * (facts.active_params - facts.embedding_params) + 12 * width * context_limit) * tokens
    if convention == "6nd":
        return 6 * facts.active_params * tokens
    raise ValueError(f"convention is {convention!r}; it takes one of {', '.join(CONVENTIONS)}")
