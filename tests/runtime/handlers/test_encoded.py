"""Cells in fewer bits on processes: as one process emulates them, with the bytes of the step, alike every time."""

import numpy as np
import pytest
import torch

from tests.helpers.steps import plan_of
from tests.runtime.handlers.test_degrees import FOUR
from zbench.correctness.steps.cases import StepCase
from zbench.correctness.steps.choices import MODEL
from zbench.correctness.steps.command import judged_step
from zbench.correctness.steps.quantised import after_transfer
from zbench.describe.degrees import WORLD, ShardDegrees, TransferBits
from zbench.runtime.handlers.encoded import EncodedCells, check_runs, encoded_bytes
from zbench.runtime.handlers.formats import Format
from zbench.runtime.processes.launch import LocalFleet
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.build import whole_step
from zbench.step.proof.prove import prove_step
from zbench.step.template import Encoding

CELLS = ((1,), (0, 1, 2))
ONE = np.ones(2, np.int64)


def shards(dtype: torch.dtype) -> Format:
    return Format((("jz", dtype),), ("j", "z"), (ONE, np.array([37, 5, 16])), {})


@pytest.mark.parametrize(
    "degrees",
    [
        ShardDegrees(WORLD, 2, WORLD, WORLD, WORLD, 2, TransferBits(8, 8, 4, block=16)),
        ShardDegrees(2, 2, 4, WORLD, WORLD, 2, TransferBits(8, 4, 4, 8, 7)),
        ShardDegrees(1, 1, 2, WORLD, 2, WORLD, TransferBits(gradients=8, updates=4, block=5)),
    ],
    ids=str,
)
def test_processes_come_to_their_emulation(ranks: LocalFleet, degrees: ShardDegrees) -> None:
    """Within 1e-12, loss, gradients and parameters; in the second micro-batch two processes have no token."""
    plans = [plan_of(lengths, 4, 4, first=10 * at) for at, lengths in enumerate(([9, 6], [2, 1]))]
    step = whole_step(MODEL, plans, 1, degrees)
    prove_step(step)
    case = StepCase.of(step, MODEL, plans, 1)
    found = ranks.call("run", case)
    assert judged_step(FOUR, found, stated_bytes(step)).fault == ""
    assert ranks.call("run", case) == found  # to the bit
    dense = ranks.call("run", StepCase.of(whole_step(MODEL, plans, 1), MODEL, plans, 1))
    assert dense[0].wanted_loss != found[0].wanted_loss  # what is emulated is not what a dense model comes to


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_a_message_has_all_of_its_cells(bits: int, dtype: torch.dtype) -> None:
    """Cell by cell as the emulation has them, within half a step, and sent on without another loss."""
    encoding, of = Encoding("int", bits, True, dtype.itemsize, 16), shards(dtype)
    values = torch.randn(1, 58, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    sent = EncodedCells.of(of, CELLS, (values,), encoding)
    message = sent.message
    assert len(message) == encoded_bytes(of, CELLS, encoding) == sum(-(-n * bits // 8) for n in (37, 5, 16)) + 4 * 5
    arrived = EncodedCells.arrived(message, of, CELLS, encoding)
    (found,) = arrived.fields(of, CELLS)
    assert found.dtype == dtype
    assert torch.equal(arrived.message, message)  # as it is sent on
    for (_, cell), begin, end in (((1, 0), 0, 37), ((1, 1), 37, 42), ((1, 2), 42, 58)):
        one, other = values[0, begin:end].double(), found[0, begin:end].double()
        wanted = torch.from_numpy(after_transfer(one.numpy(), encoding))
        assert torch.allclose(other, wanted, rtol=1e-2 if dtype == torch.bfloat16 else 1e-6, atol=0)
        assert (
            float((one - other).abs().max()) <= sent.lost[1, cell] + float(other.abs().max()) * torch.finfo(dtype).eps
        )


def test_what_is_no_number_stays_none() -> None:
    encoding, of = Encoding("int", 4, True, 4, 16), shards(torch.float32)
    values = torch.ones(1, 58)
    values[0, 3], values[0, 40] = float("inf"), float("nan")
    (found,) = EncodedCells.of(of, CELLS, (values,), encoding).fields(of, CELLS)
    assert not torch.isfinite(found[0, [*range(16), 40]]).any()
    assert torch.equal(found[0, 16:37], values[0, 16:37])


def test_encodings_that_do_not_run() -> None:
    for one, told in (
        (Encoding("a", 8, True), "8 bits and no blocks"),
        (Encoding("a", 5, True, 4, 9), "5 bits and blocks of 9"),
    ):
        with pytest.raises(ValueError, match=f"encoding a has {told}; those that run have 4 or 8, in blocks"):
            check_runs([one])
