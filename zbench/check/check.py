"""Checks a function against the dense reference in every case, and prints what was found."""

from collections.abc import Sequence

from rich.table import Table

from zbench.check.kinds import function_kind
from zbench.check.pieces import find_function
from zbench.check.processes import FunctionCheck, ask_here, ask_processes
from zbench.check.verdict import (
    LIMITS,
    Answer,
    Tensors,
    Verdict,
    WrongAnswer,
    as_dtype,
    relative_errors,
    shown_error,
    verdict_summary,
)
from zbench.console.console import say, show


def check_function(job: FunctionCheck) -> list[Verdict]:
    """Asks the function in every case of the job and compares it with the reference.

    Raises:
        ValueError: the function cannot be found or takes other arguments.
    """
    kind = function_kind(job.kind, job.over)
    find_function(job.kind, job.named, *kind.arguments(job.ranks))
    answers = ask_here(job) if job.ranks == 1 else ask_processes(job)
    return [_verdict(job, case, found) for case, found in zip(job.cases, answers, strict=True)]


def _verdict(job: FunctionCheck, case: str, answers: Sequence[Answer]) -> Verdict:
    kind = function_kind(job.kind, job.over)
    told = [_of_rank(job, rank, one) for rank, one in enumerate(answers) if one.tensors is None]
    errors: dict[str, float] = {}
    if not told:
        try:
            whole: Tensors = kind.joined([one.tensors for one in answers if one.tensors is not None], case)
            errors = relative_errors(whole, kind.reference(case, job.ranks, as_dtype(job.dtype)))
        except WrongAnswer as error:
            told = [str(error)]
    refused = bool(told) and all(one.refused for one in answers)
    about = kind.cases(job.ranks)[case]
    return Verdict(case, about, LIMITS[job.dtype], errors, "; ".join(told[:4]), refused, _line(job, case))


def _of_rank(job: FunctionCheck, rank: int, answer: Answer) -> str:
    at = f"process {rank}: " if job.ranks > 1 and not answer.told.startswith("process ") else ""
    return f"{at}{answer.told}"


def _line(job: FunctionCheck, case: str) -> str:
    """Writes the command that shows a case alone."""
    usual = FunctionCheck(job.kind, job.named, (case,))
    keys = ("ranks", "over", "dtype", "device", "seconds")
    words = [f"{key}={getattr(job, key)}" for key in keys if getattr(job, key) != getattr(usual, key)]
    return " ".join(["zbench check", job.kind, job.named, f"case={case}", *words])


def print_verdicts(verdicts: Sequence[Verdict], job: FunctionCheck) -> None:
    """Prints a table of all cases, what is wrong where nothing could be compared, and how to see each failure again."""
    names = list(dict.fromkeys(name for one in verdicts for name in one.errors))
    table = Table(title=f"{job.kind} {job.named}, {job.dtype}: relative errors")
    for name in ("case", "verdict", *names, "what it is"):
        table.add_column(name, justify="right" if name in names else "left")
    for one in verdicts:
        word = "exact" if one.exact else "not taken" if one.refused else "WRONG"
        errors = [shown_error(one.errors[name]) if name in one.errors else "" for name in names]
        table.add_row(one.case, word, *errors, one.about)
    show(table)
    for one in verdicts:
        if one.told:
            say(f"{one.case}: {one.told}")
    say(verdict_summary(verdicts, job.named, job.dtype))
    for one in verdicts:
        if one.failed:
            say(f"again: {one.line}")
