"""The driver's side of executors that run on ranks: settings that all of them take are checked, ranks are started or
joined, and what they report is held to what it has to be. Imports no torch.
"""

import json
import math
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from os import environ
from typing import Any

from zbench.describe.checks import check_whole_number
from zbench.describe.model import Model
from zbench.describe.units import with_noun
from zbench.interfaces.abilities import HasVocabulary
from zbench.interfaces.protocols import Workload
from zbench.runtime.job.job import DEVICES, AdamW, RankSetup
from zbench.runtime.job.settings import at_least, check_kernel, check_model, one_of, with_known_keys
from zbench.runtime.processes.fleet import Fleet
from zbench.runtime.processes.world import found

LIMITS = {"exact": 1e-12, "float32": 1e-4}  # of the relative difference to the dense model, by check


class CheckFailed(Exception):
    """A step did not come out as it has to; the message is one sentence."""


class Diverged(Exception):
    """The loss is no number any more; the message is one sentence."""


def check_training(model: Model, workload: Workload, settings: Mapping[str, Any]) -> None:
    """Refuses what no executor that trains takes. settings: seed, kernel, device, timeout, warmup and optimizer.

    Raises:
        ValueError: a setting cannot be, or ranks cannot compute the model.
    """
    check_kernel(settings["kernel"], model.element_bytes, environ)
    one_of("executor.device", settings["device"], DEVICES)
    at_least("executor.timeout", settings["timeout"], 1)
    check_whole_number("executor.warmup", settings["warmup"], 0)
    AdamW(**with_known_keys("executor.optimizer", settings["optimizer"], AdamW.__dataclass_fields__))
    check_model(model, workload.vocab if isinstance(workload, HasVocabulary) else None)
    check_whole_number("executor.seed", settings["seed"], 0)


def check_pickled(job: Any, workload: Workload) -> None:
    """Raises ValueError if a workload cannot be pickled for the ranks, as part of their job."""
    try:
        pickle.dumps(job)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        kind = type(workload).__name__
        raise ValueError(f"workload is a {kind}, which cannot be pickled for the ranks: {error}") from error


def open_fleet(num_ranks: int, target: str, job: Any, timeout: float) -> Fleet:
    """Returns ranks, processes of this machine or those that torchrun or Slurm started. target: as of
    zbench.runtime.processes.launch.LocalFleet.

    Raises:
        ValueError: other than so many were started.
        zbench.runtime.processes.fleet.RankFailed: a rank could not start.
    """
    world = found(environ)
    if world is None:
        from zbench.runtime.processes.launch import LocalFleet

        return LocalFleet(num_ranks, target, job, timeout=timeout)
    if world.num_ranks != num_ranks:
        raise ValueError(
            f"cluster.num_nodes x cluster.gpus_per_node is {num_ranks}; {world.num_ranks} processes were started"
        )
    from zbench.runtime.processes.join import JoinedFleet

    return JoinedFleet(world, target, job, timeout=timeout)


def is_one_machine() -> bool:
    """Returns whether all ranks are processes of one machine, and have its clock."""
    world = found(environ)
    return world is None or world.is_one_machine


def check_own_nics(num_nodes: int) -> None:
    """Refuses to take NIC bytes from counters where one machine plays several nodes of a cluster.

    Raises:
        ValueError: the message says so.
    """
    if num_nodes > 1 and is_one_machine():
        raise ValueError(
            f"executor.nic_counters is true; one machine plays {with_noun(num_nodes, 'node')}, whose traffic its "
            "counters mix"
        )


def setup_facts(about: Sequence[RankSetup]) -> list[dict[str, Any]]:
    """Returns what ranks found out about how they run, each that differs once, for the record."""
    return [json.loads(one) for one in sorted({json.dumps(asdict(one), sort_keys=True) for one in about})]


def check_loss(loss: float, step: int) -> None:
    """Raises Diverged if a loss is no number."""
    if not math.isfinite(loss):
        raise Diverged(f"the loss is {loss} in step {step}; the run stops")


def check_difference(check: str, worst: tuple[float, str], step: int) -> float:
    """Returns the largest relative difference to the dense model, of which `worst` says where it is.

    Raises:
        CheckFailed: it is larger than a check allows.
    """
    difference, where = worst
    if not difference <= LIMITS[check]:
        raise CheckFailed(
            f"check={check} failed in step {step}: {where} differs from the dense model's by {difference:.2g} of its "
            f"largest value, and {LIMITS[check]:g} is allowed"
        )
    return difference
