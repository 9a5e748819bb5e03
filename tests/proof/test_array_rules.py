"""Arrays that no compiled loop may see: each is told in a sentence, with its name, what it is and what it takes."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tests.proof.test_verify import laid
from zbench.correctness.mutations.paths import PATHS, array, put, with_pipelines
from zbench.plans.columns import TYPES
from zbench.plans.plan import Lists, Plan
from zbench.proof.array_rules import array_fault
from zbench.proof.verify import PlanError, verify

ROUTED = laid().with_(lanes=Lists.of([[0], [0]]))


NARROW = [path for path in PATHS if path.startswith(("forward", "backward"))]


@pytest.mark.parametrize("path", [path for path in PATHS if path not in NARROW])
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda a: a.astype(np.int32), r"an array of int32 and shape \(\d+,\)"),
        (lambda a: a.astype(np.float64), r"an array of float64 and shape \(\d+,\)"),
        (lambda a: a.astype(">i8"), r"an array of >i8 and shape \(\d+,\)"),
        (lambda a: a[None], r"an array of int64 and shape \(1, \d+\)"),
        (lambda a: np.stack([a, a, a], axis=1)[:, 0], r"a non-contiguous array of int64 and shape \(\d+,\)"),
        (lambda a: a.tolist(), "of type list"),
        (np.ma.masked_array, "of type MaskedArray"),
        (lambda a: a.view(np.recarray), "of type recarray"),
        (lambda a: None, "of type NoneType"),
    ],
)
def test_every_array_has_its_type(path: str, change: Callable, told: str) -> None:
    plan = with_pipelines(ROUTED)
    with pytest.raises(
        PlanError, match=rf"^plan\.{path} is {told}; it takes a contiguous int64 array of one dimension$"
    ):
        verify(put(plan, path, change(array(plan, path))))


@pytest.mark.parametrize("path", NARROW)
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda a: a.astype(np.float64), r"an array of float64 and shape \(\d+,\)"),
        (lambda a: a[None], r"an array of int\d+ and shape \(1, \d+\)"),
        (lambda a: a.tolist(), "of type list"),
        (np.ma.masked_array, "of type MaskedArray"),
        (lambda a: None, "of type NoneType"),
    ],
)
def test_columns_of_operations_have_their_types(path: str, change: Callable, told: str) -> None:
    kind = TYPES[path.partition(".")[2]]
    message = rf"^plan\.{path} is {told}; it takes a contiguous {kind} array of one dimension$"
    with pytest.raises(PlanError, match=message):
        verify(put(ROUTED, path, change(array(ROUTED, path))))


@pytest.mark.parametrize("path", NARROW)
def test_wider_columns_are_converted_if_their_values_fit(path: str) -> None:
    values, kind = array(ROUTED, path), TYPES[path.partition(".")[2]]
    for same in (values.astype(np.int64), values.astype(">i8"), np.stack([values, values], axis=1)[:, 0]):
        assert array(put(ROUTED, path, same), path).dtype == kind
        verify(put(ROUTED, path, same))
    beyond = values.astype(np.int64)
    beyond[1] = 2**62
    with pytest.raises(PlanError, match=rf"^plan\.{path}\[1\] is {2**62}; it takes whole numbers from -\d+ to \d+$"):
        verify(put(ROUTED, path, beyond))


@pytest.mark.parametrize("path", [path for path in PATHS if path.partition(".")[2] not in ("offsets", "items", "home")])
def test_columns_are_of_one_length(path: str) -> None:
    plan = with_pipelines(ROUTED)
    longer = np.append(array(plan, path), 0)
    with pytest.raises(PlanError, match=r"has \d+ entries and plan\..* has \d+; they have to have as many"):
        verify(put(plan, path, longer))


@pytest.mark.parametrize("name", ["lists", "lanes"])
@pytest.mark.parametrize(
    ("offsets", "told"),
    [
        ([], r"begins with \[\]; it has to begin with 0"),
        ([1, 2], r"begins with \[1\]; it has to begin with 0"),
        ([-(2**62), 2], r"begins with \[-\d+\]; it has to begin with 0"),
        ([0, 5, 1, 2], "goes from 5 down to 1 at list 1; it has to rise from 0 to 2"),
        ([0, 10**9], "ends with 1000000000; it has to end with 2, the number of items"),
        ([0, 1], "ends with 1; it has to end with 2, the number of items"),
    ],
)
def test_offsets_rise_from_0_to_the_number_of_items(name: str, offsets: list[int], told: str) -> None:
    broken = Lists(np.array(offsets, np.int64), np.array([0, 1], np.int64))
    with pytest.raises(PlanError, match=rf"plan\.{name}\.offsets {told}"):
        verify(ROUTED.with_(**{name: broken}))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"num_ranks": 0}, "plan.num_ranks is 0; it takes a whole number of at least 1"),
        ({"num_ranks": 4.0}, "plan.num_ranks is 4.0; it takes a whole number"),
        (
            {"num_heads": 10**400},
            "plan.num_heads is an integer of 1329 bits; it takes a whole number of at least 1 and be",
        ),
        ({"num_ranks": -(10**5000)}, "plan.num_ranks is an integer of 16610 bits; it takes a whole number"),
        ({"num_ranks": 2**62}, f"plan.num_ranks is {2**62}; zbench takes at most 1048576 ranks"),
        ({"num_ranks": 2**63}, f"plan.num_ranks is {2**63}; it takes a whole number of at least 1 and below 2^63"),
        (
            {"num_ranks": np.array([4, 4])},
            "plan.num_ranks is an array of int64 and shape (2,); it takes a whole number",
        ),
        ({"num_heads": True}, "plan.num_heads is True; it takes a whole number"),
        ({"mask": 1}, "plan.mask is of type int; it takes a zbench.describe.mask.Mask"),
        ({"serial_legs": "yes"}, "plan.serial_legs is 'yes'; it takes True or False"),
        ({"in_rounds": 1}, "plan.in_rounds is 1; it takes True or False"),
        ({"until_sent": None}, "plan.until_sent is None; it takes True or False"),
        ({"padding": [0]}, "plan.padding is of type list; it takes a contiguous int64 array of one dimension"),
        ({"backward_mode": "kept"}, "plan.backward_mode is 'kept'; it takes keep, carry, regather"),
        ({"backward_mode": ""}, "plan.backward_mode is ''; it takes keep, carry, regather"),
        (
            {"backward_mode": np.array(["keep", "x"])},
            "plan.backward_mode is an array of <U4 and shape (2,); it takes keep",
        ),
        ({"backward_mode": np.array("keep")}, "plan.backward_mode is an array of <U4 and shape (); it takes keep"),
        ({"attention": None}, "plan.attention is None; it takes one of '', 'deepspeed'"),
        ({"notes": None}, "plan.notes is of type NoneType; it takes a mapping"),
        (
            {"notes": {"gap": np.inf}},
            "plan.notes has 'gap': inf; it takes names with words or finite numbers of Python",
        ),
        (
            {"notes": {"gap": np.int64(3)}},
            f"plan.notes has 'gap': {np.int64(3)!r}; it takes names with words or finite numbers of",
        ),
        (
            {"notes": {"gap": 10**400}},
            "plan.notes has 'gap': an integer of 1329 bits; it takes names with words or finite",
        ),
        ({"notes": {"gap": -(10**5000)}}, "plan.notes has 'gap': an integer of 16610 bits; it takes names"),
        ({"lists": None}, "plan.lists is of type NoneType; it takes zbench.plans.plan.Lists"),
        ({"pipelines": 3}, "plan.pipelines is of type int; it takes zbench.plans.pipelines.Pipelines or None"),
        ({"lengths": np.array([23, 0])}, "plan.lengths[1] is 0; a sequence has at least one token"),
        ({"sequences": np.array([0, -1])}, "plan.sequences[1] is -1; sequences of a batch are numbered from 0"),
        ({"sequences": np.array([1, 1])}, "plan.sequences has 1 2 times; a sequence is in a micro-batch once"),
        ({"lengths": np.zeros(0, np.int64), "sequences": np.zeros(0, np.int64)}, "plan.lengths is empty"),
        ({"lengths": np.array([2**62, 9])}, "triples have to be below 2^63"),
        ({"num_heads": 2**60}, "triples have to be below 2^63"),
    ],
)
def test_plain_values(changes: dict[str, object], told: str) -> None:
    assert told in array_fault(laid().with_(**changes))


def test_notes_of_every_planner_pass() -> None:
    assert array_fault(laid().with_(notes={"gap": 0.5, "micro-batches": 3, "chosen": "ring"})) == ""


def test_a_plan_without_parts_is_told_as_well() -> None:
    plan: Plan = replace(laid(), blocks=laid().lists)
    with pytest.raises(PlanError, match=r"plan\.blocks is of type Lists; it takes zbench\.plans\.plan\.Blocks"):
        verify(plan)
