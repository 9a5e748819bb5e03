"""Finds out from the environment whether torchrun or Slurm started this process as one of many. Torch-free.

torchrun sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT (other launchers set the same
names), and serves a store at that address itself (TORCHELASTIC_USE_AGENT_STORE). srun sets SLURM_PROCID,
SLURM_STEP_NUM_TASKS, SLURM_LOCALID, SLURM_STEP_NODELIST and others; a batch script that runs without srun has
SLURM_PROCID=0 too but no SLURM_STEP_NUM_TASKS, and is no task of many. Where both are set (torchrun started by srun,
once a node), torchrun's count.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_PORTS = range(20_000, 30_000)  # below what systems hand out by themselves


@dataclass(frozen=True, slots=True)
class ProcessPlace:
    """The place of this process among those that were started together.

    num_local: processes on this machine, None where unknown. address, port: where the store is served: by the
    launcher if is_hosted, else by rank 0. attempt: which start of the same job this is (torchrun restarts).
    may_be_bound: each process may see only its own GPU.
    """

    rank: int
    num_ranks: int
    local_rank: int
    num_local: int | None
    address: str
    port: int
    is_hosted: bool
    attempt: str
    may_be_bound: bool

    @property
    def is_one_machine(self) -> bool:
        """Whether all processes are on this machine."""
        return self.num_local == self.num_ranks


def found(environment: Mapping[str, str]) -> ProcessPlace | None:
    """Finds the world that `environment` (os.environ) tells of; None where this process was started alone.

    Raises:
        ValueError: variables are missing, no numbers, or contradict each other.
    """
    if "RANK" in environment or "WORLD_SIZE" in environment:
        world = _torchrun(environment)
    elif "SLURM_PROCID" in environment and _number(environment, "SLURM_STEP_NUM_TASKS", 1) > 1:
        world = _slurm(environment)
    else:
        return None
    return world


def _torchrun(environment: Mapping[str, str]) -> ProcessPlace:
    if missing := [name for name in _TORCHRUN if not environment.get(name)]:
        given = next(name for name in ("RANK", "WORLD_SIZE") if name in environment)
        raise ValueError(
            f"{given} is set but {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} not; "
            f"torchrun sets {', '.join(_TORCHRUN)} together (unset {given} to run without it)"
        )
    num_ranks = _number(environment, "WORLD_SIZE")
    num_local = _number(environment, "LOCAL_WORLD_SIZE", 0) or None
    _check_below("RANK", _number(environment, "RANK"), "WORLD_SIZE", num_ranks)
    if num_local is not None:
        _check_below("LOCAL_RANK", _number(environment, "LOCAL_RANK"), "LOCAL_WORLD_SIZE", num_local)
        _check_below("LOCAL_WORLD_SIZE", num_local, "WORLD_SIZE", num_ranks, also_equal=True)
    return ProcessPlace(
        rank=_number(environment, "RANK"),
        num_ranks=num_ranks,
        local_rank=_number(environment, "LOCAL_RANK"),
        num_local=num_local,
        address=environment["MASTER_ADDR"],
        port=_port(environment),
        is_hosted=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        attempt=f"{environment.get('TORCHELASTIC_RUN_ID', '')}/{environment.get('TORCHELASTIC_RESTART_COUNT', '0')}",
        may_be_bound=False,
    )


def _slurm(environment: Mapping[str, str]) -> ProcessPlace:
    num_ranks = _number(environment, "SLURM_STEP_NUM_TASKS")
    num_local = _tasks_here(environment)
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST", "")
    _check_below("SLURM_PROCID", _number(environment, "SLURM_PROCID"), "SLURM_STEP_NUM_TASKS", num_ranks)
    if num_local is not None:
        _check_below(
            "SLURM_LOCALID", _number(environment, "SLURM_LOCALID"), "the number of tasks on this node", num_local
        )
        _check_below("the number of tasks on this node", num_local, "SLURM_STEP_NUM_TASKS", num_ranks, also_equal=True)
    address = environment.get("MASTER_ADDR") or ("127.0.0.1" if num_local == num_ranks else first_node(nodes))
    if not address:
        raise ValueError("SLURM_STEP_NODELIST is not set; it or MASTER_ADDR has to say where rank 0 is")
    return ProcessPlace(
        rank=_number(environment, "SLURM_PROCID"),
        num_ranks=num_ranks,
        local_rank=_number(environment, "SLURM_LOCALID"),
        num_local=num_local,
        address=address,
        port=_port(environment) if environment.get("MASTER_PORT") else _job_port(environment),
        is_hosted=False,
        attempt=environment.get("SLURM_RESTART_COUNT", "0"),
        may_be_bound=True,
    )


def first_node(nodes: str) -> str:
    """Returns the first host of a Slurm list: "gpu01" of "gpu[01-04,07],big3"; "" of ""."""
    head, bracket, rest = nodes.partition(",")[0].partition("[")
    if not bracket:
        return head
    tail = nodes.partition("]")[2].partition(",")[0]  # "rack[1-2]-a,..." has more after the bracket
    return head + re.split(r"[-,\]]", rest)[0] + tail


def _tasks_here(environment: Mapping[str, str]) -> int | None:
    """Returns how many tasks this node has, of "4(x2),3" (two nodes of 4 tasks, one of 3); None where Slurm does not
    say."""
    listed = environment.get("SLURM_STEP_TASKS_PER_NODE") or environment.get("SLURM_TASKS_PER_NODE")
    if listed is None or "SLURM_NODEID" not in environment:
        return None
    counts: list[int] = []
    for part in listed.split(","):
        read = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if not read:
            raise ValueError(f"SLURM_TASKS_PER_NODE is {listed!r}; it takes counts like 4(x2),3")
        counts += [int(read[1])] * int(read[2] or 1)
    node = _number(environment, "SLURM_NODEID")
    _check_below("SLURM_NODEID", node, "the number of nodes in SLURM_TASKS_PER_NODE", len(counts))
    return counts[node]


def _job_port(environment: Mapping[str, str]) -> int:
    """Returns a port that is the same on all tasks of a step, and different for most steps."""
    job, step = (_number(environment, name, 0) for name in ("SLURM_JOB_ID", "SLURM_STEP_ID"))
    return _PORTS[(job * 101 + step) % len(_PORTS)]


def _port(environment: Mapping[str, str]) -> int:
    port = _number(environment, "MASTER_PORT")
    if not 0 < port < 1 << 16:
        raise ValueError(f"MASTER_PORT is {port}; a port is between 1 and 65535")
    return port


def _number(environment: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    if text is None:
        raise ValueError(f"{name} is not set; srun sets it for each of its tasks")
    if not text.isdecimal():
        raise ValueError(f"{name} is {text!r}; it takes a whole number of 0 or more")
    return int(text)


def _check_below(name: str, value: int, bound_name: str, bound: int, also_equal: bool = False) -> None:
    if value > bound or (value == bound and not also_equal):
        raise ValueError(f"{name} is {value} but {bound_name} is {bound}; they contradict each other")
