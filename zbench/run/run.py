"""A run: a system and its baseline over the same batches, step by step, recorded as it goes. An edge: no torch."""

import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from time import perf_counter

from zbench.console.console import say
from zbench.console.meter import Meter, Sweep
from zbench.console.signals import stop_in, stopped_by
from zbench.console.table import print_run
from zbench.describe.batch import Batch
from zbench.describe.mask import CAUSAL, Mask
from zbench.interfaces.abilities import Finishes, SavesCheckpoints, TracesSteps
from zbench.interfaces.protocols import Executor, Ready
from zbench.interfaces.result import StepResult
from zbench.proof.verify import PlanError, verify_step
from zbench.record.flops import Facts
from zbench.record.kinds import RECORD, TRACE
from zbench.record.metrics import nic_curves
from zbench.record.outputs import check_apart, check_output, check_outside
from zbench.record.record import Line, Run
from zbench.record.rows import rows
from zbench.record.writer import RecordError, RecordWriter
from zbench.run.admission import admit, unchosen_words
from zbench.run.cases import RunCase, reusable, run_cases
from zbench.run.checks.contract import gives, plans_of
from zbench.run.open_layers import check_pipelines
from zbench.run.parts import Parts
from zbench.run.request import Request
from zbench.run.settings import Settings
from zbench.run.summary import about_words, file_words, run_words
from zbench.run.warm import warm
from zbench.runtime.processes.fleet import RankFailed
from zbench.trace.file import trace_reference
from zbench.track import Careful, Nothing
from zbench.track.default import tracker_words
from zbench.track.names import CURVES, TIMELINE, of_run, step_figures, tracked

DEFAULT_FOLDER = Path("results")  # made when missing; any other folder has to be there


def run_with_baseline(request: Request, earlier: Iterable[Run] = (), sweep: Sweep | None = None) -> list[Run]:
    """Runs the baseline and the system, prints their table, and returns both; none of them where a sweep leaves it out.

    earlier: runs of the same command, whose measurements stand for a baseline that was among them.
    sweep: the one that this is a job of; it is told what there is to say, and nothing is printed.

    Raises:
        ValueError: something the user gave cannot be; the message is one sentence.
        zbench.proof.verify.PlanError: a system made a wrong plan.
        zbench.record.writer.RecordError: the record could not be written.
    """
    settings = request.settings
    if Path(settings.out).parent == DEFAULT_FOLDER:
        with suppress(OSError):  # check_output says what is wrong
            DEFAULT_FOLDER.mkdir(exist_ok=True)
    check_output("out", settings.out, RECORD, appended=True)
    if settings.trace is not None:
        check_output("trace", settings.trace, TRACE)
    check_apart({"out": settings.out, "trace": settings.trace})
    parts = Parts.of(request.config, settings)
    if _left_out(request, parts, sweep):
        return []
    saver = parts.executor if isinstance(parts.executor, SavesCheckpoints) else None
    folders = (settings.resume, None if saver is None or saver.checkpoint_every is None else saver.checkpoint)
    check_outside({"out": settings.out, "trace": settings.trace}, folders)
    with Meter(settings.steps, sweep) as meter:
        own, baseline = run_cases(request, parts, lambda name, doing: meter.show(name, 0, doing=doing))
    admit(settings, parts, own, baseline)
    for line in unchosen_words(request, parts):
        say(line)
    reused = reusable(baseline, settings, parts, earlier) if baseline else None
    known = None if settings.rerun else reusable(own, settings, parts, ())
    played = [case for case, found in ((baseline, reused), (own, known)) if case and not found]
    done = [reused] if reused else []
    writer = RecordWriter.open(settings.out)
    try:
        with Meter(settings.steps, sweep) as meter:
            for case in played:
                trace = settings.trace if case is own else None
                executor = case.parts.executor if case is own else case.parts.aside()
                done.append(_play(case, settings, executor, writer, meter, trace, done))
    finally:
        writer.close()
    done += [known] if known else []
    about = [*about_words(own, parts, done), *request.replaced]
    if played and (request.chooses_tracker or not isinstance(parts.tracker, Nothing)):
        about.append(tracker_words(parts.tracker, str(request.choices.get("tracker"))))
    if sweep is not None:
        sweep.said |= dict.fromkeys(about)
        sweep.files |= dict.fromkeys(file_words(settings))
        sweep.not_again += (reused is not None) + (known is not None)
        return done
    print_run(rows(done))
    for line in (*about, *run_words(own, settings, reused, known)):
        say(line)
    return done


def _left_out(request: Request, parts: Parts, sweep: Sweep | None) -> bool:
    """Returns whether a sweep goes on without this job, as its machine has no such world, or its system no such
    variant; the sweep is told.

    Raises:
        ValueError: it is no job of a sweep.
    """
    reason, told, usual = parts.world.missing(parts.nominal), request.unpublished, "variant=null"
    if reason is not None:
        told, usual = f"world is {request.choices.get('world')}; {reason}", "world=nominal"
    if not told:
        return False
    if sweep is None:
        raise ValueError(f"{told}: use {usual}")
    sweep.said |= {f"Left out: {told}.": None}
    return True


