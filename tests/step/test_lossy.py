"""Transfers in fewer bits: lossy hops as degrees say them, proven; bytes with their scales; values within what is said
to be lost at most."""

from dataclasses import replace

import numpy as np
import pytest

from tests.helpers.steps import EXPERTS, MODEL, execute, fault, rejected_mutants
from tests.step.test_degrees import into_nodes, plans_of
from zbench.correctness.steps.quantised import after_transfer
from zbench.correctness.steps.unrolled import unrolled_fault
from zbench.describe.degrees import WORLD, ShardDegrees, TransferBits
from zbench.describe.model import Model
from zbench.describe.overlap import StepOverlap
from zbench.step.byte_law import stated_bytes
from zbench.step.operations import REDUCE
from zbench.step.passes.build import whole_step
from zbench.step.passes.routing import TOGETHER, ExpertParallel
from zbench.step.proof.prove import StepError, prove_step
from zbench.step.reading.read import read_step
from zbench.step.template import Encoding, Step
from zbench.step.text import step_text

ALL = TransferBits(8, 8, 4, 8, 16)
ZEROPP = ShardDegrees(WORLD, 2, WORLD, WORLD, WORLD, 2, replace(ALL, updates=None))
CASES = [  # degrees on 4 or 8 GPUs, and hops of a layer's parameters, of the table and of gradients
    (4, ZEROPP, (2, 1, 2)),
    (4, replace(ZEROPP, bits=TransferBits(weights=8)), (1, 1, 0)),
    (4, replace(ZEROPP, bits=TransferBits(secondary=8)), (1, 0, 0)),
    (4, replace(ZEROPP, bits=TransferBits(gradients=4)), (0, 0, 2)),
    (8, ShardDegrees(2, 2, 4, WORLD, 4, WORLD, TransferBits(gradients=4, updates=8)), (1, 1, 2)),
    (8, ShardDegrees(2, 2, 4, WORLD, 4, 2, ALL), (2, 2, 3)),
    (4, ShardDegrees(1, 1, 2, WORLD, bits=TransferBits(gradients=4, updates=8)), (1, 1, 2)),
    (4, ShardDegrees(2, 1, 2, 2, bits=TransferBits(weights=8, gradients=8)), (1, 1, 2)),
]


def built(ranks: int, degrees: ShardDegrees) -> Step:
    return whole_step(MODEL, plans_of(([5, 3], [1]), ranks), 1, degrees)


@pytest.mark.parametrize(("ranks", "degrees", "hops"), CASES, ids=str)
def test_lossy_hops_are_those_of_degrees(ranks: int, degrees: ShardDegrees, hops: tuple[int, int, int]) -> None:
    step = built(ranks, degrees)
    assert unrolled_fault(step) == ""
    found = prove_step(step).hops
    assert (found["wq"], found["we"], found["dwq"]) == hops
    layouts = [replace(one, tensors=tuple(replace(x, hops=7) for x in one.tensors)) for one in step.layouts]
    with pytest.raises(StepError, match="its values are encoded with loss"):
        prove_step(replace(step, layouts=tuple(layouts)))


@pytest.mark.parametrize(
    ("model", "degree", "experts"),
    [
        (replace(MODEL, tied_embeddings=True), 1, TOGETHER),
        (MODEL, 2, TOGETHER),
        (EXPERTS, 1, ExpertParallel(2, seed=0, skew=1.0)),
    ],
    ids=str,
)
def test_others_are_proven_with_bits(model: Model, degree: int, experts: ExpertParallel) -> None:
    plans = plans_of(([9], [3, 2]), 4, 4 // degree)
    step = whole_step(model, plans, degree, ZEROPP, StepOverlap(2, "end"), "full", experts)
    assert (fault(step), unrolled_fault(step)) == ("", "")


def test_reductions_in_two_hops_are_exact_without_bits() -> None:
    """And what a node's GPUs contribute leaves it summed: a quarter of the bytes of nodes of four."""
    degrees = ShardDegrees(4, 4, WORLD, WORLD, hop=4)
    plans = plans_of(([5, 3], [1]), 8)
    one, other = (whole_step(MODEL, plans, 1, each) for each in (degrees, replace(degrees, hop=WORLD)))
    assert fault(one) == ""
    assert execute(one, plans, 1) < 1e-12
    two, flat = (sum(into_nodes(step, 4, REDUCE, "gradients")) for step in (one, other))
    assert flat == 4 * two


def test_bytes_have_codes_and_scales() -> None:
    """Every gather and reduction of qwZ and qgZ, cell by cell: codes, and 4 bytes for every block that is begun."""
    bits = TransferBits(weights=8, gradients=4, block=5)
    plain, step = (built(4, replace(ZEROPP, bits=each)) for each in (TransferBits(), bits))
    assert [(one.bits, one.of, one.block) for one in step.encodings] == [(8, 2, 5), (4, 4, 5)]
    sizes = np.array([0, 2, 10, 12, 24])
    assert step.encodings[0].cell_bytes(sizes).tolist() == [0, 1 + 4, 5 + 4, 6 + 8, 12 + 12]
    assert step.encodings[1].cell_bytes(2 * sizes).tolist() == [0, 1 + 4, 3 + 4, 3 + 8, 6 + 12]
    assert step.encodings[0].ratio == pytest.approx(2 / (1 + 4 / 5))
    before, after = ([one["gradients"][0] for one in stated_bytes(each)] for each in (plain, step))
    assert all(0.3 * old < new < 0.4 * old for old, new in zip(before, after, strict=True))  # (4 / 8 + 4 / 5) / 4


def test_text_reads_back_and_mutants_are_found() -> None:
    step = built(4, ZEROPP)
    text = step_text(step)
    assert step_text(read_step(text)) == text
    assert "encoding weights_int8: 8 bits, blocks of 16, lossy" in text
    assert "encoding gradients_int4: 4 bits of 4 bytes, blocks of 16, lossy" in text
    assert rejected_mutants(step, 3, 40) > 10


@pytest.mark.parametrize("bits", [4, 8])
def test_a_value_loses_half_a_step_of_its_block_and_nothing_the_second_time(bits: int) -> None:
    rng, encoding = np.random.default_rng(0), Encoding("int", bits, True, 8, 16)
    value = rng.standard_normal((5, 10)) * np.exp(rng.standard_normal((5, 1)) * 5)
    found = after_transfer(value, encoding)
    most = 2 ** (bits - 1) - 1
    for begin in range(0, 50, 16):
        part, other = (one.reshape(-1)[begin : begin + 16] for one in (value, found))
        assert 0 < np.abs(part - other).max() <= np.abs(part).max() / most / 2 * (1 + 1e-6)
    assert (after_transfer(found, encoding) == found).all()
    assert (after_transfer(np.zeros(3), encoding) == 0).all()
    assert after_transfer(value, replace(encoding, lossy=False)) is value
