"""Core seconds of a rank of executor=torch by what its step does, by the clocks of its threads.

python -m tests.bench.runtime_parts [--steps N] [key=value ...]   # milliseconds a step, the mean of all ranks

attention, other kernels: torch's calls for formulas; updates: of the optimizer; posts: of sends and receives to gloo;
waits: what waiting for messages takes of a core; interpreter: the rest of the step's list of operations, with copies
into messages and out of them and sums of what arrives. instructions: what is made of a step before its clock starts;
calls: reading the step and reporting; other threads: gloo's, and those that pass messages on.
"""

import sys
from collections import Counter
from collections.abc import Callable
from time import process_time, thread_time
from typing import Any

from hydra import compose, initialize_config_dir

from zbench import CONF
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.run.system import make_system
from zbench.runtime import step_executor
from zbench.runtime.clocks.step_times import StepTimes
from zbench.runtime.handlers import computing
from zbench.runtime.handlers.optimizer import AdamWUpdate
from zbench.runtime.handlers.runner import StepRunner
from zbench.runtime.job.step_job import StepReport
from zbench.runtime.stepping.rank import SteppingRank
from zbench.runtime.transport.transport import Endpoint

ASIDE = 4  # calls that are not counted: caches fill
PARTS = (
    "attention",
    "other kernels",
    "updates",
    "posts",
    "waits",
    "interpreter",
    "instructions",
    "calls",
    "other threads",
)


class Clocked:
    """Core seconds of this thread by part; of a part inside another one the inner one's alone."""

    def __init__(self) -> None:
        self.seconds, self.inside = Counter[str](), [0.0]

    def clock(self, owner: Any, name: str, part: Callable[..., str]) -> None:
        """Has a function of a module or class clocked. part: of its arguments the part that a call is."""
        function = getattr(owner, name)

        def clocked(*arguments: Any, **named: Any) -> Any:
            began = thread_time()
            self.inside.append(0.0)
            try:
                return function(*arguments, **named)
            finally:
                took = thread_time() - began
                self.seconds[part(*arguments)] += took - self.inside.pop()
                self.inside[-1] += took

        setattr(owner, name, clocked)


CLOCKED = Clocked()


def kernel(term: Any, *_: Any) -> str:
    return "attention" if term.function in ("attend", "attend_d") else "other kernels"


class ClockedRank(SteppingRank):
    """A rank whose main thread is clocked."""

    calls = 0
    begun = (0.0, 0.0)

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        for owner, name, part in (
            (computing, "_term", kernel),
            (AdamWUpdate, "__call__", lambda *_: "updates"),
            (Endpoint, "post", lambda *_: "posts"),
            (Endpoint, "receive", lambda *_: "posts"),
            (StepTimes, "wait", lambda *_: "waits"),
            (StepRunner, "run", lambda *_: "interpreter"),
            (ClockedRank, "_prepared", lambda *_: "instructions"),
        ):
            CLOCKED.clock(owner, name, part)

    def step(self, *arguments: Any, **named: Any) -> StepReport:
        self.calls += 1
        if self.calls == ASIDE + 1:
            CLOCKED.seconds.clear()
            self.begun = thread_time(), process_time()
        return super().step(*arguments, **named)

    def told(self) -> dict[str, float]:
        """Returns the milliseconds of a step by part."""
        main, every = thread_time() - self.begun[0], process_time() - self.begun[1]
        found = dict(CLOCKED.seconds)
        found |= {"calls": main - sum(found.values()), "other threads": every - main}
        return {name: 1e3 * one / (self.calls - ASIDE) for name, one in found.items()}


def main(words: list[str]) -> None:
    steps = int(words[words.index("--steps") + 1]) if "--steps" in words else 20
    keys = [one for one in words if "=" in one]
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["executor=torch", *keys, "tracker=none", "baseline=null"])
    parts = Parts.of(config, Settings.of(config))
    system, executor = make_system(config, parts.cost), parts.executor
    assert isinstance(executor, step_executor.Torch)
    step_executor.RANK = "tests.bench.runtime_parts:ClockedRank"
    executor.start()
    assert executor._fleet is not None
    try:
        for number in range(ASIDE + steps):
            batch = parts.batch(number)
            executor.step(batch, tuple(system.plan(batch)))
        every = executor._fleet.call("told")
    finally:
        executor.stop()
    means = {name: sum(one.get(name, 0.0) for one in every) / len(every) for name in PARTS}
    print(", ".join(f"{name} {value:.1f}" for name, value in means.items()), f"; in all {sum(means.values()):.1f}")


if __name__ == "__main__":
    main(sys.argv[1:])
