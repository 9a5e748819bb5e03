"""Messages of a running program over gloo: receives posted ahead, sends from a thread of their own.

Every leg of every transfer is one message, named by its leg number. A rank posts its receives in plan order and
sends in plan order; since a plan's operations only use what earlier ones made, the earliest message that has not
arrived can always go on, so nothing deadlocks, whatever the plan and however far apart the ranks are.
A rank goes on when it has all that was sent to it; what it sent itself may still be under way during its next run (but
no longer), as it is on the simulator's links.
Gloo's `is_completed` tells nothing before `wait`, and a message may be waited for once only, so each has a lock.
"""

import queue
import threading
from collections.abc import Callable
from typing import Any

from torch import Tensor

from zbench.cost import Cost
from zbench.plan import Plan
from zbench.runtime.program import HOME, Relay, Send
from zbench.runtime.transport import Job, Pair, Post

Works = list[tuple[Any, Tensor]]  # of messages, and what they carry
AHEAD = 8  # receives posted beyond those waited for: enough to keep links busy, few enough to bound memory


def _tag(leg: int, job: Job) -> int:
    """Tells apart legs, the forward's and the backward's, and a run's from the next one's."""
    return 4 * leg + 2 * (job.number % 2) + job.tag


class Arrivals:
    """The receives of one program run, posted in order from whichever thread needs them."""

    def __init__(self, post: Post, job: Job) -> None:
        self.post, self.job, self.receives = post, job, job.program.receives
        self._posting = threading.Lock()
        self._works: list[Any] = []
        self._locks = [threading.Lock() for _ in self.receives]
        self._done = [False] * len(self.receives)
        self._waited = 0
        self.data: list[Tensor | None] = []
        self._post_until(min(AHEAD, len(self.receives)))

    def _post_until(self, count: int) -> None:
        with self._posting:
            while len(self._works) < count:
                receive = self.receives[len(self._works)]
                data = self.job.place(receive)
                self.data.append(data)
                self._works.append(self.post.receive(data, receive.peer, _tag(receive.leg, self.job)))

    def is_done(self, index: int) -> bool:
        return self._done[index]

    def wait(self, index: int) -> None:
        """Returns when receive `index` has arrived; any thread may ask, any number of times."""
        if self._done[index]:
            return
        self._post_until(index + 1)
        with self._locks[index]:
            if not self._done[index]:
                self._works[index].wait()
                self._done[index] = True
                self.post.events.arrive(self.job.number, self.receives[index])
                if self.receives[index].slot != HOME:  # what is passed on is needed until then
                    self.data[index] = None
                with self._posting:
                    self._waited += 1
        self._post_until(min(self._waited + AHEAD, len(self.receives)))


class Threaded:
    """Messages of one run, sent from the sender's thread."""

    in_order = False

    def __init__(self, sender: "Sender", post: Post, job: Job) -> None:
        self.sender, self.post, self.job = sender, post, job
        self.attended = 0
        self.progress = threading.Condition()
        self.arrivals = Arrivals(post, job)
        self.is_done, self.wait = self.arrivals.is_done, self.arrivals.wait

    def before(self, attended: int) -> None:
        if attended == 0:
            if self.job.program.sends:
                self.sender.start(self._send_all)
            return
        with self.progress:
            self.attended = attended
            self.progress.notify_all()

    def finish(self) -> None:
        if self.job.program.sends:
            self.sender.finish()

    def _send_all(self) -> None:
        """In the sender's thread."""
        works = []
        for send in self.job.program.sends:
            for data, leg, peer in self._legs(send):
                works.append((self.post.send(data, peer, _tag(leg, self.job)), data))
                self.post.events.send(self.job.number, peer, leg, data.numel())
        self.sender.left(works)

    def _legs(self, send: Send | Relay) -> list[tuple[Tensor, int, int]]:
        """(data, leg, peer) of what leaves."""
        if isinstance(send, Relay):
            self.wait(send.received)
            received = self.arrivals.data[send.received]
            assert received is not None
            return [(received, send.leg, send.peer)]
        with self.progress:
            while self.attended < send.after:
                self.progress.wait()
        data = self.job.message(send)
        return [(data[begin:end], leg, peer) for leg, peer, begin, end in send.legs]


class Sender:
    """A transport with a thread that runs one job after another; the main thread goes on computing."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._finished: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
        self._left: Works = []
        self._thread = threading.Thread(target=self._work, name="zbench-sender", daemon=True)
        self._thread.start()

    def prepare(self, plan: Plan, cost: Cost, pair: Pair) -> Pair:
        return pair

    def open(self, post: Post, job: Job) -> Threaded:
        return Threaded(self, post, job)

    def start(self, job: Callable[[], None]) -> None:
        self._jobs.put(job)

    def left(self, works: Works) -> None:
        """In the thread: sends that are under way, with what they carry; those of the run before are waited for."""
        for work, _ in self._left:
            work.wait()
        self._left = works

    def settle(self) -> None:
        self.start(lambda: self.left([]))
        self.finish()

    def finish(self) -> None:
        """Waits for the job started last.

        Raises:
            what the job raised.
        """
        error = self._finished.get()
        if error is not None:
            raise error

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                job()
            except BaseException as error:  # told to the main thread, which raises it
                self._finished.put(error)
            else:
                self._finished.put(None)
            del job  # and with it the memory of a run
