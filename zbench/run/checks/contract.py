"""Checks what a workload and a system give, where they give it: a mistake of theirs is one sentence. An edge.

zbench.interfaces.protocols says what a part is; here is what is refused. Whether a plan is correct is
zbench.proof.verify's.
"""

import os
import re
import sysconfig
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from zbench.console.signals import stop_in
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.units import with_noun
from zbench.interfaces.dealt import Dealt
from zbench.interfaces.protocols import System, Workload
from zbench.plans.columns import is_array
from zbench.plans.plan import Plan
from zbench.proof.array_rules import array_fault
from zbench.record.fingerprint import ROOT

Given = TypeVar("Given")
_OURS = tuple(f"{(ROOT / folder).resolve()}{os.sep}" for folder in ("zbench", "systems", "workloads"))
_LIBRARIES = tuple(f"{Path(sysconfig.get_path(name)).resolve()}{os.sep}" for name in ("stdlib", "purelib", "platlib"))


class PlugInError(ValueError):
    """A part that is no part of zbench did what its protocol does not allow; the message names its class."""


def batch_of(workload: Workload, step: int, tokens: int) -> Batch:
    """Returns the batch of `step`, which has exactly `tokens` tokens: systems and steps are compared at one size.

    Its arrays are copies: whatever becomes of the workload's own, and however they lie in memory, these stay.

    Raises:
        PlugInError: it is no such batch, or the workload failed.
    """
    batch = guarded(workload, ".batch", "a step", lambda: workload.batch(step))
    fault = _batch_fault(batch, step, tokens)
    if fault:
        raise PlugInError(f"{_name(workload)}.batch({step}) gave {fault}")
    documents = None if batch.documents is None else np.array(batch.documents, order="C")
    counts = None if batch.counts is None else np.array(batch.counts, order="C")
    return replace(batch, lengths=np.array(batch.lengths, order="C"), documents=documents, counts=counts)


def plans_of(system: System, batch: Batch, cost: Cost) -> tuple[Plan, ...]:
    """Returns the plans of a batch, checked for what executors take for granted before zbench.proof.verify looks at
    them.

    A system must not change its batch, which it is measured on. The arrays are writable for all that: compiled
    planners would be compiled once more for read-only ones.

    Raises:
        PlugInError: they are no such plans, the system changed its batch, or it failed.
    """
    if isinstance(system, Dealt):
        return replace(system, system=_Checked(system.system, cost)).plan(batch)
    before = _content(batch)
    plans = guarded(system, ".plan", "a batch", lambda: system.plan(batch))
    for name, value in _content(batch).items():
        if value != before[name]:
            raise PlugInError(
                f"{_name(system)}.plan changed the batch's {name}; it is measured on the batch it was given, and "
                f"has to work on a copy, as in batch.{name}.copy()"
            )
    fault = _plans_fault(plans, cost)
    if fault:
        raise PlugInError(f"{_name(system)}.plan gave {fault}")
    return plans


@dataclass(frozen=True, slots=True)
class _Checked:
    """A system whose plans are checked for each part of a batch that it is given."""

    system: System
    cost: Cost

    def plan(self, batch: Batch) -> tuple[Plan, ...]:
        return plans_of(self.system, batch, self.cost)


def gives(part: object, method: str, given: str, kind: type[Given], call: Callable[[], object]) -> Given:
    """Calls a part as guarded() does, and returns what it returns, which has to be a `kind`.

    Raises:
        PlugInError: the part failed, or gave something else.
    """
    found = guarded(part, method, given, call)
    if not isinstance(found, kind):
        wanted = f"{kind.__module__}.{kind.__qualname__}"
        raise PlugInError(f"{_name(part)}{method} gave {_kind(found)}; it has to give a {wanted}")
    return found


def guarded(part: object, method: str, given: str, call: Callable[[], Given]) -> Given:
    """Calls a part and returns what it returns; an error of a part that is not zbench's own is told with where in its
    code it was.

    given: what the part is called with, in words. A ValueError that zbench raises, or a raise statement of the part's
    own code, passes: it is a sentence already. So does an error of zbench's classes, and whatever its own parts raise.

    Raises:
        PlugInError: the part failed, or does not take what it is called with.
    """
    owner = part if hasattr(part, "__qualname__") else type(part)
    name = f"{owner.__module__}.{owner.__qualname__}"
    if name.startswith("zbench."):
        return call()
    try:
        return call()
    except (Exception, SystemExit) as error:  # sys.exit() in a part would end the run without a word
        frames = traceback.extract_tb(error.__traceback__)
        last = frames[-1]
        is_meant = _is_under(last.filename, _OURS) or re.search(r"\braise\b", last.line or "") is not None
        is_ours = type(error).__module__.startswith("zbench.")  # as of an executor that extends one of zbench's
        if stop_in(error) or is_ours or (isinstance(error, ValueError) and is_meant):
            raise
        theirs = [frame for frame in frames if not _is_under(frame.filename, (*_OURS, *_LIBRARIES))]
        told = " ".join(str(error).split())
        if isinstance(error, TypeError) and not theirs:
            raise PlugInError(f"{name}{method} is called with {given}, and does not take that: {told}") from error
        place = f" ({theirs[-1].filename} line {theirs[-1].lineno})" if theirs else ""
        raise PlugInError(
            f"{name}{method} failed with {type(error).__name__}: {told}{place}; HYDRA_FULL_ERROR=1 shows the traceback"
        ) from error


