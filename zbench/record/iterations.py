"""Figures of iterations of rollouts: what their stages take and make, and how old the policy is that they train with.

Pure: raw records in, figures out; no torch.
"""

from collections.abc import Mapping, Sequence
from typing import Any

STAGES = ("reshard", "generate", "score", "train")  # of an iteration, in their order

LAYOUTS = {
    "prefill": "prefill_seconds",
    "decode": "decode_seconds",
    "change": "layout_change_seconds",
    "changes": "layout_changes",
}  # of generation by two layouts: as a record has it, and as a figure


def iteration_figures(steps: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Returns the figures of steps that are iterations of rollouts, by their names in zbench.record.metrics.Figures;
    empty where a step is none."""
    told = [step.get("rollouts") for step in steps]
    if not told or not all(told):
        return {}
    every: list[Mapping[str, Any]] = [one for one in told if one]
    found: dict[str, float] = {}
    for stage in STAGES:
        seconds = sum(one["seconds"].get(stage, 0.0) for one in every)
        tokens = sum(one["tokens"].get(stage, 0) for one in every)
        found[f"{stage}_seconds"] = seconds / len(every)
        if tokens and seconds:
            found[f"{stage}_tokens_per_second"] = tokens / seconds
    responses, late, given_up = (
        sum(one[name] for one in every) for name in ("response_tokens", "off_policy_tokens", "given_up_tokens")
    )
    found["generation_imbalance"] = sum(one["generation_imbalance"] for one in every) / len(every)
    found["off_policy"] = late / responses if responses else 0.0
    found["policy_age"] = sum(one["policy_age"] * one["off_policy_tokens"] for one in every) / late if late else 0.0
    found["given_up"] = given_up / (responses + given_up) if given_up else 0.0
    if changed := [one["layouts"] for one in every if one.get("layouts")]:
        for name, figure in LAYOUTS.items():
            found[figure] = sum(one.get(name, 0.0) for one in changed) / len(every)
    return found
