"""The memory account of a step: what is where at which moment, in plan order, tensor by tensor.

What a contract leaves stays until another one needs it and leaves it no more. Contracts have all there is of what they
name, which is proven: so an instance takes what it needs and adds what it leaves, and instances of a variant change
what is there alike. What each holds meanwhile: zbench.simulator.steps.held. Workspaces of kernels and fragmentation are
not in it.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from zbench.describe.arrays import Ints
from zbench.describe.cluster import Cluster
from zbench.simulator.steps.dataflow.atoms import bytes_at_home
from zbench.simulator.steps.held import LOGITS, HeldTemplate, held_by
from zbench.simulator.steps.program import StepParts
from zbench.step.template import AT_HOME, Step


@dataclass(frozen=True)
class StepMemory:
    """The fullest moment of every place. peak: bytes, int64 [places]. held: by tensor, the bytes of it then, int64
    [places]; without tensors that nobody has. began: the same of before the step."""

    peak: Ints
    held: Mapping[str, Ints]
    began: Mapping[str, Ints]

    def of_nodes(self, cluster: Cluster) -> Ints:
        """Returns the bytes in every node's host memory, int64 [nodes], [0] without any; where each GPU has a part of
        it, those of all parts together, each at its fullest, as it is pinned."""
        found = self.peak[cluster.num_ranks :]
        return np.asarray(found.reshape(cluster.num_nodes, -1).sum(axis=1) if len(found) else found, np.int64)


def step_memory(parts: StepParts) -> StepMemory:
    """Follows a step's instances, all layers, and returns the fullest moments."""
    found: StepMemory | None = parts.lasting.get("memory")
    if found is None:
        found = parts.lasting["memory"] = _fullest_moments(parts)
    return found


def _fullest_moments(parts: StepParts) -> StepMemory:
    step = parts.step
    names = {
        name: at for at, name in enumerate(dict.fromkeys([n for one in step.layouts for n in one.number] + [LOGITS]))
    }
    variants, which = parts.of_step
    templates = {id(one.of.flow): one.of for one in variants}  # those of micro-batches that are alike have one
    lives = {number: HeldTemplate.of(one, parts.cost.model) for number, one in templates.items()}
    rows = [np.array([names[name] for name in (*one.number, LOGITS)], np.int64) for one in step.layouts]
    shape, lowered = (len(names), step.num_places), {id(one.lowered): one for one in variants}
    of_lowered = {
        number: held_by(one, lives[id(one.of.flow)], rows[one.of.template.layout], shape)
        for number, one in lowered.items()
    }
    held = [of_lowered[id(one.lowered)] for one in variants]
    began = _beginnings(parts, names)
    changes = np.stack([one.after - one.before for one in held])
    totals = changes.sum(axis=1)[which]
    there = began.sum(axis=0) + np.cumsum(totals, axis=0) - totals  # before each instance, [instances, places]
    full = there + np.stack([one.peak - one.before.sum(axis=0) for one in held])[which]
    fullest = np.argmax(full, axis=0)
    places = np.arange(step.num_places)
    peak = np.maximum(full[fullest, places], 0)
    best = np.zeros((len(names), step.num_places), np.int64)
    for number in np.unique(fullest).tolist():
        here = (fullest == number) & (peak > 0)
        one, times = held[which[number]], np.bincount(which[:number], minlength=len(held))
        inside = began + np.tensordot(times, changes, 1) - one.before + one.then
        best[:, here] = inside[:, here]
    return StepMemory(peak, _of_some(names, best), _of_some(names, began))


def _of_some(names: Mapping[str, int], found: Ints) -> dict[str, Ints]:
    """Returns the bytes of every place, by tensor, without tensors that nobody has. found: int64 [names, places]."""
    some = set(np.flatnonzero(found.any(axis=1)).tolist())
    return {name: found[at] for name, at in names.items() if at in some}


def _beginnings(parts: StepParts, names: Mapping[str, int]) -> Ints:
    """Returns the bytes of what there is before a step, int64 [names, places]."""
    step, layout = parts.step, parts.step.layouts[0]
    at_home, sizes = bytes_at_home(parts.arrays(0), step.num_places), layout.sizes_of_lists
    found, alike = np.zeros((len(names), step.num_places), np.int64), dict[tuple[int, int], list[list[int]]]()
    for entry, first, last in step.resting(step.begins):
        none = layout.form.layered[entry[0]] == 0
        alike.setdefault((0, -1) if none else (first, last), []).append(entry)
    for (first, last), entries in alike.items():
        held = np.zeros((len(entries), step.num_places), np.int64)
        for row, (tensor, _, places, *lists, _, _, _) in zip(held, entries, strict=True):
            if places == AT_HOME:
                row[:] = at_home[tensor]
            else:
                each = [int(sizes[which]) for which in lists if which >= 0]
                row[layout.lists[places]] = layout.tensors[tensor].unit * prod(each)
        of, there = np.nonzero(held)
        into = np.array([names[layout.tensors[entry[0]].name] for entry in entries], np.int64)[of]
        for shifts, times in _alike_shifts(step, first, last):
            np.add.at(found, (into, there + shifts[there]), times * held[of, there])  # pipelines' stages stay apart
    return found


def _alike_shifts(step: Step, first: int, last: int) -> list[tuple[Ints, int]]:
    """Returns how far from its first stage's places each place's is for some of the layers from the first to the last,
    int64 [places], and how many layers that is so for; of what is of no layer, where the last is before the first, the
    places of all are its own."""
    if last < first:
        return [(np.zeros(step.num_places, np.int64), 1)]
    times = Counter(one.tobytes() for one in step.shifts[:, first : last + 1].T)
    return [(np.frombuffer(one, np.int64)[step.pipeline_of], each) for one, each in times.items()]