def _content(batch: Batch) -> dict[str, bytes]:
    """Returns the arrays of a batch by name, as they are now."""
    return {name: np.asarray(getattr(batch, name)).tobytes() for name in ("lengths", "documents", "counts")}


def _is_under(filename: str, folders: tuple[str, ...]) -> bool:
    return str(Path(filename).resolve()).startswith(folders)


def _name(part: object) -> str:
    kind = type(part)
    return f"{kind.__module__}.{kind.__qualname__}"


def _batch_fault(batch: Any, step: int, tokens: int) -> str | None:
    if not isinstance(batch, Batch):
        return f"{_kind(batch)}; it has to give a zbench.describe.batch.Batch"
    for name, values in (("lengths", batch.lengths), ("documents", batch.documents)):
        if not _is_ints(values) and (name == "lengths" or values is not None):
            return (
                f"{name} as {_kind(values)}; they are a one-dimensional array, as np.array({name}, np.int64) makes it"
            )
    if batch.documents is not None and len(batch.documents) != len(batch.lengths):
        lengths = with_noun(len(batch.lengths), "length")
        return f"{with_noun(len(batch.documents), 'document')} for {lengths}; there is one for each"
    if batch.rollouts is not None and (fault := _rollouts_fault(batch)):
        return fault
    if (batch.lengths < 1).any():
        at = int(np.argmax(batch.lengths < 1))
        return f"lengths[{at}] = {batch.lengths[at]}; a sequence has at least 1 token"
    if (batch.lengths > tokens).any():  # of which a few have a sum beyond 64 bits
        at = int(np.argmax(batch.lengths > tokens))
        return f"lengths[{at}] = {batch.lengths[at]} where {tokens} tokens were asked for (tokens_per_gpu x GPUs)"
    if batch.num_tokens != tokens:
        return (
            f"{batch.num_tokens} tokens where {tokens} were asked for (tokens_per_gpu x GPUs, as `tokens`); a "
            "batch has exactly as many: zbench.workloads.fill.fill cuts the last document"
        )
    if batch.counts is not None and (fault := _counts_fault(batch)):
        return fault
    if batch.step != step:
        return f"a batch whose step is {batch.step!r}; it has to be the one that was asked for"
    return None


def _counts_fault(batch: Batch) -> str | None:
    counts: Any = batch.counts
    if not is_array(counts) or counts.dtype != np.bool_ or counts.shape != (batch.num_tokens,):
        return f"counts as {_kind(counts)}; it is bool [{batch.num_tokens}], whether the label of each token counts"
    if not counts.any():
        return "counts that are all false; the loss is the mean over labels that count, so at least 1 has to"
    return None


def _rollouts_fault(batch: Batch) -> str | None:
    prompts: Any
    given_up: Any
    prompts, given_up = (getattr(batch.rollouts, name, None) for name in ("prompts", "given_up"))
    if not _is_ints(prompts) or len(prompts) != len(batch.lengths):
        lengths = with_noun(len(batch.lengths), "length")
        return f"rollouts with prompts as {_kind(prompts)}; there is one for each of {lengths}"
    if (prompts < 0).any() or (prompts >= batch.lengths).any():
        at = int(np.argmax((prompts < 0) | (prompts >= batch.lengths)))
        return f"a prompt of {prompts[at]} tokens in lengths[{at}] = {batch.lengths[at]}; at least 1 is of the response"
    if not is_array(given_up) or given_up.dtype != np.int64 or given_up.shape[:-1] != (2,) or (given_up < 0).any():
        return f"rollouts with given_up as {_kind(given_up)}; it is int64 [2, sequences], each at least 0"
    return None


def _plans_fault(plans: Any, cost: Cost) -> str | None:
    if not isinstance(plans, tuple):
        return f"{_kind(plans)}; it has to give a tuple of plans, one a micro-batch, as in return (plan,)"
    if not plans:
        return "an empty tuple; it has to give at least one plan"
    for index, plan in enumerate(plans):
        if not isinstance(plan, Plan):
            return f"a tuple with {_kind(plan)}; it has to hold zbench.plans.plan.Plan alone"
        for name, value, least in (
            ("num_ranks", plan.num_ranks, cost.cluster.num_ranks),
            ("num_heads", plan.num_heads, cost.model.num_heads),
        ):
            if not isinstance(value, int | np.integer) or value != least:
                return f"a plan with {name}={value!r} (micro-batch {index}); it has to be {least}, as in `cost`"
        if isinstance(plan.backward_mode, str) and not plan.backward_mode:
            return (
                f"a plan without a backward (micro-batch {index}); zbench.passes.reverse makes it from the forward, "
                'as in reverse(plan, "keep")'
            )
        if fault := array_fault(plan):
            return f"a plan that cannot be (micro-batch {index}): {fault}"
    return None


def _kind(value: Any) -> str:
    """Describes the kind of a value: a list, an array of float64 [2, 3], None."""
    if is_array(value):
        return f"an array of {value.dtype} {list(value.shape)}"
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


def _is_ints(values: Any) -> bool:
    return is_array(values) and values.dtype == np.int64 and values.ndim == 1
