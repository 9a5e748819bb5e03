"""Checks of what ranks tell of a whole step: bytes by queue, and rows where routers chose. No torch."""

from collections.abc import Mapping, Sequence

from zbench.describe.batch import Batch
from zbench.describe.expert_schedule import DRAWN, TOKEN_CHOICE, Experts
from zbench.describe.model import Model
from zbench.runtime.driver import CheckFailed
from zbench.runtime.job.step_job import Sizes, StepReport


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


def checked_bytes(
    where: str, every: Sequence[Mapping[str, Sizes]], reports: Sequence[StepReport]
) -> dict[str, float]:
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
