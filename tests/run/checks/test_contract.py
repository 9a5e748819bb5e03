"""What workloads and systems of third parties may get wrong, each told in one sentence with their class."""

import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.interfaces.dealt import Dealt
from zbench.interfaces.protocols import Ready
from zbench.plans.plan import Plan
from zbench.proof.verify import verify_step
from zbench.run.checks.contract import PlugInError, batch_of, gives, plans_of
from zbench.runtime.processes.fleet import RankFailed
from zbench.systems.ring import Ring

LENGTHS = np.array([100, 7, 21], np.int64)
NONE = np.zeros(0, np.int64)


@dataclass
class Lengths:
    """A workload that gives whatever `made` makes of the step."""

    made: Callable[[int], Any]

    def batch(self, step: int) -> Any:
        return self.made(step)


@dataclass
class Mine:
    """A system that gives whatever `made` makes of ring's plans."""

    cost: Cost
    made: Callable[[tuple[Plan, ...]], Any]

    def plan(self, batch: Batch) -> Any:
        return self.made(Ring(self.cost).plan(batch))


def batch(lengths: Any = LENGTHS, step: int = 3, documents: Any = None, counts: Any = None) -> Batch:
    return Batch(lengths, 0, step, documents, counts=counts)


@pytest.mark.parametrize("documents", [None, LENGTHS])
def test_a_good_batch_passes(documents: Any) -> None:
    given = batch(documents=documents)
    found = batch_of(Lengths(lambda step: given), 3, 128)
    assert (found.digest, found.seed, found.step) == (given.digest, given.seed, given.step)
    assert (found.documents is None) == (documents is None)


def test_a_batch_has_arrays_of_its_own_in_one_piece() -> None:
    pairs = np.array([[100, 1], [7, 2], [21, 3]], np.int64)
    flags = np.ones((128, 2), bool)
    found = batch_of(Lengths(lambda step: batch(pairs[:, 0], documents=pairs[:, 1], counts=flags[:, 0])), 3, 128)
    pairs[:], flags[:] = 0, False
    assert found.counted_labels == 128
    assert found.documents is not None
    assert (found.lengths.tolist(), found.documents.tolist()) == ([100, 7, 21], [1, 2, 3])
    assert found.lengths.flags.c_contiguous
    assert found.documents.flags.c_contiguous


@pytest.mark.parametrize("parts", [None, 2])
@pytest.mark.parametrize("name", ["lengths", "documents", "counts"])
def test_a_system_cannot_change_what_it_is_measured_on(name: str, parts: int | None, uneven: Cost) -> None:
    class Eased(Ring):
        """A system that makes its sequences short."""

        def plan(self, batch: Batch) -> tuple[Plan, ...]:
            plans = Ring.plan(self, batch)
            getattr(batch, name)[:] = True
            return plans

    system: Any = Eased(uneven) if parts is None else Dealt(Eased(uneven), parts)
    with pytest.raises(PlugInError, match=rf"Eased\.plan changed the batch's {name}; .* batch\.{name}\.copy\(\)$"):
        plans_of(system, batch(LENGTHS.copy(), documents=LENGTHS.copy(), counts=np.arange(128) > 5), uneven)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (LENGTHS, r"an array of int64 \[3\]; it has to give a zbench.describe.batch.Batch"),
        (None, "None; it has to give a zbench.describe.batch.Batch"),
        (batch([100, 7, 21]), r"lengths as a list; .* as np.array\(lengths, np.int64\) makes it"),
        (batch(LENGTHS.astype(float)), r"lengths as an array of float64 \[3\]; "),
        (batch(LENGTHS.astype(np.int32)), r"lengths as an array of int32 \[3\]; "),
        (batch(LENGTHS.reshape(1, 3)), r"lengths as an array of int64 \[1, 3\]; "),
        (batch(np.ma.masked_array(LENGTHS)), "lengths as a MaskedArray; "),
        (batch(documents=[1, 2, 3]), "documents as a list; "),
        (batch(documents=LENGTHS[:2]), "2 documents for 3 lengths; there is one for each"),
        (batch(np.array([100, 0, 28])), r"lengths\[1\] = 0; a sequence has at least 1 token"),
        (batch(np.array([130, -2])), r"lengths\[1\] = -2; a sequence has at least 1 token"),
        (batch(np.array([100, 7])), "107 tokens where 128 were asked for .* has exactly as many"),
        (batch(np.array([2**62] * 4 + [128])), r"lengths\[0\] = 4611686018427387904 where 128 tokens were asked for"),
        (batch(np.array([100, 29])), "129 tokens where 128 were asked for"),
        (batch(NONE), "0 tokens where 128 were asked for"),
        (batch(counts=[True] * 128), r"counts as a list; it is bool \[128\], whether the label of each token counts"),
        (batch(counts=np.ones(127, bool)), r"counts as an array of bool \[127\]; it is bool \[128\]"),
        (batch(counts=np.ones(128, np.int64)), r"counts as an array of int64 \[128\]; it is bool \[128\]"),
        (
            batch(counts=np.zeros(128, bool)),
            "counts that are all false; the loss is the mean over labels that count",
        ),
        (batch(step=4), "a batch whose step is 4; it has to be the one that was asked for"),
    ],
)
def test_a_bad_batch(given: Any, told: str) -> None:
    with pytest.raises(PlugInError, match=rf"^tests\.run\.checks\.test_contract\.Lengths\.batch\(3\) gave {told}"):
        batch_of(Lengths(lambda step: given), 3, 128)


