"""All kinds of mutations by name, and mutants of a case. Pure: no torch."""

from collections.abc import Mapping
from types import MappingProxyType

from numpy.random import Generator

from zbench.correctness.mutations import arrays, operations, tokens
from zbench.correctness.mutations.paths import Mutation, entry
from zbench.correctness.mutations.words import changes
from zbench.correctness.reference.judge import CorrectStep
from zbench.plans.plan import COLUMNS, WAITS, Plan

_PLAIN = ("num_ranks", "num_heads", "mask", "backward_mode", *WAITS, "padding", "attention", "notes")
MICRO_BATCHES = "micro-batches"
OF_PLANS: Mapping[str, Mutation] = MappingProxyType(
    {
        **{f"operation's {name}": operations.column(name) for name in COLUMNS},
        "operations' columns, several": operations.several_columns,
        "operation's column of another": operations.copied,
        "attend on another rank": operations.moved_attend,
        "transfer turned round": operations.turned,
        "operation's heads shifted": operations.shifted_heads,
        "copies kept or not": operations.kept_or_not,
        "operation split by heads": operations.halved,
        "operations dropped": operations.dropped,
        "operation done twice": operations.doubled,
        "operation moved": operations.moved,
        "operations exchanged": operations.exchanged,
        "operations reordered": operations.reordered,
        "forward and backward exchanged": operations.directions,
        **{f"piece's {name}": entry(f"blocks.{name}") for name in ("seq", "start", "stop", "block")},
        "block's home": entry("blocks.home"),
        "homes exchanged": tokens.exchanged_homes,
        "boundary of pieces": tokens.boundary,
        "pieces exchanged": tokens.exchanged_pieces,
        "piece dropped or twice": tokens.dropped_piece,
        "piece cut": tokens.cut_piece,
        "blocks merged or empty": tokens.merged_blocks,
        "item of a list": tokens.list_item,
        "lists exchanged or emptied": tokens.exchanged_lists,
        "item of lanes": tokens.lane_item,
        "lanes emptied": tokens.emptied_lanes,
        "routes": tokens.rerouted,
        "sequence's length": entry("lengths"),
        "sequence's number": entry("sequences"),
        **{f"plan's {name}": arrays.value(name) for name in _PLAIN},
        "pipeline's ranks": arrays.pipeline_entry,
        "pipelines": arrays.pipeline_rows,
        "array's length": arrays.length,
        "array's type": arrays.dtype,
        "array's shape": arrays.shape,
        "lists' offsets": arrays.offsets,
        "part of another kind": arrays.part,
    }
)
KINDS = (*OF_PLANS, MICRO_BATCHES)


_TRIES = 10  # at a mutation that may leave everything as it was


def mutant(rng: Generator, case: CorrectStep, kind: str) -> tuple[Plan, ...]:
    """Returns the case's plans with one of them, or what they are together, changed in a way of that kind."""
    for _ in range(_TRIES):
        plans = _mutant(rng, case, kind)
        if changes(case.plans, plans) != "none":
            break
    return plans


def _mutant(rng: Generator, case: CorrectStep, kind: str) -> tuple[Plan, ...]:
    if kind == MICRO_BATCHES:
        return arrays.micro_batches(rng, case)
    plans = list(case.plans)
    at = int(rng.integers(len(plans)))
    plans[at] = OF_PLANS[kind](rng, plans[at], case.cost)
    return tuple(plans)
