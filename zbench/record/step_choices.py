"""Tells what a run chose for its batches: slices of exchanges, chunks of tokens for experts, recomputation, homes of
tokens.

Pure: raw records in, figures and words out; no torch. Words are of choices alone (zbench.simulated.open_choices);
figures are of what a step had, which for chunks of experts and recomputed layers a user may have set, too.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from zbench.describe.expert_schedule import AFTER_CHUNKS, ATTENTION, EVEN_IN_NODE, PLANNED
from zbench.describe.units import with_noun

Step = Mapping[str, Any]
MOST_NAMED = 3  # choices of a kind that are named; of others their steps are counted


def choice_figures(steps: Sequence[Step]) -> dict[str, float | None]:
    """Returns means over steps by their names, each None where a step has no such choice."""
    return {name: _mean(map(number, steps)) for name, number in _NUMBERS.items()}


def choice_words(steps: Sequence[Step]) -> str:
    """Returns what was chosen, kind by kind: "exchanges in 8 slices (4 steps), exchanges in 2 slices (1 step),
    recompute none"; "" where nothing was."""
    return ", ".join(words for kind, told in _WORDS.items() for words in _counted(kind, map(told, steps)))


def _mean(values: Iterator[float | None]) -> float | None:
    found = list(values)
    known = [value for value in found if value is not None]
    return sum(known) / len(known) if known and len(known) == len(found) else None


def _counted(kind: str, found: Iterable[str]) -> Iterator[str]:
    """Yields each of the words, the most frequent first, with the number of its steps where they are not all. kind: of
    the choice, as those that are not named have it."""
    every = Counter(found)
    if set(every) <= {""}:
        return
    if len(every) == 1:
        yield from every
        return
    count = Counter({words: times for words, times in every.items() if words}).most_common()
    for words, times in count[:MOST_NAMED]:
        yield f"{words} ({with_noun(times, 'step')})"
    if rest := sum(times for _, times in count[MOST_NAMED:]):
        yield f"other {kind} ({with_noun(rest, 'step')})"


def _of(step: Step, name: str, key: str) -> Any:
    """Returns a key of one of a step's objects; None where it has none."""
    return (step.get(name) or {}).get(key)


def _layers(step: Step) -> int | None:
    """Returns of how many layers something is recomputed, where that is not all or none of every step."""
    layers = _of(step, "recompute", "layers")
    return None if layers is None else sum(layers)


def _slices_words(step: Step) -> str:
    slices = _of(step, "exchange_slices", "slices")
    if slices is None:  # of workers of rounds, which each have their own
        return "exchanges in slices of each worker's own" if _of(step, "exchange_slices", "workers") else ""
    return f"exchanges in {with_noun(slices, 'slice')}"


def _chunks_words(step: Step) -> str:
    """Returns in how many chunks tokens went to experts, where something was compared for that."""
    told = step.get("expert_chunks") or {}
    if not any(one.get("seconds") for one in (told, *told.get("workers", []))):
        return ""
    forward, backward = told.get("forward"), told.get("backward")
    if forward is None or backward is None:  # of workers of rounds, which each have their own
        return "tokens to experts in chunks of each worker's own" if "workers" in told else ""
    if forward == backward:
        return f"tokens to experts {'at once' if forward == 1 else f'in {forward} chunks'}"
    return f"tokens to experts in {with_noun(forward, 'chunk')} forward and {backward} backward"


def _late_words(step: Step) -> str:
    """Returns that experts' gradients were computed after all chunks."""
    late = _of(step, "expert_chunks", "weights") == AFTER_CHUNKS
    return "experts' gradients computed after all chunks" if late else ""


def _pieces_words(step: Step) -> str:
    """Returns where the pieces of a layer's gradients went, if between messages."""
    pieces = _of(step, "expert_chunks", "gradients")
    if pieces is None or pieces["count"] == 1:  # one piece is the layer's gradients as they come
        return ""
    return "of {count} pieces of a layer's gradients {inside} beside experts and {beside} beside attention".format(
        **pieces
    )


def _recompute_words(step: Step) -> str:
    """Returns the level and its layers; of all layers the level alone, which is all that records of
    executor=torch_attention have."""
    level, layers, whole = _of(step, "recompute", "level"), _layers(step), _of(step, "recompute", "of_layers")
    if level is None:
        return ""
    some = layers is not None and whole is not None and layers not in (0, whole)
    return f"recompute {level}" + (f" of {layers} of {whole} layers" if some else "")


def _offload_words(step: Step) -> str:
    """Returns of how many layers inputs or activations waited in host memory, or of which part of the tokens, of the
    micro-batch with most, where that was chosen."""
    tokens, every = _of(step, "recompute", "offloaded_tokens"), _of(step, "recompute", "of_tokens")
    if tokens is not None:
        share = max(some / whole for some, whole in zip(tokens, every, strict=True))
        return f"{100 * share:.0f} % of tokens on hosts"
    layers, whole = _of(step, "recompute", "offloaded_layers"), _of(step, "recompute", "of_layers")
    return "" if layers is None else f"{max(layers)} of {whole} layers on hosts"


def _homes_words(step: Step) -> str:
    """Returns the homes of tokens that were chosen for experts, which the notes of a step's first plan have."""
    notes = step.get("plan_notes") or [{}]
    homes = notes[0].get("homes")
    return "" if homes is None else f"tokens' homes {_HOMES.get(homes, homes)}"


# Homes of tokens in words: where they are not what `experts.homes` calls them.
_HOMES = {PLANNED: "as planned", ATTENTION: "where attended", EVEN_IN_NODE: "even in each node"}


_NUMBERS: Mapping[str, Callable[[Step], float | None]] = {
    "exchange_slices": lambda step: _of(step, "exchange_slices", "slices"),
    "forward_chunks": lambda step: _of(step, "expert_chunks", "forward"),
    "backward_chunks": lambda step: _of(step, "expert_chunks", "backward"),
    "recomputed_layers": _layers,
}
CHOICES = tuple(_NUMBERS)  # names of the figures
_WORDS: Mapping[str, Callable[[Step], str]] = {  # by what others of the kind are called
    "slices of exchanges": _slices_words,
    "chunks of tokens to experts": _chunks_words,
    "times of experts' gradients": _late_words,
    "pieces of gradients": _pieces_words,
    "recomputation": _recompute_words,
    "layers on hosts": _offload_words,
    "homes of tokens": _homes_words,
}
