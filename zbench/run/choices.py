"""The choices that conf/ offers to be checked, and the systems that need a package which may be missing. Pure: no
torch."""

from importlib.util import find_spec

from zbench import CONF

NEEDS = {"hybrid_dp_megatron": "megatron", "ulysses_deepspeed": "deepspeed"}  # packages of the extra `peers`


CHOOSES = ("static_best",)  # before a run, from its workload; its plans are a mesh's


def choices(group: str) -> list[str]:
    """Lists the names of a group's yamls, of systems those that plan for any cluster without being shown a workload."""
    return sorted(path.stem for path in (CONF / group).glob("*.yaml") if path.stem not in CHOOSES)


def missing_package(system: str) -> str:
    """Names the package that the system needs and that is not installed, "" if none."""
    package = NEEDS.get(system, "")
    return package if package and find_spec(package) is None else ""
