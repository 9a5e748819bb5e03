"""Replaces names that older records give to parts by today's names. Pure.

The folders of systems and workloads were packages of their own once, workload=pystdlib found the standard library by a
function of Python's, and modules lay in zbench/ itself. Records are read under today's names, so that old and new runs
of the same thing compare as equal.
"""

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
    return made