def test_good_plans_pass(uneven: Cost) -> None:
    plans = plans_of(Mine(uneven, lambda plans: plans), batch(), uneven)
    verify_step(batch(), plans, uneven)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda plans: plans[0], r"a Plan; it has to give a tuple of plans, one a micro-batch, as in return \(plan,\)"),
        (list, "a list; it has to give a tuple of plans"),
        (lambda _: None, "None; it has to give a tuple of plans"),
        (lambda _: (), "an empty tuple; it has to give at least one plan"),
        (lambda _: (3,), "a tuple with an int; it has to hold zbench.plans.plan.Plan alone"),
        (lambda plans: (plans[0].with_(num_ranks=3),), r"a plan with num_ranks=3 .*; it has to be 15, as in `cost`"),
        (lambda plans: (plans[0].with_(num_heads=9),), r"a plan with num_heads=9 .*; it has to be 6, as in `cost`"),
        (
            lambda plans: (plans[0].with_(num_ranks=np.array([15, 15])),),
            r"a plan with num_ranks=array.*; it has to be 15",
        ),
        (
            lambda plans: (plans[0].with_(backward_mode=np.array(["keep", "x"])),),
            r"a plan that cannot be .*: plan.backward_mode is an array of <U4 and shape \(2,\); it takes keep",
        ),
        (
            lambda plans: (plans[0].with_(backward=plans[0].backward.take(NONE), backward_mode=""),),
            r"a plan without a backward .*; zbench.passes.reverse makes it from the forward",
        ),
        (
            lambda plans: (plans[0].with_(blocks=replace(plans[0].blocks, home=[0] * len(plans[0].blocks.home))),),
            r"a plan that cannot be .*: plan.blocks.home is of type list; it takes a contiguous int64 array",
        ),
        (
            lambda plans: (plans[0].with_(forward=replace(plans[0].forward, src=plans[0].forward.src * 1.0)),),
            r"a plan that cannot be .*: plan.forward.src is an array of float64 .*; it takes a contiguous int32 array",
        ),
    ],
)
@pytest.mark.parametrize("parts", [None, 2])
def test_bad_plans(made: Callable[[Any], Any], told: str, parts: int | None, uneven: Cost) -> None:
    """Also where the batch is dealt in parts, as in jobs with pipeline stages."""
    system: Any = Mine(uneven, made) if parts is None else Dealt(Mine(uneven, made), parts)
    with pytest.raises(PlugInError, match=rf"^tests\.run\.checks\.test_contract\.Mine\.plan gave {told}"):
        plans_of(system, batch(), uneven)