def _play(
    case: RunCase,
    settings: Settings,
    executor: Executor,
    writer: RecordWriter,
    meter: Meter,
    trace: str | None,
    earlier: Sequence[Run],
) -> Run:
    """Runs all steps of one system; the record gets its start, every step, and how it ended.

    earlier: its baseline, if that was run.
    """
    now = datetime.now(UTC)
    run_id = f"{now:%Y%m%d-%H%M%S}-{secrets.token_hex(4)}"
    start = {"kind": "start", "run": run_id, "time": now.isoformat(timespec="milliseconds"), **case.start}
    facts = Facts.of(start["facts"])
    tracker = Careful(case.parts.tracker)
    steps: list[Line] = []
    first = 0
    meter.show(case.name, 0)
    writer.append(start)
    try:
        warm(
            case.system, trains=not case.parts.simulated
        )  # so that neither ranks nor the first step's times are compiling
        ready = gives(executor, ".start", "nothing", Ready, executor.start)
        first = ready.first_step
        if ready.about:
            writer.append({"kind": "about", "run": run_id, **ready.about})
        tracker.start(tracked(start))
        for step in range(first, settings.steps):
            line = {
                "kind": "step",
                "run": run_id,
                **_step(case, executor, step, trace if step == first else None, meter),
            }
            writer.append(line)
            steps.append(line)
            _track(tracker, facts, line)
            meter.show(case.name, step + 1, line["loss"])
        ended = gives(executor, ".finish", "nothing", dict, executor.finish) if isinstance(executor, Finishes) else {}
        executor.stop()
    except BaseException as error:
        step = first + len(steps)
        where = f"step {step}" if step < settings.steps else "behind the last step"
        _fail(error, where, run_id, writer, tracker, executor)
        raise
    end = {"kind": "end", "run": run_id, "status": "finished", "message": "", **ended}
    writer.append(end)
    done = Run(start, steps, end, settings.out)
    tracker.finish("finished", of_run(rows([*earlier, done])[-1]))
    return done


def _track(tracker: Careful, facts: Facts, line: Line) -> None:
    """Tells of a recorded step, and of its trace where it has one."""
    tracker.log(line["step"], step_figures(facts, line))
    if line["nic_series"]:
        tracker.curves(line["step"], CURVES, line["nic_series"]["interval"], nic_curves(facts, line))
    if "trace" in line:
        tracker.attach(TIMELINE, line["trace"]["file"])


def _fail(
    error: BaseException, where: str, run_id: str, writer: RecordWriter, tracker: Careful, executor: Executor
) -> None:
    """Ends a run that did not finish: in the record, at the tracker, and its processes."""
    stop = stop_in(error)
    status = "interrupted" if stop or isinstance(error, RankFailed) else "failed"
    message = f"{where}: {stopped_by(stop) if stop else f'{type(error).__name__}: {error}'}"
    with suppress(RecordError):  # the first failure is the one to tell
        writer.append({"kind": "end", "run": run_id, "status": status, "message": message})
    tracker.finish(status, {})
    with suppress(Exception):  # likewise
        executor.stop()


def _step(case: RunCase, executor: Executor, step: int, trace: str | None, meter: Meter) -> Line:
    """Plans, verifies and executes one step; its raw quantities."""
    parts = case.parts
    batch = parts.batch(step)
    meter.show(case.name, step, doing="planning")
    began = perf_counter()
    plans = plans_of(case.system, batch, parts.cost)
    planned = perf_counter()
    check_pipelines(case.name, parts, plans)
    meter.show(case.name, step, doing="verifying")
    try:
        verify_step(batch, plans, parts.cost, memory=False)  # which the executor tells of the step
    except PlanError as error:
        raise PlanError(f"{case.name} made a wrong plan in step {step}: {error}") from error
    verified = perf_counter()
    meter.show(case.name, step, doing="playing" if parts.simulated else "running")
    play = partial(executor.step, batch, plans)
    if trace is not None:
        assert isinstance(executor, TracesSteps), "a run that is to be traced was checked for that"
        play = partial(executor.traced_step, batch, plans, trace)
    result = gives(executor, ".step", "a batch and its plans", StepResult, play)
    executed = perf_counter()
    return {
        "step": step,
        "tokens": batch.num_tokens,
        **({} if batch.counts is None else {"counted_labels": batch.counted_labels}),
        "sum_squared": batch.sum_squared,
        **_visible(batch, parts.model.mask),
        "num_sequences": len(batch.lengths),
        "octaves": batch.octaves(),
        "max_length": int(batch.lengths.max()),
        "batch": batch.digest,
        "num_micro_batches": len(plans),
        "num_transfers": sum(plan.num_transfers for plan in plans),
        "plan_seconds": planned - began,
        "verify_seconds": verified - planned,
        "execute_seconds": executed - verified,
        **({"plan_notes": [dict(plan.notes) for plan in plans]} if any(plan.notes for plan in plans) else {}),
        **({"trace": trace_reference(trace)} if trace is not None else {}),
        **asdict(result),
    }


def _visible(batch: Batch, mask: Mask) -> dict[str, int]:
    """Returns the visible pairs, where lengths alone do not tell them to whoever reads the record."""
    return {} if mask == CAUSAL else {"pairs": mask.pairs(batch.lengths)}
