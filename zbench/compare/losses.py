"""Loss curves of runs as Markdown: windows of steps down, kinds of runs across, intervals over seeds, and below them
tokens a second, as losses and speed are told together. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from zbench.describe.checks import check_whole_number
from zbench.describe.strategy import STRATEGY_GROUPS
from zbench.describe.units import with_noun
from zbench.record.interval import interval
from zbench.record.record import Run
from zbench.record.rows import GROUPS, label


class TrainedStep(NamedTuple):
    """The outcome of a step, as its record has it."""

    loss: float
    tokens: int
    seconds: float


Losses = dict[int, TrainedStep]  # of steps, by their numbers
_NOT_TRAINED = ("timeout", "warmup", "checkpoint", "checkpoint_every")  # keys of executors that no loss depends on


def losses(runs: Sequence[Run], window: int) -> str:
    """Writes a table of the mean loss of every `window` steps, of runs that differ in their seeds together: the mean of
    seeds, and half the width of its 95 % interval by Student's t where there are three or more.

    Runs of one kind and seed are one, as one that went on from a checkpoint is; of a step that several have the last
    counts. A window that a seed has not all steps of is not told of it. A dash: no seed has all of them. The last row
    has the tokens of all steps of all seeds over their seconds.

    Raises:
        ValueError: no run has losses, or `window` is no number of steps.
    """
    check_whole_number("--losses", window, 1)
    names, found = (*GROUPS, *STRATEGY_GROUPS), dict[tuple[str, ...], dict[int, Losses]]()
    for run in runs:
        config = run.start["config"]
        start = {"config": {**config, "changes": _of_training(config.get("changes", {}))}}
        key = (*(label(start, group) for group in names), f"{config.get('tokens_per_gpu')} tokens a GPU")
        own = {
            int(one["step"]): TrainedStep(float(one["loss"]), int(one["tokens"]), float(one["seconds"]))
            for one in run.steps
            if one.get("loss") is not None
        }
        if own:
            found.setdefault(key, {}).setdefault(int(config.get("seed", 0)), {}).update(own)
    if not found:
        raise ValueError(f"--losses is {window}; no run here has losses, and it takes runs that train")
    alike, *titles = _titles((*names, ""), list(found))
    last = max(step for seeds in found.values() for own in seeds.values() for step in own)
    lines = [f"| steps | {' | '.join(titles)} |", "|---" * (len(titles) + 1) + "|"]
    for first in range(0, last + 1, window):
        cells = [_cell(seeds, range(first, first + window)) for seeds in found.values()]
        if any(cell != "-" for cell in cells):
            lines.append(f"| {first + 1} to {first + window} | {' | '.join(cells)} |")
    lines.append(f"| tokens/s | {' | '.join(_per_second(seeds.values()) for seeds in found.values())} |")
    head = (
        f"{alike}. Cells: mean loss of {with_noun(window, 'step')}, mean of seeds ± half of its 95 % interval; "
        "tokens/s: of all steps, by their recorded seconds."
    )
    return head + "\n\n" + "\n".join(lines)


def _of_training(changes: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Returns what was changed in groups' choices, but for what no loss depends on."""
    executor = {key: value for key, value in changes.get("executor", {}).items() if key not in _NOT_TRAINED}
    return {**changes, "executor": executor}


def _titles(names: Sequence[str], keys: Sequence[tuple[str, ...]]) -> list[str]:
    """Returns what all kinds of runs have in common, and what each has of its own: names of choices where these tell
    them apart, else with what was changed in them."""
    apart = [at for at in range(len(names)) if len({key[at] for key in keys}) > 1]
    alike = ", ".join(f"{name} {keys[0][at]}".strip() for at, name in enumerate(names) if at not in apart)
    for words in (lambda text: text.split()[0], str):
        told = [[words(key[at]) for at in apart] for key in keys]
        some = [at for at in range(len(apart)) if len({one[at] for one in told}) > 1]
        groups = [f"{names[apart[at]]} " if len(some) > 1 else "" for at in some]
        titles = [", ".join(g + one[at] for g, at in zip(groups, some, strict=True)).strip() or "loss" for one in told]
        if len(set(titles)) == len(titles):
            break
    return [alike, *titles]


def _cell(seeds: Mapping[int, Losses], steps: range) -> str:
    """Writes the mean loss of some steps, of the seeds that have all of them."""
    whole = [float(np.mean([own[step].loss for step in steps])) for own in seeds.values() if own.keys() >= set(steps)]
    if not whole:
        return "-"
    mean, half = interval(whole)
    if half is not None:
        return f"{mean:.3f} ± {half:.3f}"
    return f"{mean:.3f} ({with_noun(len(whole), 'seed')})"


def _per_second(seeds: Iterable[Losses]) -> str:
    """Writes the tokens of all steps over their seconds."""
    steps = [one for own in seeds for one in own.values()]
    return f"{sum(one.tokens for one in steps) / sum(one.seconds for one in steps):,.0f}"
