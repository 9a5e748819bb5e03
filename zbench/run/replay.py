"""A recorded run's workload and system, made again from its configuration. An edge; no torch.

Batches and plans are functions of the configuration, so a record need not hold them. What was measured is not made
again: this gives plans, and the described cluster's cost to play them with.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from zbench.console.sentence import sentence
from zbench.cost.cost import Cost
from zbench.describe.batch import Batch
from zbench.describe.units import with_noun
from zbench.interfaces.protocols import System
from zbench.interfaces.result import StepResult
from zbench.plans.plan import Plan
from zbench.record.record import Line, Run
from zbench.run.checks.attention_runs import AttentionRun, of_line
from zbench.run.checks.machine import free_memory
from zbench.run.checks.price import check_memory_here, priced
from zbench.run.chosen import settled
from zbench.run.known import Unknown, from_record, from_trusted_record
from zbench.run.parts import RUN_WHOLE_STEPS, SIMULATED, WHOLE_STEPS, Parts
from zbench.run.settings import PRECISIONS, Settings
from zbench.simulated.executor import Simulated

# Sentences that go on, after a semicolon, with what is in a file; it may be the user's own, and pages are shown around.
_QUOTING = ("workload.path", "workload.field")


@dataclass(frozen=True)
class Replay:
    """A recorded run, made again to be played. parts: all but the system; the executor is the clock of whole steps,
    told how the run's trains where that ran plans of attention. cost: what plans are made with, in the run's world.
    of_attention: the run's executor ran or played attention's plans, as a record may still say."""

    parts: Parts
    cost: Cost
    system: System
    of_attention: bool

    @staticmethod
    def of(run: Run, trust: bool = False) -> "Replay":
        """Makes a run's parts again. Its record is data: it may name zbench's own classes (zbench.run.known) and no
        others.

        trust: whatever it names is called; for records of one's own classes.

        Raises:
            ValueError: the configuration makes nothing here (a module or file of the user's is missing, for instance).
            zbench.run.known.Unknown: it names what is not zbench's.
        """
        config = dict(run.start["config"])
        try:
            for check, size in PRECISIONS.items():
                if check in (config.get("check") or ()):
                    config["model"] = config["model"] | {"element_bytes": size, "lse_bytes": size}
            executor, simulated = config["executor"], bool(run.start["facts"].get("simulated"))
            target = executor.get("_target_")
            config["executor"] = {"_target_": SIMULATED}
            config["tracker"] = {"_target_": "zbench.track.Nothing"}
            config |= {"check": None, "resume": None}
            make = from_trusted_record if trust else from_record
            parts = Parts.of(config, Settings.of(config), make)
            have = simulated or target in RUN_WHOLE_STEPS
            here, seen = (replace(cost, pipelines=cost.pipelines and have) for cost in (parts.cost, parts.seen))
            made = settled(config, replace(parts, cost=here, seen=seen), make, run.start.get("chosen") or {})
            parts, of_attention = made.parts, target not in WHOLE_STEPS
            if of_attention and not simulated:
                of_run = AttentionRun.of(executor, parts.cost, run.about)
                parts = replace(parts, executor=of_run.whole_steps(parts.cost))
            return Replay(parts, parts.cost, made.system, of_attention)
        except Unknown as error:
            raise Unknown(f"run {run.start['run']} {error}; --trust runs it") from error
        except Exception as error:
            told = sentence(error) or (f"{type(error).__name__}: {error}",)
            reason = told[0].partition("; ")[0] if told[0].startswith(_QUOTING) else told[0]
            raise ValueError(f"run {run.start['run']} cannot be made again from its record: {reason}") from error

    @property
    def whole_steps(self) -> Simulated:
        """The executor, which plays plans as whole steps."""
        assert isinstance(self.parts.executor, Simulated)
        return self.parts.executor

    def played(self, line: Line) -> StepResult:
        """Plays a recorded step again; of a measured one this is what it is predicted to take.

        Raises:
            ValueError: as `step`, or the step did what whole steps do not describe (zbench.run.checks.attention_runs).
        """
        batch, plans = self.step(line)
        return (of_line(self.whole_steps, plans, line) if self.of_attention else self.whole_steps).step(batch, plans)

    def played_in_order(self, lines: Sequence[Line]) -> list[StepResult]:
        """Plays all recorded steps of a run, from its first one, as a step's seconds may hang on those before it:
        where pipelines change, and in rounds.

        Raises:
            ValueError: as `played`.
        """
        self.whole_steps.start()
        return [self.played(line) for line in lines]

    def step(self, line: Line) -> tuple[Batch, tuple[Plan, ...]]:
        """Returns the batch of a recorded step, and its plans.

        Raises:
            ValueError: the workload makes another batch now than when the record was written, the step is of another
                cluster or of other tokens than the configuration's, or too large for this machine's memory.
        """
        where = f"step {line['step']} of run {line['run']}"
        ranks, described = len(line["attention_seconds"]), self.parts.cost.gpus.cluster.num_ranks
        if ranks != described:  # before a small record has large batches and plans made
            raise ValueError(f"{where} has times of {with_noun(ranks, 'rank')}, and its configuration {described}")
        if line["tokens"] != self.parts.tokens:
            raise ValueError(f"{where} has {line['tokens']} tokens, and its configuration {self.parts.tokens}")
        self._check_memory(where)
        batch = self.parts.workload.batch(line["step"])
        if batch.digest != line["batch"]:
            raise ValueError(
                f"{where} was batch {line['batch']} and is {batch.digest} now: the "
                "workload, or what it reads, has changed since"
            )
        return batch, self.system.plan(batch)

    def _check_memory(self, where: str) -> None:
        cluster, parts = self.parts.cluster, self.parts
        price = priced(self.system, parts.workload, parts.tokens, cluster.num_ranks, parts.executor)
        keys = (f"cluster.num_nodes={cluster.num_nodes:,}", f"tokens={parts.tokens:,}")
        check_memory_here(price, free_memory(), where, *keys)

    def plans(self, line: Line) -> tuple[Plan, ...]:
        """Makes the plans of a step again, as step() does."""
        return self.step(line)[1]
