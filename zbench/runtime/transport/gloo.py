"""Moves messages of a running program over gloo: receives posted ahead, sends from threads of their own.

Every hop of every transfer is one message, named by its hop number. A rank posts its receives in plan order, those from
inside the node apart from those across nodes, and has three queues that send, each in plan order, as the simulator's
(zbench.simulator.hops): inside the node, across nodes, and through, for what it passes on inside its node on behalf of
others. In a single one, what passes through would wait behind what the rank itself does not have yet. Since a plan's
operations only use what earlier ones made, the earliest message that has not arrived can always go on, so nothing
deadlocks, whatever the plan and however far apart the ranks are.
A rank goes on when it has all that was sent to it; what it sent itself may still be under way during its next run (but
no longer), as it is on the simulator's links.
Gloo's `is_completed` tells nothing before `wait`, and a message may be waited for once only, so each has a lock.
"""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue
from typing import Any

from torch import Tensor

from zbench.cost.cost import Cost
from zbench.plans.plan import Plan
from zbench.runtime.clocks.named import Name
from zbench.runtime.program.program import HOME, Relay, Send
from zbench.runtime.transport.transport import Endpoint, Pair, TransportedRun

INSIDE, ACROSS, THROUGH = range(3)
QUEUES = 3
Hop = tuple[int, int, int, int]  # its number, the peer, bytes [begin, end) of the message
Works = list[tuple[Any, Tensor]]  # of messages, and what they carry
AHEAD = 8  # receives of a side posted beyond those waited for: enough to keep links busy, few enough to bound memory


def _tag(hop: int, job: TransportedRun) -> int:
    """Tells apart hops, the forward's and the backward's, and a run's from the next one's."""
    return 4 * hop + 2 * (job.number % 2) + job.tag


def _number(hop: int, job: TransportedRun) -> int:
    """Tells apart all messages of a step between two ranks."""
    return (2 * job.number + job.tag << 40) + hop


class Arrivals:
    """The receives of one program run, posted in order from whichever thread needs them: those from inside the node and
    those across nodes in queues of their own, as many may come over one before the first that travels on the other."""

    def __init__(self, post: Endpoint, job: TransportedRun) -> None:
        self.post, self.job, self.receives = post, job, job.program.receives
        self._posting = threading.Lock()
        self._works: list[Any] = [None] * len(self.receives)
        self._locks = [threading.Lock() for _ in self.receives]
        self._done = [False] * len(self.receives)
        self.data: list[Tensor | None] = [None] * len(self.receives)
        self._queues: tuple[list[int], list[int]] = ([], [])
        self._places: list[tuple[int, int]] = []  # of every receive: its side, and how many of it are before
        for index, receive in enumerate(self.receives):
            side = int(post.peers[receive.peer])
            self._places.append((side, len(self._queues[side])))
            self._queues[side].append(index)
        self._posted, self._waited = [0, 0], [0, 0]  # of each side
        for side in range(len(self._queues)):
            self._post_until(side, AHEAD)

    def _post_until(self, side: int, count: int) -> None:
        """Posts the first `count` receives of a side, or as many as there are."""
        with self._posting:
            for index in self._queues[side][self._posted[side] : count]:
                receive = self.receives[index]
                data = self.data[index] = self.job.place(receive)
                self._works[index] = self.post.receive(data, receive.peer, _tag(receive.hop, self.job))
                self._posted[side] += 1

    def is_done(self, index: int) -> bool:
        """Returns whether receive `index` was waited for."""
        return self._done[index]

    def name(self, index: int) -> Name | None:
        """Returns by what the message of receive `index` is known; None of a GPU's."""
        receive = self.receives[index]
        return None if self.post.through_host else (receive.peer, _number(receive.hop, self.job))

    def wait(self, index: int) -> None:
        """Returns when receive `index` has arrived; any thread may ask, any number of times."""
        if self._done[index]:
            return
        side, before = self._places[index]
        self._post_until(side, before + 1)
        with self._locks[index]:
            if not self._done[index]:
                self._works[index].wait()
                self._done[index] = True
                self.post.events.arrive(self.job.number, self.receives[index])
                if self.receives[index].slot != HOME:  # what is passed on is needed until then
                    self.data[index] = None
                with self._posting:
                    self._waited[side] += 1
        self._post_until(side, self._waited[side] + AHEAD)


