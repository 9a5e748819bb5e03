"""Tells what a run chose for its batches: slices of exchanges, chunks of tokens for experts, recomputation, homes of
tokens.

Pure: raw records in, figures and words out; no torch. A step has a choice where the run's strategy left it open
(zbench.simulated.open_choices), and chunks of experts wherever there is more than one.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

Step = Mapping[str, Any]
MOST_NAMED = 3  # choices of a kind that are named; of others their steps are counted


def choice_figures(steps: Sequence[Step]) -> dict[str, float | None]:
    """Returns means over steps by their names, each None where a step has no such choice."""
    return {name: _mean(map(number, steps)) for name, number in _NUMBERS.items()}


def choice_words(steps: Sequence[Step]) -> str:
    """Returns what was chosen, kind by kind: "slices 8 in 4 steps, slices 2 in 1 step, recompute none"; "" where
    nothing was."""
    return ", ".join(words for told in _WORDS for words in _counted([told(step) for step in steps]))


def _mean(values: Iterator[float | None]) -> float | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if known and len(known) == len(found) else None


def _counted(found: Sequence[str]) -> Iterator[str]:
    """Yields each of the words, the most frequent first, with the number of its steps where they are not all."""
    every = Counter(found)
    if set(every) <= {""}:
        return
    if len(every) == 1:
        yield found[0]
        return
    count = Counter({words: times for words, times in every.items() if words}).most_common()
    for words, times in count[:MOST_NAMED]:
        yield f"{words} in {_steps(times)}"
    if rest := sum(times for _, times in count[MOST_NAMED:]):
        yield f"{count[0][0].split()[0]} others in {_steps(rest)}"


def _steps(count: int) -> str:
    return f"{count} step{'s' if count != 1 else ''}"


def _of(step: Step, name: str, key: str) -> Any:
    """Returns a key of one of a step's objects; None where it has none."""
    return (step.get(name) or {}).get(key)


def _layers(step: Step) -> int | None:
    """Returns of how many layers something is recomputed, where that was chosen."""
    layers = _of(step, "recompute", "layers")
    return None if layers is None else sum(layers)


def _slices_words(step: Step) -> str:
    slices = _of(step, "exchange_slices", "slices")
    return "" if slices is None else f"slices {slices}"


def _chunks_words(step: Step) -> str:
    forward, backward = (_of(step, "expert_chunks", way) for way in ("forward", "backward"))
    if forward is None or backward is None:
        return ""
    words = f"chunks {forward}" if forward == backward else f"chunks {forward} forward {backward} backward"
    late = " gradients last" if _of(step, "expert_chunks", "weights") == "last" else ""
    pieces = _of(step, "expert_chunks", "gradients")
    between = "{inside} inside {beside} beside of {count} pieces"
    return words + late + ("" if pieces is None else f" {between.format(**pieces)}")


def _recompute_words(step: Step) -> str:
    """Returns the level and its layers; of all layers the level alone. Records of executor=torch have a level alone."""
    level, layers, whole = _of(step, "recompute", "level"), _layers(step), _of(step, "recompute", "of_layers")
    if level is None:
        return ""
    some = layers is not None and whole is not None and layers not in (0, whole)
    return f"recompute {level}" + (f" {layers} of {whole} layers" if some else "")


def _homes_words(step: Step) -> str:
    """Returns the homes of tokens that were chosen for experts, which the notes of a step's first plan have."""
    notes = step.get("plan_notes") or [{}]
    return f"homes {notes[0]['homes']}" if "homes" in notes[0] else ""


_NUMBERS: Mapping[str, Callable[[Step], float | None]] = {
    "exchange_slices": lambda step: _of(step, "exchange_slices", "slices"),
    "forward_chunks": lambda step: _of(step, "expert_chunks", "forward"),
    "backward_chunks": lambda step: _of(step, "expert_chunks", "backward"),
    "recomputed_layers": _layers,
}
CHOICES = tuple(_NUMBERS)  # names of the figures
_WORDS = (_slices_words, _chunks_words, _recompute_words, _homes_words)
