"""Finds what operations of a whole step are about: the blocks of their tokens, which the plan knows. Pure: no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from zbench.describe.batch import Batch
from zbench.plans.plan import Plan
from zbench.simulated.executor import Simulated
from zbench.step.passes.parts import PlanParts
from zbench.step.template import Step, Template
from zbench.trace.file import Event
from zbench.trace.named import TokenLists, token_lists

Blocks = tuple[int, tuple[int, ...]]  # a micro-batch's number among the layouts of a step, and blocks of its plan


@dataclass
class TokenBlocks:
    """The blocks that a step's parts of tokens are of. parts: of every micro-batch, by its layout's number. step: by
    which operations are known that events have the number of; None: there is none."""

    parts: Sequence[PlanParts] = ()
    step: Step | None = None
    _known: dict[tuple[int, tuple[int, ...]], Blocks] = field(default_factory=dict)

    @staticmethod
    def of(executor: Simulated, batch: Batch, plans: tuple[Plan, ...]) -> "TokenBlocks":
        """Returns those of a step's plans.

        Raises:
            ValueError: there is no such step, or each worker has one of its own.
        """
        steps = executor.chosen(batch, plans).steps
        return TokenBlocks(steps.parts(batch, plans), executor.built(batch, plans))

    @property
    def plans(self) -> list[Plan]:
        """The plans of micro-batches by the numbers of their layouts."""
        return [one.plan for one in self.parts]

    def what(self, layout: int, lists: TokenLists) -> list[Blocks]:
        """Returns the blocks of lists of parts, as zbench.report.columns takes them."""
        return [self._blocks(layout, one) for one in lists] if layout < len(self.parts) else []

    def of_event(self, event: Event) -> list[Blocks]:
        """Returns what an event of a measured trace is about; [] of one that the step does not have."""
        args = event["args"]
        if self.step is None or args.get("operation", -1) < 0:
            return []
        template = self._templates.get((args["template"], args["micro_batch"]))
        if template is None or args["operation"] >= len(template.operations):
            return []
        row = template.operations.table[args["operation"]].tolist()
        return self.what(template.layout, token_lists(self.step.layouts[template.layout], row))

    @cached_property
    def _templates(self) -> dict[tuple[str, int], Template]:
        """The step's templates by their names and layouts."""
        return {} if self.step is None else {(one.name, one.layout): one for one in self.step.templates}

    def _blocks(self, layout: int, parts: tuple[int, ...]) -> Blocks:
        if (layout, parts) not in self._known:
            found = np.unique(self.parts[layout].block[list(parts)])
            self._known[layout, parts] = layout, tuple(found.tolist())
        return self._known[layout, parts]