class Parcels:
    """The parcels that the sends of a run carry, each put together once, by whichever queue comes to it first."""

    def __init__(self, job: TransportedRun, progress: threading.Condition) -> None:
        self.job, self.progress = job, progress
        self.attended = 0
        sends = job.program.sends
        self._locks = [threading.Lock() for _ in sends]
        self._made: list[Tensor | None] = [None] * len(sends)
        self._hops = [0 if isinstance(send, Relay) else len(send.hops) for send in sends]  # that are to take it yet

    def take(self, number: int, send: Send) -> Tensor:
        """Returns the data of send `number`, for one of its hops; once the attends that it needs have run."""
        with self.progress:
            while self.attended < send.after:
                self.progress.wait()
        with self._locks[number]:
            data = self._made[number]
            if data is None:
                data = self._made[number] = self.job.message(send)
            self._hops[number] -= 1
            if not self._hops[number]:
                self._made[number] = None
            return data


class Threaded:
    """Messages of one run, sent from the queues' threads."""

    in_order = False

    def __init__(self, sender: "Sender", post: Endpoint, job: TransportedRun) -> None:
        self.sender, self.post, self.job = sender, post, job
        self.progress = threading.Condition()
        self.arrivals = Arrivals(post, job)
        self.parcels = Parcels(job, self.progress)
        self.is_done, self.wait, self.name = self.arrivals.is_done, self.arrivals.wait, self.arrivals.name
        self.queues = [queue for queue in range(QUEUES) if any(True for _ in self._hops(queue))]

    def before(self, attended: int) -> None:
        if attended == 0:
            for queue in self.queues:
                self.sender.start(queue, partial(self._send_all, queue))
            return
        with self.progress:
            self.parcels.attended = attended
            self.progress.notify_all()

    def finish(self) -> None:
        for queue in self.queues:
            self.sender.finish(queue)

    def _hops(self, queue: int) -> Iterator[tuple[int, Send | Relay, Hop]]:
        """Yields (number of the send, the send, its hop) of all that a queue sends, in plan order."""
        across = self.post.peers
        for number, send in enumerate(self.job.program.sends):
            if isinstance(send, Relay):
                if queue == (ACROSS if across[send.peer] else THROUGH):
                    yield number, send, (send.hop, send.peer, 0, 0)
                continue
            for hop in send.hops:
                if queue == (ACROSS if across[hop[1]] else INSIDE):
                    yield number, send, hop

    def _send_all(self, queue: int) -> None:
        """Sends all of a queue's messages, in the queue's thread."""
        works = []
        for number, send, (hop, peer, begin, end) in self._hops(queue):
            data = self._received(send) if isinstance(send, Relay) else self.parcels.take(number, send)[begin:end]
            self.post.named.leaves((peer, _number(hop, self.job)))
            works.append((self.post.send(data, peer, _tag(hop, self.job)), data))
            self.post.events.send(self.job.number, peer, hop, data.numel())
        self.sender.left(queue, works)

    def _received(self, relay: Relay) -> Tensor:
        self.wait(relay.received)
        received = self.arrivals.data[relay.received]
        assert received is not None
        return received


class Sender:
    """A transport with a thread a queue, which runs one job after another; the main thread goes on computing."""

    def __init__(self) -> None:
        self._threads = [_SendingThread(f"zbench-sender-{name}") for name in ("inside", "across", "through")]

    def prepare(self, plan: Plan, cost: Cost, pair: Pair) -> Pair:
        return pair

    def open(self, post: Endpoint, job: TransportedRun) -> Threaded:
        return Threaded(self, post, job)

    def start(self, queue: int, job: Callable[[], None]) -> None:
        """Gives a queue's thread a job."""
        self._threads[queue].jobs.put(job)

    def left(self, queue: int, works: Works) -> None:
        """Notes, in the queue's thread, the sends that are under way, with what they carry; waits for those of the run
        before."""
        for work, _ in self._threads[queue].left:
            work.wait()
        self._threads[queue].left = works

    def settle(self) -> None:
        for queue in range(QUEUES):
            self.start(queue, partial(self.left, queue, []))
        for queue in range(QUEUES):
            self.finish(queue)

    def finish(self, queue: int) -> None:
        """Waits for the queue's job started first of those that nobody has waited for.

        Raises:
            what the job raised.
        """
        error = self._threads[queue].finished.get()
        if error is not None:
            raise error

    def close(self) -> None:
        for one in self._threads:
            one.jobs.put(None)
            one.thread.join()


class _SendingThread:
    """A queue's thread and its jobs. left: its last run's sends."""

    def __init__(self, name: str) -> None:
        self.jobs: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.finished: SimpleQueue[BaseException | None] = SimpleQueue()
        self.left: Works = []
        self.thread = threading.Thread(target=self._work, name=name, daemon=True)
        self.thread.start()

    def _work(self) -> None:
        while (job := self.jobs.get()) is not None:
            try:
                job()
            except BaseException as error:  # told to the main thread, which raises it
                self.finished.put(error)
            else:
                self.finished.put(None)
            del job  # and with it the memory of a run
