"""Writes into a picture where its numbers come from. Pure: no torch."""

from zbench.figures.records import Records, group_choice


def simulated(records: Records) -> str:
    """Says that the numbers are simulated, on which clusters and how many GPUs."""
    facts = [run.start["facts"] for run in records.runs]
    sizes = sorted({one["num_gpus"] for one in facts})
    gpus = ", ".join(map(str, sizes)) if len(sizes) < 4 else f"{sizes[0]} to {sizes[-1]}"
    return f"simulated on {', '.join(records.clusters)} ({gpus} GPU{'' if sizes[-1] == 1 else 's'})"


def measured_stamp(records: Records) -> str:
    """Says of runs on emulated nodes, and simulated ones beside them, on which machines they were measured."""
    real = [run for run in records.runs if not run.start["facts"]["simulated"]]
    prints = [run.start["fingerprint"] for run in real]
    machines = dict.fromkeys(f"{one['processor']}, {one['cores']} cores" for one in prints)
    clusters = dict.fromkeys(str(run.start["facts"]["cluster"]) for run in real)
    return f"measured on emulated nodes, {', '.join(clusters)}, of one machine: {'; '.join(machines)}"


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
