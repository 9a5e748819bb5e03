"""Writes into a picture where its numbers come from. Pure: no torch."""

from collections.abc import Sequence

from zbench.figures.records import Records, group_choice
from zbench.record.record import Run

MOST_NAMED = 3  # values of a key; of more the first and the last are named


def simulated(records: Records) -> str:
    """Says that the numbers are simulated, on which clusters and how many GPUs, and what was changed of them."""
    facts = [run.start["facts"] for run in records.runs]
    sizes = sorted({one["num_gpus"] for one in facts})
    gpus = ", ".join(map(str, sizes)) if len(sizes) < 4 else f"{sizes[0]} to {sizes[-1]}"
    told = "; ".join([f"{gpus} GPU{'' if sizes[-1] == 1 else 's'}", *_changed(records.runs)])
    return f"simulated on {', '.join(records.clusters)} ({told})"


def measured_stamp(records: Records) -> str:
    """Says of runs on emulated nodes, and simulated ones beside them, on which machines they were measured."""
    real = [run for run in records.runs if not run.start["facts"]["simulated"]]
    prints = [run.start["fingerprint"] for run in real]
    machines = dict.fromkeys(f"{one['processor']}, {one['cores']} cores" for one in prints)
    clusters = dict.fromkeys(str(run.start["facts"]["cluster"]) for run in real)
    changed = f" ({'; '.join(told)})" if (told := _changed(real)) else ""
    return f"measured on emulated nodes, {', '.join(clusters)}{changed}, of one machine: {'; '.join(machines)}"


def _changed(runs: Sequence[Run]) -> list[str]:
    """Returns what runs changed of their clusters, key by key: ["gpus_per_node 4", "nic_bandwidth 20 Gbit/s in some
    runs"]. A number of nodes is left out where nodes are as they were, as the number of GPUs says it."""
    every = [run.start["config"].get("changes", {}).get("cluster", {}) for run in runs]
    keys = dict.fromkeys(key for one in every for key in one)
    if "gpus_per_node" not in keys:
        keys.pop("num_nodes", None)
    return [_values(key, [one.get(key) for one in every]) for key in keys]


def _values(key: str, found: Sequence[object]) -> str:
    """Returns a key with its values; None: a run did not change it."""
    values = list(dict.fromkeys(str(one) for one in found if one is not None))
    told = f"{values[0]} to {values[-1]}" if len(values) > MOST_NAMED else ", ".join(values)
    return f"{key} {told}{' in some runs' if None in found else ''}"


def stamp(records: Records, where: str) -> str:
    """Returns the stamp: `where`; the commit that made the records, and the commands that did."""
    commands = dict.fromkeys(f"python -m zbench experiment={group_choice(run, 'experiment')}" for run in records.runs)
    commits = dict.fromkeys(_commit(run.start["fingerprint"]) for run in records.runs)
    return "\n".join([where, f"commit {', '.join(commits)}", *commands])


def _commit(fingerprint: dict[str, object]) -> str:
    commit = fingerprint["commit"]
    if commit is None:
        return f"unknown, sources {str(fingerprint['sources'])[:10]}"
    return f"{str(commit)[:10]}{' and uncommitted changes' if fingerprint['dirty'] else ''}"
