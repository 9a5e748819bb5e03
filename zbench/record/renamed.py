"""Replaces names that older records give to parts and to their keys by today's names. Pure.

The folders of systems and workloads were packages of their own once, workload=pystdlib found the standard library by a
function of Python's, and modules lay in zbench/ itself. Keys of yamls get other names, too: `old_key`
is what tells a user of them. Records are read under today's names, so that old and new runs of the same thing compare
as equal.
"""

from collections.abc import Mapping
from typing import Any

MOST_NESTED = 50  # levels of a configuration; those of our yaml have five
_PACKAGES = ("systems.", "workloads.")
_MOVED = {
    "zbench.cluster.Cluster": "zbench.describe.cluster.Cluster",
    "zbench.cluster.Device": "zbench.describe.cluster.Device",
    "zbench.links.Domain": "zbench.describe.links.Domain",
    "zbench.model.Model": "zbench.describe.model.Model",
    "zbench.worlds.World": "zbench.describe.worlds.World",
    "zbench.simulate.Simulated": "zbench.simulator.simulate.Simulated",
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
# By group and choice: what a key of its yaml was called before, and what it is today. Nothing is taken off this table
# while records of that time are to be read.
KEYS: Mapping[str, Mapping[str, Mapping[str, str]]] = {
    "system": {
        "flexsp": {"nodes": "solver_nodes", "seconds": "solver_seconds", "buckets": "solver_buckets"},
        "nodewise": {
            "operations": "max_played_operations",
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
        },
        "zeppelin": {"legs": "routed_transfers", "order": "list_schedule"},
    },
}
_CLASSES = {  # what has these keys, whatever yaml names it: one of the user's own may, too
    "zbench.systems.flexsp.planner.FlexSP": KEYS["system"]["flexsp"],
    "zbench.systems.nodewise.planner.Nodewise": KEYS["system"]["nodewise"],
    "zbench.systems.zeppelin.planner.Zeppelin": KEYS["system"]["zeppelin"],
}
_STDLIB_WAS = {"_target_": "sysconfig.get_path", "name": "stdlib"}
_STDLIB = {"_target_": "zbench.workloads.stdlib.folder"}


def renamed(config: Any, level: int = 0) -> Any:
    """Returns the configuration with today's names of what zbench itself once called otherwise.

    Raises:
        ValueError: it is nested more deeply than any configuration is.
    """
    if level > MOST_NESTED:
        raise ValueError(f"a configuration nested more than {MOST_NESTED} levels deep")
    if isinstance(config, list):
        return [renamed(value, level + 1) for value in config]
    if not isinstance(config, dict):
        return config
    if config == _STDLIB_WAS:
        return dict(_STDLIB)
    made = {key: renamed(value, level + 1) for key, value in config.items()}
    target = made.get("_target_")
    if isinstance(target, str):
        name = f"zbench.{target}" if target.startswith(_PACKAGES) else target
        made["_target_"] = _MOVED.get(name, name)
    return _with_todays(made, keys_of(made.get("_target_")))


def renamed_run(config: Any) -> Any:
    """Returns the configuration of a run with today's names, also of the keys that it says were changed: `changes` by
    group, and `baseline_system`, which are the baseline's.

    Raises:
        ValueError: it is nested more deeply than any configuration is.
    """
    config = renamed(config)
    if not isinstance(config, dict):
        return config
    changes, own = config.get("changes"), config.get("baseline_system")
    if isinstance(changes, dict):
        parts = {group: config.get(group) for group in changes}
        targets = {group: part.get("_target_") for group, part in parts.items() if isinstance(part, dict)}
        made = {group: _with_todays(keys, keys_of(targets.get(group))) for group, keys in changes.items()}
        config = {**config, "changes": made}
    if isinstance(own, dict):
        config = {**config, "baseline_system": _with_todays(own, KEYS["system"].get(str(config.get("baseline")), {}))}
    return config


def renamed_baseline(baseline: Any) -> Any:
    """Returns what a run says of its baseline with today's names: of its system, and of the keys in its label.

    Raises:
        ValueError: it is nested more deeply than any configuration is.
    """
    baseline = renamed(baseline)
    system = baseline.get("system") if isinstance(baseline, dict) else None
    keys = keys_of(system.get("_target_")) if isinstance(system, dict) else {}
    if not (keys and isinstance(baseline.get("name"), str)):
        return baseline
    words = [word.partition("=") for word in baseline["name"].split(" ")]
    return {**baseline, "name": " ".join(keys.get(key, key) + equals + value for key, equals, value in words)}


def keys_of(target: object) -> Mapping[str, str]:
    """Returns the earlier names of the keys of a `_target_`, and today's."""
    return _CLASSES.get(target, {}) if isinstance(target, str) else {}


def old_key(given: str, target: object) -> str | None:
    """Returns a sentence that says what a key is called today, None where it has no earlier name.

    given: the key as the user wrote it, dotted, as in system.legs. target: the `_target_` of what it is a key of.
    """
    parent, _, key = given.rpartition(".")
    today = keys_of(target).get(key)
    return None if today is None else f"{given} is called {parent}.{today} today"


def _with_todays(config: Any, keys: Mapping[str, str]) -> Any:
    """Returns the mapping with keys by their names of today; where both names are there, as they are."""
    if not (isinstance(config, dict) and keys):
        return config
    return {keys[key] if key in keys and keys[key] not in config else key: value for key, value in config.items()}
