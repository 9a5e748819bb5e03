"""Exchanges of a process go ahead of computes, and of nothing that they have to do with."""

from dataclasses import replace

import pytest

from tests.runtime.steps.test_compiler import CASES, programs_of, step_of
from zbench.runtime.steps import compiler
from zbench.runtime.steps.early import EARLY, with_early_exchanges
from zbench.runtime.steps.instructions import (
    Cells,
    Compute,
    Exchange,
    Forget,
    Instruction,
    Parcel,
    TemplateProgram,
)
from zbench.step.operations import QUEUES

A, B, C = (Cells(tensor, 0, (0,), (0,)) for tensor in range(3))


def compute(*reads: Cells, makes: Cells) -> Compute:
    return Compute(0, 0, (), reads, (makes,))


def sent(cells: Cells) -> Exchange:
    return Exchange(EARLY, None, False, (Parcel(cells, 0, 1, 1),), (), ())


def received(cells: Cells) -> Exchange:
    return Exchange(EARLY, None, False, (), (Parcel(cells, 1, 0, 1),), ())


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([compute(A, makes=B), sent(C)], [1, 0]),  # has nothing to do with it
        ([compute(A, makes=B), sent(B)], [0, 1]),  # carries what it makes
        ([compute(A, makes=B), received(B)], [0, 1]),  # is added to what it makes
        ([Forget(0, 2, 0, ((0, 0),)), received(C)], [0, 1]),  # comes where other cells were
        ([Forget(0, 1, 0, ((0, 0),)), received(C)], [0, 1]),  # comes when others have left
        ([sent(A), compute(A, makes=B), sent(C)], [0, 2, 1]),  # after the exchange before it
        ([received(C), compute(A, makes=B), sent(C)], [0, 1, 2]),  # would wait for what it passes on
        ([received(C), compute(C, makes=B), compute(A, makes=A), sent(C)], [0, 1, 3, 2]),  # which is there by now
        ([received(C), compute(A, makes=C), compute(A, makes=A), sent(C)], [0, 1, 2, 3]),  # added to, not waited for
    ],
)
def test_an_exchange_goes_ahead_of_what_it_does_not_touch(before: list[Instruction], after: list[int]) -> None:
    assert with_early_exchanges(before) == [before[number] for number in after]


def test_keys_and_values_come_where_the_account_has_them_and_leave_ahead() -> None:
    """As in a ring, where an attend waits for keys of the one before: this process' own do not wait for it."""
    come, leave = (replace(one, purpose=EARLY - 1) for one in (received(B), sent(C)))
    assert with_early_exchanges([compute(A, makes=A), come]) == [compute(A, makes=A), come]
    attend = compute(B, makes=A)
    assert with_early_exchanges([come, attend, leave]) == [come, leave, attend]


GRADIENTS = QUEUES.index("gradients")


def leaving(cells: Cells, purpose: int = EARLY - 1, takes: bool = False) -> Exchange:
    return Exchange(purpose, None, takes, (Parcel(cells, 0, 1, 1),), (), ())


def coming(cells: Cells) -> Exchange:
    return replace(received(cells), purpose=EARLY - 1)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ([coming(A), compute(B, makes=B), leaving(C)], [2, 0, 1]),  # has nothing to do with what comes
        ([coming(A), compute(A, makes=B), leaving(A)], [0, 2, 1]),  # behind what it passes on, beside who reads it
        ([coming(A), compute(A, makes=B), leaving(A, takes=True)], [0, 1, 2]),  # but not what is taken away
        ([compute(A, makes=C), leaving(C)], [0, 1]),  # carries what it makes
        ([compute(A, makes=A), leaving(A), compute(B, makes=B), leaving(C)], [0, 1, 3, 2]),  # in the order of its queue
        ([compute(A, makes=A), leaving(A, GRADIENTS), leaving(C)], [2, 0, 1]),  # and of no other
        ([Forget(0, 1, 0, ((0, 0),)), leaving(C)], [1, 0]),  # what leaves takes no memory
        ([coming(C), Forget(0, 2, 0, ((0, 0),)), leaving(C)], [0, 1, 2]),  # behind what was there before
    ],
)
def test_what_leaves_goes_ahead_of_what_comes_where_each_has_names_of_its_own(
    before: list[Instruction], after: list[int]
) -> None:
    assert with_early_exchanges(before, apart=True) == [before[number] for number in after]


def test_what_leaves_and_comes_in_one_exchange_goes_apart() -> None:
    both = replace(leaving(A), receives=(Parcel(B, 1, 0, 1),))
    found = with_early_exchanges([compute(C, makes=C), both], apart=True)
    assert found == [replace(both, receives=()), compute(C, makes=C), replace(both, sends=())]
    group = replace(both, purpose=EARLY)
    assert with_early_exchanges([group], apart=True) == [group]


@pytest.mark.parametrize("case", CASES)
def test_messages_of_a_queue_keep_their_order(case: tuple[int, int, str, str, int]) -> None:
    """Of real steps: what a process sends to another of a queue is in the order in which the other one takes it."""
    step = step_of(*case)
    every = [programs_of(step, process, apart=True) for process in range(step.num_gpus)]
    messages = 0
    for key in every[0]:
        sent, taken = dict[tuple[int, int, int], list[object]](), dict[tuple[int, int, int], list[object]]()
        for process, programs in enumerate(every):
            for one in of(programs[key], Exchange):
                assert isinstance(one, Exchange)
                for parcel in one.sends:
                    told = (one.op, parcel.cells, parcel.src, parcel.dst)
                    sent.setdefault((process, parcel.peer, one.purpose), []).append(told)
                for parcel in one.receives:
                    told = (one.op, parcel.cells, parcel.src, parcel.dst)
                    taken.setdefault((parcel.peer, process, one.purpose), []).append(told)
        assert sent == taken
        messages += len(sent)
    assert (messages > 0) == (step.num_gpus > 1)


@pytest.mark.parametrize("case", CASES)
def test_exchanges_and_computes_keep_their_order(
    case: tuple[int, int, str, str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of real steps: what names messages, and what every cell goes through, is as the step says; and some are ahead."""
    step, ahead = step_of(*case), 0
    for process in range(step.num_gpus):
        early = programs_of(step, process)
        with monkeypatch.context() as there:
            there.setattr(compiler, "with_early_exchanges", lambda every, apart: list(every))
            plain = programs_of(step, process)
        for key, program in early.items():
            for kind in (Exchange, Compute):
                assert of(program, kind) == of(plain[key], kind)
            ahead += computes_before(plain[key]) - computes_before(program)
    assert (ahead > 0) == (step.num_gpus > 1)


def of(program: TemplateProgram, kind: type[Instruction]) -> list[Instruction]:
    return [one for one in program.instructions if isinstance(one, kind)]


def computes_before(program: TemplateProgram) -> int:
    """Counts the computes before exchanges, of each by itself."""
    kinds = [type(one) for one in program.instructions]
    return sum(kinds[:at].count(Compute) for at, kind in enumerate(kinds) if kind is Exchange)
