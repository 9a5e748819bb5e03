"""The numbers of tokens that a GPU has: of a batch of rollouts the tokens, what models make of them, and what is
learned from them. They come in messages, and are counted there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from zbench.describe.arrays import Floats, Ints
from zbench.rollouts.columns import NUMBER_BYTES, ColumnMoves
from zbench.rollouts.experience import CLIP, VALUE_CLIP, PolicyTargets, Rollout, TrainingTokens, ValueTargets
from zbench.runtime.handlers.machine import StepMachine
from zbench.runtime.handlers.messages import bytes_by_queue
from zbench.runtime.handlers.prepared import PreparedStep
from zbench.runtime.handlers.runner import StepRunner
from zbench.runtime.handlers.store import Slab, Store
from zbench.runtime.processes.board import Board
from zbench.runtime.rollouts.policy_job import ADVANTAGES, BEFORE, REFERENCE, TOKENS, returns_of
from zbench.runtime.steps.recurring import KeptPrograms
from zbench.runtime.steps.resting import items_on
from zbench.runtime.transport.transport import Traffic

Run = tuple[int, int, int]  # a sequence, the first of its tokens, the one after the last


@dataclass
class TokenColumns:
    """The columns of a GPU. runner: of their steps, with messages of all GPUs. lengths, prompts: of all sequences, the
    tokens of both and of the prompt. held: by column and sequence one number a token, nan of those that are not there.
    """

    gpu: int
    runner: StepRunner
    lengths: Sequence[int] = ()
    prompts: Sequence[int] = ()
    held: dict[str, dict[int, Floats]] = field(default_factory=dict)

    @staticmethod
    def on(gpu: int, machine: StepMachine, board: Board) -> "TokenColumns":
        """Returns those of a GPU, without any. machine: whose messages bring them."""
        model = replace(machine.model, element_bytes=NUMBER_BYTES, lse_bytes=NUMBER_BYTES)
        own = replace(machine, model=model, programs=KeptPrograms())
        return TokenColumns(gpu, StepRunner(own, board, where="experience, "))

    def begin(self, lengths: Sequence[int], prompts: Sequence[int]) -> None:
        """Begins another batch, of sequences with these lengths and prompts."""
        self.lengths, self.prompts, self.held = lengths, prompts, {}

    def write(self, column: str, run: Run, values: Floats) -> None:
        """Puts numbers of a run of tokens."""
        number, begin, end = run
        mine = self.held.setdefault(column, {})
        if number not in mine:
            mine[number] = np.full(self.lengths[number], np.nan)
        mine[number][begin:end] = values

    def write_response(self, column: str, number: int, values: Floats) -> None:
        """Puts numbers of a response, each at the token before, which tells it."""
        self.write(column, self.response(number), values)

    def write_made(self, column: str, sequence: Ints, position: Ints, made: Floats, ends: bool) -> set[Run]:
        """Puts what a model made of tokens, as far as it counts: of those that tell a response, or, with `ends`, of
        each sequence's last one. Returns their runs. sequence, position: of each token."""
        lengths, prompts = np.array(self.lengths)[sequence], np.array(self.prompts)[sequence]
        counts = position == lengths - 1 if ends else (prompts - 1 <= position) & (position < lengths - 1)
        sequence, position, made = sequence[counts], position[counts], made[counts]
        cuts = np.flatnonzero((np.diff(sequence) != 0) | (np.diff(position) != 1)) + 1
        found = set[Run]()
        for some in np.split(np.arange(len(sequence)), cuts) if len(sequence) else ():
            run = int(sequence[some[0]]), int(position[some[0]]), int(position[some[-1]]) + 1
            self.write(column, run, made[some])
            found.add(run)
        return found

    def response(self, number: int) -> Run:
        """Returns the run of tokens that tell a response."""
        return number, self.prompts[number] - 1, self.lengths[number] - 1

    def read(self, column: str, run: Run) -> Floats:
        """Returns the numbers of a run of tokens, which are all there."""
        number, begin, end = run
        found = self.held[column][number][begin:end]
        assert not np.isnan(found).any(), f"{column} of sequence {number} is there"
        return found

    def move(self, moves: ColumnMoves) -> tuple[int, int]:
        """Brings columns to where they are wanted; returns the bytes that this GPU sent and received. Collective."""
        step, machine = moves.step, self.runner.machine
        prepared, store = PreparedStep.of(step, self.gpu, machine, (), ()), Store(machine.device)
        self.runner.stores = dict.fromkeys(prepared.places, store)
        parts = prepared.batches[0]
        for tensor, _, _, some, _ in items_on(step, step.begins, prepared.places):
            name = parts.layout.tensors[tensor].name
            runs = moves.runs[name][list(some)].tolist()
            values = np.concatenate([self.read(name.rpartition("_")[0], tuple(run)) for run in runs])
            of, value = parts.formats[tensor], torch.from_numpy(values).to(machine.device)
            store.put(parts.key(tensor, 0), Slab.of(of, some, (0,), (value,)))
        for end in machine.messages.ends:
            end.traffic = Traffic()
        self.runner.run(prepared)
        for tensor, _, _, some, _ in items_on(step, step.ends, prepared.places):
            name = parts.layout.tensors[tensor].name
            (value,) = store.read(parts.key(tensor, 0), parts.formats[tensor], some, (0,))
            runs = moves.runs[name][list(some)]
            for run, mine in zip(
                runs.tolist(), np.split(value.cpu().numpy(), np.cumsum(runs[:, 2] - runs[:, 1])[:-1]), strict=True
            ):
                self.write(name.rpartition("_")[0], tuple(run), mine)
        return bytes_by_queue(machine.messages.ends).get("parameters", (0, 0))

    def tokens(self, which: Sequence[int]) -> dict[int, Ints]:
        """Returns the tokens of those of some sequences that are here, numbered anew."""
        here = self.held.get(TOKENS, {})
        return {at: here[number].astype(np.int64) for at, number in enumerate(which) if number in here}

    def rollout(self, number: int) -> Rollout:
        """Returns a rollout that is here whole."""
        tokens = self.read(TOKENS, (number, 0, self.lengths[number])).astype(np.int64)
        return Rollout(tokens, self.prompts[number], self.read(BEFORE, self.response(number)))

    def scored(self, which: Sequence[int]) -> TrainingTokens:
        """Returns the tokens of sequences that are scored, as far as they are here."""
        return TrainingTokens(self.tokens(which), self._counted(which))

    def of_policy(self, which: Sequence[int], kl: float) -> TrainingTokens:
        """Returns what the policy trains with in an update of some of the rollouts, numbered anew, as far as it is
        here. kl: the coefficient of the KL term in the loss."""
        names = {"advantages": ADVANTAGES, "before": BEFORE} | ({"reference": REFERENCE} if kl else {})
        return self._training(which, PolicyTargets(self._targets(which, names), CLIP, kl))

    def of_critic(self, name: str, which: Sequence[int]) -> TrainingTokens:
        """Returns what a critic trains with, as of_policy."""
        names = {"returns": returns_of(name), "before": name}
        return self._training(which, ValueTargets(self._targets(which, names), VALUE_CLIP))

    # -- inside ---------------------------------------------------------------------------------------
    def _training(self, which: Sequence[int], targets: PolicyTargets | ValueTargets) -> TrainingTokens:
        return TrainingTokens(self.tokens(which), self._counted(which), targets)

    def _counted(self, which: Sequence[int]) -> int:
        return sum(self.lengths[number] - self.prompts[number] for number in which)

    def _targets(self, which: Sequence[int], names: Mapping[str, str]) -> dict[str, Mapping[int, Floats]]:
        """Returns columns by the names that losses know them by: 0 of tokens that tell no token of a response."""
        here = {at: one for at, one in enumerate(which) if all(self._has(column, one) for column in names.values())}
        found: dict[str, Mapping[int, Floats]] = {"counts": {at: self._spread(one, 1.0) for at, one in here.items()}}
        for name, column in names.items():
            found[name] = {at: self._spread(one, self.read(column, self.response(one))) for at, one in here.items()}
        return found

    def _has(self, column: str, number: int) -> bool:
        """Returns whether all numbers of a response are here."""
        _, begin, end = self.response(number)
        mine = self.held.get(column, {}).get(number)
        return mine is not None and not np.isnan(mine[begin:end]).any()

    def _spread(self, number: int, values: Floats | float) -> Floats:
        _, begin, end = self.response(number)
        found = np.zeros(self.lengths[number])
        found[begin:end] = values
        return found
