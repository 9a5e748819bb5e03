"""Sentences that tables of runs are read with. Pure: no torch."""

from collections.abc import Mapping, Sequence
from typing import Any

from zbench.describe.cluster import Cluster, usual_channels
from zbench.describe.units import with_noun
from zbench.record.flops import CONVENTIONS
from zbench.record.interval import LEAST

# Parts of a step's seconds (zbench.interfaces.result.SECONDS_FOR), as people read them.
PARTS = {
    "attention": "attention",
    "linear": "linear modules",
    "optimizer": "optimizer",
    "recomputation": "recomputation",
    "repacking": "repacking",
    "slowed": "computing slowed by messages",
    "interpreter": "around attention's kernels",
    "waiting_link": "waiting for a link",
    "waiting_rank": "waiting for another rank",
    "waiting_messages": "waiting for messages",
    "waiting_parameters": "waiting for parameters",
    "waiting_gradients": "waiting for gradients",
    "waiting_experts": "waiting for tokens of experts",
    "waiting_stages": "waiting for another stage",
    "waiting_host": "waiting for host memory",
    "generation": "generation",
    "scoring": "scoring",
    "waiting_generation": "waiting for generation",
    "end": "idle at the end",
}
# Settings that are told where they are others.
_USUAL = {"world": "nominal", "planners": "world", "mask": "causal", "free": []}


def told_settings(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Returns those settings of `names` that are told of runs which have them in common: all but the usual world and
    mask."""
    return [name for name in names if name not in _USUAL or row[name] != _USUAL[name]]


def typed(value: Any) -> str:
    """Writes a setting's value; lists and null as a command line takes them."""
    if value is None:
        return "null"
    return f"[{','.join(map(str, value))}]" if isinstance(value, list) else str(value)


def simulated_words(found: Sequence[Mapping[str, Any]]) -> str:
    """Names the executors of those rows that were simulated."""
    return " and ".join(dict.fromkeys(str(row["executor"]) for row in found if row["simulated"]))


def convention_words(convention: str) -> str:
    """Says by which convention MFU is counted."""
    return f"MFU by convention {convention}: {CONVENTIONS[convention]}."


def doubt_words(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Explains the question mark behind a speed-up, if one of these rows has it."""
    doubt = f"?: too few steps to tell: fewer than {LEAST}, or the 95 % interval of the speed-up has 1 in it."
    return [doubt] if any(row["speedup_told"] is False for row in found) else []


def link_words(cluster: Cluster) -> str:
    """Describes the domains, and channels that are not the usual ones (NICs' `auto`, one of NVLink's); "" without
    any."""
    told = [
        f"{one.gpus} GPUs a {one.name} with {one.bandwidth / 1e9:g} GB/s and {with_noun(one.channels, 'channel')}"
        + (", which is the whole node: nothing uses the node's own links" if one.gpus >= cluster.gpus_per_node else "")
        for one in cluster.domains
    ]
    if cluster.nvlink_channels != 1:
        told.append(with_noun(cluster.nvlink_channels, "NVLink channel"))
    if cluster.nic_channels != usual_channels(cluster.nic_bandwidth):
        told.append(with_noun(cluster.nic_channels, "NIC channel"))
    return ", ".join(told)


def cluster_words(facts: Mapping[str, Any]) -> str:
    """Describes the cluster as configured, its tensor-parallel groups where a group is more than one GPU, and its
    stages, where there are some."""
    words = (
        f"{facts['cluster']}: {with_noun(facts['num_nodes'], 'node')} x {facts['gpus_per_node']} {facts['device']}, "
        f"{with_noun(facts['nics_per_node'], 'NIC')} of {facts['nic_bandwidth'] * 8 / 1e9:g} Gbit/s a node"
    )
    if nodes := facts.get("generate_nodes"):
        words += f", and {nodes} more {'node that generates' if nodes == 1 else 'nodes that generate'}"
    if nodes := facts.get("set_nodes"):
        words += f", and {with_noun(nodes, 'more node')} with models beside the actor's"
    if "links" in facts:
        words += f"; {facts['links']}"
    if "world" in facts:
        words += f"; world: {facts['world']}"
    if facts.get("tensor_parallel", 1) > 1:
        groups = facts["num_tensor_parallel_groups"]
        words += f"; {with_noun(groups, 'tensor-parallel group')} of {facts['tensor_parallel']} GPUs"
        words += " each" if groups > 1 else ""
    if facts.get("pipeline_parallel", 1) > 1:
        words += f"; {with_noun(facts['pipeline_parallel'], 'pipeline stage')}"
    if facts.get("expert_gpus", 1) > 1:
        words += f"; a layer's experts over {facts['expert_gpus']} GPUs"
    if not facts.get("synchronous", True):
        words += "; not synchronous: workers train apart in rounds, so tokens/s compare at equal loss alone"
    return words
