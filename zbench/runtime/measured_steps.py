"""Writes a measured whole step as a Chrome trace: every operation by the name that a simulated trace has for it, from
what ranks noted (zbench.runtime.clocks.step_notes). No torch.

Tracks are those of simulated traces. A GPU has its computes, each from when its operands were there, and its waits. A
message is on the links at both of its ends until the receiver found it arrived, which is late where it did not wait for
it. Messages are posted long before they move, dozens on a link at once, so that one is drawn from when it can first
move as if links carried one after another: from when both ends had posted it, or from when the message before it on one
of its links was found arrived. What carried several at once is not seen; when each was posted is said with it. Per NIC
the bytes of all events are those that were counted, which are the record's where it has no counters of NICs.
Ranks' clocks are one where they are on one machine; elsewhere each counts from the barrier before the step.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import inf, isinf
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from zbench.describe.cluster import Cluster
from zbench.describe.links import NIC
from zbench.interfaces.result import SWITCH
from zbench.runtime.clocks.step_notes import NotedMessage, NotedOperation, NotedWait, RankNotes
from zbench.runtime.measured_trace import nic_share_events
from zbench.step.operations import QUEUES
from zbench.step.template import Step
from zbench.trace.file import Event, write_events
from zbench.trace.named import named_operation
from zbench.trace.tracks import complete_event
from zbench.trace.whole_step import link_title, track_titles
from zbench.trace.words import tensor_words

Track = tuple[int, str]  # a node, and a title on it
_WAYS = ("sends", "receives")
_UNDER_WAY = "under way when the step ended"
_POSTED = "posted by both ends, us"  # in a trace's microseconds


class Reported(Protocol):
    """The report of a rank (zbench.runtime.job.step_job.StepReport has the fields' meaning)."""

    @property
    def began(self) -> float: ...

    @property
    def notes(self) -> RankNotes | None: ...

    @property
    def nic_series(self) -> dict[str, Any]: ...


@dataclass(frozen=True)
class RanPart:
    """A step that was run. first: the rank of its first process; reports: of its processes. In rounds of local steps
    each worker has a step of its own, and so has what a round ends with. layers: the numbers that the step's layers
    have in the model, and what is after the last; None: their own."""

    step: Step
    first: int
    reports: Sequence[Reported]
    layers: Sequence[int] | None = None


def write_measured_steps(path: str | Path, cluster: Cluster, parts: Sequence[RanPart], one_clock: bool) -> int:
    """Writes the events of what was run one after another to `path` and returns their number; the file appears only
    when complete.

    one_clock: the ranks are on one machine.

    Raises:
        ValueError: the file cannot be written.
    """
    return write_events(path, False, cluster, measured_events(cluster, parts, one_clock))


def measured_events(cluster: Cluster, parts: Sequence[RanPart], one_clock: bool) -> Iterator[Event]:
    """Yields the events of what was run; arguments as of write_measured_steps."""
    begun: dict[int, float] = {}  # by rank: when its first part began
    for part in parts:
        for at, one in enumerate(part.reports):
            begun.setdefault(part.first + at, one.began)
    starts = dict.fromkeys(begun, min(begun.values())) if one_clock else begun
    drawn = [_Drawn(cluster, part, starts) for part in parts]
    on_gpus = chain.from_iterable(one.events() for one in drawn)
    on_links = _on_links(chain.from_iterable(one.messages() for one in drawn))
    yield from _on_tracks(cluster, [*on_gpus, *on_links])
    for part in parts:
        for at, one in enumerate(part.reports):
            rank = part.first + at
            yield from nic_share_events(
                cluster, rank // cluster.gpus_per_node, one.nic_series, one.began - starts[rank]
            )


class _Message(NamedTuple):
    """A message that was under way. tracks: of the ports that it takes. posted: when both ends had posted it. found:
    when the receiver found it arrived, or the step ended."""

    tracks: Sequence[Track]
    posted: float
    found: float
    name: str
    args: Event


@dataclass
class _Drawn:
    """A part of a measured step's ranks, as its trace draws it. starts: moments from which ranks count, by rank."""

    cluster: Cluster
    part: RanPart
    starts: dict[int, float]
    _names: dict[NotedOperation, tuple[str, Event]] = field(default_factory=dict)
    _tracks: dict[tuple[int, int], list[Track]] = field(default_factory=dict)  # by source and destination

    def events(self) -> Iterator[tuple[Track, Event]]:
        """Yields (track, event) of what was computed and waited for."""
        for at, (notes, offset) in enumerate(zip(self._notes, self._offsets, strict=True)):
            rank = self.part.first + at
            for of, began, ended in notes.computes:
                name, args = self._named(of)
                yield self._computing(of, rank), _event(name, offset + began, offset + ended, args)
            for wait in notes.waits:
                if wait.ended > wait.began:
                    name, args = self._waiting(wait)
                    track = rank // self.cluster.gpus_per_node, f"GPU {rank}"
                    yield track, _event(name, offset + wait.began, offset + wait.ended, args)

    def messages(self) -> Iterator[_Message]:
        """Yields the messages."""
        sent: dict[tuple[int, int, int], list[NotedMessage]] = {}
        for process, notes in enumerate(self._notes):
            for one in notes.sent:
                sent.setdefault((process, process if one.peer < 0 else one.peer, one.name), []).append(one)
        alike = {known: iter(every) for known, every in sent.items()}
        for process, notes in enumerate(self._notes):
            for one in notes.received:
                source = process if one.peer < 0 else one.peer
                other = next(alike[source, process, one.name])
                posted = max(self._offsets[source] + other.began, self._offsets[process] + one.began)
                found = self._offsets[process] + (notes.seconds if isinf(one.ended) else one.ended)
                yield self._message(other, one, posted, max(posted, found))

    @cached_property
    def _notes(self) -> list[RankNotes]:
        found = [one.notes for one in self.part.reports if one.notes is not None]
        assert len(found) == len(self.part.reports), "a step that is traced is noted on every rank"
        return found

    @cached_property
    def _offsets(self) -> list[float]:
        return [one.began - self.starts[self.part.first + at] for at, one in enumerate(self.part.reports)]

    def _message(self, sent: NotedMessage, got: NotedMessage, posted: float, found: float) -> _Message:
        name, args = self._named(sent.of)
        src, dst = sent.of.src, sent.of.dst
        args = args | {"from": self._place(src), "to": self._place(dst), "bytes": sent.size}
        args |= {_POSTED: round(posted * 1e6, 3)}
        args |= {_UNDER_WAY: True} if got.ended == inf else {}
        if (src, dst) not in self._tracks:
            self._tracks[src, dst] = list(self._ports(src, dst))
        return _Message(self._tracks[src, dst], posted, found, name, args)

    def _ports(self, src: int, dst: int) -> Iterator[Track]:
        """Yields the tracks of the ports that a message takes from a place to another; memories have none."""
        hosts = [place >= self.part.step.num_gpus for place in (src, dst)]
        gpus = [self.part.first + place for place in (src, dst)]
        link = self.cluster.host if any(hosts) else int(self.cluster.link_of(*(np.array(gpus)[:, None]))[0])
        for gpu, is_host, way in zip(gpus, hosts, _WAYS, strict=True):
            if not is_host:
                of_gpu = f"GPU {gpu} {link_title(self.cluster, link)}"
                owner = f"NIC {self.cluster.nic_of[gpu]}" if link == NIC else of_gpu
                yield gpu // self.cluster.gpus_per_node, f"{owner} {way}"

    def _place(self, place: int) -> int:
        """Returns a place of the step as the cluster counts it: its GPUs, and after them the memories of nodes, or with
        stages GPUs' parts of these."""
        first, gpus = self.part.first, self.part.step.num_gpus
        of_gpus = len(self.part.step.stages) > 1
        memories = self.cluster.num_ranks + (first if of_gpus else first // self.cluster.gpus_per_node)
        return first + place if place < gpus else memories + place - gpus

    def _computing(self, of: NotedOperation, rank: int) -> Track:
        """Returns the track of a compute: of a GPU, or of the CPUs of its node."""
        is_host = of.src >= self.part.step.num_gpus
        return rank // self.cluster.gpus_per_node, "CPUs" if is_host else f"GPU {rank}"

    def _waiting(self, wait: NotedWait) -> tuple[str, Event]:
        """Returns the name of a wait, and what is said of it."""
        if wait.of is None:
            queue = QUEUES[wait.queue]
            return f"waiting for messages of {queue.replace('_', ' ')}", {"for": queue}
        name, args = self._named(wait.of)
        return f"waiting for {name}", args

    def _named(self, of: NotedOperation) -> tuple[str, Event]:
        """Returns the name of an operation, and what is said of it, with its number in its template."""
        if of not in self._names:
            if isinstance(of.source, str):  # it moves to where another strategy wants it, and is of no template
                self._names[of] = f"move {tensor_words(of.source)}", {"layer": of.layer, "for": SWITCH}
            else:
                template = self.part.step.templates[of.source]
                layout = self.part.step.layouts[template.layout]
                row = template.operations.table[of.op].tolist()
                layer = of.layer if self.part.layers is None else self.part.layers[of.layer]
                name, args = named_operation(template, layout, row, layer)
                self._names[of] = name, args | {"operation": of.op}
        return self._names[of]


def _on_links(messages: Iterable[_Message]) -> Iterator[tuple[Track, Event]]:
    """Yields messages' events, one on each link that a message takes, from when it can first move."""
    free: dict[Track, float] = {}  # of each link, when its message before was found arrived
    for one in sorted(messages, key=lambda one: (one.found, one.posted)):
        began = max([one.posted, *(free[track] for track in one.tracks if track in free)])
        for track in one.tracks:
            free[track] = one.found
            yield track, _event(one.name, began, one.found, one.args)


def _on_tracks(cluster: Cluster, drawn: Sequence[tuple[Track, Event]]) -> Iterator[Event]:
    """Yields names of nodes and of their tracks, and then the events, in their order."""
    numbers: dict[Track, int] = {}
    for node, titles in enumerate(_titles(cluster, {track for track, _ in drawn})):
        yield {"ph": "M", "pid": node, "name": "process_name", "args": {"name": f"node {node}"}}
        for tid, title in enumerate(titles):
            numbers[node, title] = tid
            yield {"ph": "M", "pid": node, "tid": tid, "name": "thread_name", "args": {"name": title}}
    for track, event in sorted(drawn, key=lambda one: (one[1]["ts"], -one[1]["dur"])):
        yield event | {"pid": track[0], "tid": numbers[track]}


def _titles(cluster: Cluster, tracks: set[Track]) -> list[list[str]]:
    """Returns the titles of every node's tracks: its GPUs, and the links, as of simulated traces, that some node has
    events on, so that nodes are alike. tracks: that have events."""
    every = [list(dict.fromkeys(one.partition(",")[0] for one in node)) for node in track_titles(cluster)]
    used = {at for node, titles in enumerate(every) for at, one in enumerate(titles) if (node, one) in tracks}
    kept = sorted(used | set(range(cluster.gpus_per_node)))
    others = dict.fromkeys(title for node, title in sorted(tracks) if title not in every[node])
    return [[*(titles[at] for at in kept), *others] for titles in every]


def _event(name: str, began: float, ended: float, args: Event) -> Event:
    """Makes an event that ends where one that begins at `ended` does begin, as both are rounded."""
    rounded = round(ended * 1e6, 3) - round(began * 1e6, 3)
    return complete_event(name, 0, 0, began, rounded * 1e-6, args)