def fails(_: Any) -> Any:
    return {}["nothing"]


def fails_inside(plans: tuple[Plan, ...]) -> Any:
    return np.vstack([np.zeros(2), np.zeros(3)])


def refuses(_: Any) -> Any:
    raise ValueError("a sequence is too odd")


def leaves(_: Any) -> Any:
    sys.exit(0)


@pytest.mark.parametrize(
    ("made", "error"),
    [(fails, "KeyError: 'nothing'"), (fails_inside, "ValueError: all the"), (leaves, "SystemExit: 0")],
)
def test_an_error_of_theirs_is_told_with_its_line(made: Callable[[Any], Any], error: str, uneven: Cost) -> None:
    line = made.__code__.co_firstlineno + 1
    told = rf"{error}.* \({re.escape(str(Path(__file__)))} line {line}\); HYDRA_FULL_ERROR=1 shows the traceback$"
    with pytest.raises(PlugInError, match=rf"^tests\.run\.checks\..*\.Mine\.plan failed with {told}") as raised:
        plans_of(Mine(uneven, made), batch(), uneven)
    assert raised.value.__cause__ is not None
    with pytest.raises(PlugInError, match=r"^tests\.run\.checks\.test_contract\.Lengths\.batch failed with "):
        batch_of(Lengths(made), 0, 1)


def refuses_in_a_line(plans: Any) -> Any:
    if plans:
        raise ValueError("a sequence is too odd")


@pytest.mark.parametrize("made", [refuses, refuses_in_a_line])
def test_a_sentence_of_theirs_is_left_as_it_is(made: Callable[[Any], Any], uneven: Cost) -> None:
    with pytest.raises(ValueError, match=r"^a sequence is too odd$"):
        plans_of(Mine(uneven, made), batch(), uneven)


def test_an_error_of_zbenchs_classes_is_left_as_it_is(uneven: Cost) -> None:
    def failed(_: Any) -> Any:
        raise RankFailed("rank 3 died")

    with pytest.raises(RankFailed, match=r"^rank 3 died$"):
        plans_of(Mine(uneven, failed), batch(), uneven)


def test_a_method_has_to_give_its_kind(uneven: Cost) -> None:
    part = Mine(uneven, list)
    assert gives(part, ".count", "nothing", int, lambda: 5) == 5
    with pytest.raises(
        PlugInError,
        match=r"^tests\.run\.checks\..*\.Mine\.start gave None; it has to give a zbench.*\.Ready$",
    ):
        gives(part, ".start", "nothing", Ready, lambda: None)
    with pytest.raises(
        PlugInError,
        match=r"^tests\.run\.checks\..*\.Mine\.start failed with KeyError: 3 \(.*; HYDRA_FULL_ERROR",
    ):
        gives(part, ".start", "nothing", Ready, lambda: {}[3])


class WithoutBatch:
    """A system whose plan takes nothing."""

    def plan(self) -> tuple[Plan, ...]:
        return ()


def test_a_method_that_takes_nothing(uneven: Cost) -> None:
    with pytest.raises(PlugInError, match=r"WithoutBatch\.plan is called with a batch, and does not take that: "):
        plans_of(WithoutBatch(), batch(), uneven)  # type: ignore[arg-type]


def test_ctrl_c_is_no_mistake(uneven: Cost) -> None:
    def stopped(_: Any) -> Any:
        raise SystemError("returned a result with an exception set") from KeyboardInterrupt()

    with pytest.raises(SystemError):
        plans_of(Mine(uneven, stopped), batch(), uneven)


def test_zbenchs_own_bugs_keep_their_traceback(uneven: Cost) -> None:
    with pytest.raises(AttributeError):
        plans_of(Ring(uneven), 3, uneven)  # type: ignore[arg-type]
