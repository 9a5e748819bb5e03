"""Checks whether a record is of a real run and can be what it says; what is wrong has field and value. Pure: no torch.

Whether it is honest nobody can tell from a file. What is refused here is what cannot have been measured, and what
nobody could compare with: a changed checkout, versions that are not told, a run that stopped.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from zbench.describe.units import with_noun
from zbench.record.fields import shortened
from zbench.record.flops import Facts, mfu
from zbench.record.record import Line, Run
from zbench.runtime.measured import COUNTERS

# What trains, by class; the desk emulates a network, and is measured of no cluster.
MEASURES = ("zbench.runtime.step_executor.Torch", "zbench.runtime.attention_executor.TorchAttention")
NAMED = ("python", "zbench", "numpy", "numba")  # versions in the fingerprint
RANK_NAMED = ("torch", "device", "backend", "kernel")  # what ranks say of themselves
CLOCKS = 1.01  # times the step: devices and hosts have clocks of their own
_DIGEST = 64  # characters of the digest of the sources


def faults(run: Run) -> Iterator[str]:
    """Yields what speaks against a run: a field, its value and what it takes."""
    if told := list(_not_measured(run)):
        yield from told
        return
    yield from _fingerprint(run.start["fingerprint"])
    yield from _ranks(run.about)
    yield from _counts(run)
    for step in run.steps:
        yield from (f"step {step['step']}: {told}" for told in _step(run, step))


def _not_measured(run: Run) -> Iterator[str]:
    executor = run.start["config"].get("executor")
    target = executor.get("_target_") if isinstance(executor, Mapping) else None
    if run.start["facts"]["simulated"]:
        yield "facts.simulated is true; only what was measured is taken (executor=torch)"
    elif target not in MEASURES:
        yield f"config.executor._target_ is {shortened(target)}; it takes {' or '.join(MEASURES)}"
    if run.status != "finished":
        yield f"status is {run.status}; it takes a run that finished"


def _fingerprint(found: Mapping[str, Any]) -> Iterator[str]:
    """Yields what the fingerprint lacks for somebody else to run the same again."""
    if not isinstance(found.get("commit"), str):
        yield f"fingerprint.commit is {shortened(found.get('commit'))}; it takes a commit, as of a checkout"
    if found.get("dirty") is not False:
        yield f"fingerprint.dirty is {shortened(found.get('dirty'))}; it takes false: sources as they were committed"
    if len(found["sources"]) != _DIGEST:
        yield f"fingerprint.sources is {shortened(found['sources'])}; it takes a digest of {_DIGEST} characters"
    for name in NAMED:
        if not isinstance(found.get(name), str):
            yield f"fingerprint.{name} is {shortened(found.get(name))}; it takes a version"


def _ranks(about: Line | None) -> Iterator[str]:
    """Yields what ranks do not say of themselves."""
    ranks = None if about is None else about.get("ranks")
    if not isinstance(ranks, list) or not ranks or not all(isinstance(one, Mapping) for one in ranks):
        yield f"about.ranks is {shortened(ranks)}; it takes what the ranks found: torch, device, backend, kernel"
        return
    for number, one in enumerate(ranks):
        for name in RANK_NAMED:
            if not isinstance(one.get(name), str):
                yield f"about.ranks[{number}].{name} is {shortened(one.get(name))}; it takes text"
        if one.get("sharing") != 1:
            yield f"about.ranks[{number}].sharing is {shortened(one.get('sharing'))}; it takes 1: a device each"


def _counts(run: Run) -> Iterator[str]:
    """Yields numbers of steps, ranks, NICs and tokens that do not go together."""
    facts, config = run.start["facts"], run.start["config"]
    if len(run.steps) != config["steps"]:
        yield f"the run has {with_noun(len(run.steps), 'step')}; config.steps is {config['steps']}"
    if facts["num_gpus"] != facts["num_nodes"] * facts["gpus_per_node"]:
        yield f"facts.num_gpus is {facts['num_gpus']}; it takes facts.num_nodes x facts.gpus_per_node"
    tokens = config.get("tokens_per_gpu")
    for step in run.steps:
        expected = {
            "attention_seconds": facts["num_ranks"],
            "nic_tx_bytes": facts["num_nodes"] * facts["nics_per_node"],
            "peak_bytes": facts["num_ranks"],
        }
        for name, count in expected.items():
            if len(step[name]) != count:
                yield f"step {step['step']}: {name} has {with_noun(len(step[name]), 'number')}; the cluster has {count}"
        if isinstance(tokens, int) and step["tokens"] != tokens * facts["num_gpus"]:
            yield f"step {step['step']}: tokens is {step['tokens']}; config.tokens_per_gpu x GPUs is otherwise"


def _step(run: Run, step: Line) -> Iterator[str]:
    """Yields what cannot have been measured of a step."""
    seconds = step["seconds"]
    if step["out_of_memory"]:
        yield "out_of_memory is true; such a step was not run"
    if seconds < step["bound_seconds"]:
        yield (
            f"seconds is {seconds:.6g}, below bound_seconds, {step['bound_seconds']:.6g}, which no plan can beat: the "
            "described device is slower than the real one (python -m zbench.calibrate describes it)"
        )
    for name in ("attention_seconds", "linear_seconds", "exposed_seconds"):
        if max(step[name]) > CLOCKS * seconds:
            yield f"{name} is {max(step[name]):.6g} on a rank; the whole step is {seconds:.6g}"
    used = mfu(Facts.of(run.start["facts"]), [step])
    if used >= 1:
        yield f"MFU is {used:.3g}; it takes less than 1 of facts.peak_flops, {run.start['facts']['peak_flops']:.4g}"
    if (most := max(step["peak_bytes"])) > step["capacity_bytes"]:
        yield f"peak_bytes is {most:,}; capacity_bytes is {step['capacity_bytes']:,}"
    sent, received = sum(step["nic_tx_bytes"]), sum(step["nic_rx_bytes"])
    if run.about is not None and run.about.get("nic_bytes") not in (None, COUNTERS) and sent != received:
        yield f"nic_tx_bytes add up to {sent:,} and nic_rx_bytes to {received:,}; what is counted is equal"
