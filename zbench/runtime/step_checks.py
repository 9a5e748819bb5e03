"""Checks of plans that whole steps are run of, and of what ranks tell of a step: bytes by queue, and rows where routers
chose. No torch."""

from collections.abc import Mapping, Sequence

from zbench.describe.batch import Batch
from zbench.describe.degrees import PARAMETER_KINDS, PLAIN, ShardDegrees
from zbench.describe.expert_schedule import DRAWN, TOKEN_CHOICE, Experts
from zbench.describe.model import Model
from zbench.describe.sync import RoundSync
from zbench.plans.plan import Plan
from zbench.runtime.driver import LIMITS, CheckFailed
from zbench.runtime.job.step_job import Sizes, StepReport


def check_dense(checks: Sequence[str], sharding: str | ShardDegrees, sync: RoundSync) -> None:
    """Refuses checks that compare with a dense model where there is none that a step has to come to.

    Raises:
        ValueError: the message names the check.
    """
    for check in (one for one in checks if one in LIMITS):
        bits = sharding.bits if isinstance(sharding, ShardDegrees) else PLAIN
        for name in (one for one in PARAMETER_KINDS if bits.of_kind(one) is not None):
            raise ValueError(
                f"check is {check} and sharding.bits.{name} {bits.of_kind(name)}, so that every rank computes with "
                "other parameters than a dense model; with it check takes bytes or null, and `python -m "
                "zbench.correctness steps` compares with one process that encodes alike"
            )
        if sync.in_rounds:
            raise ValueError(
                f"check is {check}; with sync={sync.method} workers train apart, so that no dense model is what they "
                "have to come to, and it takes bytes or null"
            )


def check_played_plans(plans: Sequence[Plan], name: str) -> None:
    """Refuses plans that whole steps cannot be run of. name: of the executor.

    Raises:
        ValueError: a package computes their attention, or they pad sequences.
    """
    for package in sorted({plan.attention for plan in plans} - {""}):
        raise ValueError(
            f"system has {package} compute attention in place of its plans; executor={name} runs plans alone, and "
            "executor=torch_attention has both"
        )
    if any(plan.padding is not None for plan in plans):
        raise ValueError(
            f"plans pad sequences, as with system.padding=published; executor={name} takes plans that do not: "
            "system.padding=none, also beside variant=published"
        )


def routed_rows(experts: Experts, model: Model, batch: Batch, reports: Sequence[StepReport]) -> dict[str, float]:
    """Returns what experts' capacity came to where routers chose, as of
    zbench.interfaces.result.StepResult.expert_rows."""
    if experts.routing == DRAWN:
        return {}
    seats, empty = (sum(one.seats[at] for one in reports) for at in (0, 1))
    choices = batch.num_tokens * model.experts_per_token * (model.num_layers - model.dense_layers)
    kept = (seats - empty) / choices
    told = {"dropped": 1 - kept} if experts.routing == TOKEN_CHOICE else {"kept": kept}
    return {**told, **({"padded": empty / seats} if experts.padded else {"taken": 1 - empty / seats})}


def checked_bytes(where: str, every: Sequence[Mapping[str, Sizes]], reports: Sequence[StepReport]) -> dict[str, float]:
    """Returns the bytes that all ranks have sent. where: what ran, as "step 3". every: of each rank, the bytes that
    steps say, by queue.

    Raises:
        zbench.runtime.driver.CheckFailed: a rank has sent or received others.
    """
    for rank, (report, stated) in enumerate(zip(reports, every, strict=True)):
        if report.total() != stated:
            raise CheckFailed(
                f"check=bytes failed in {where}: rank {rank} has (sent, received) {report.total()}, "
                f"by queue, and the step says {stated}"
            )
    return {"bytes": float(sum(sent for one in reports for sent, _ in one.total().values()))}
