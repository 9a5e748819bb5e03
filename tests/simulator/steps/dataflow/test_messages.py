"""Messages of random transfers, against the rule told one operation at a time."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from zbench.simulator.steps.dataflow.messages import leaders
from zbench.step.operations import COLUMN_NAMES, COMPUTE, DROP, GATHER, MOVE, REDUCE, SEND

AT = {name: number for number, name in enumerate(COLUMN_NAMES)}
KINDS = (SEND, SEND, MOVE, GATHER, GATHER, REDUCE, COMPUTE, DROP)


def told(ops: np.ndarray, edges: list[tuple[int, int]]) -> list[int]:
    """Returns the leaders of messages, found by dictionaries of each run."""
    found, run, start = list(range(len(ops))), [0] * len(ops), 0
    for op in range(len(ops)):
        same = op and all(ops[op, AT[name]] == ops[op - 1, AT[name]] for name in ("kind", "queue", "layer"))
        start = start if same and ops[op, 0] not in (COMPUTE, DROP) else op
        run[op] = start
    waits = {consumer for producer, consumer in edges if run[producer] == run[consumer]}
    messages: dict[tuple[int, ...], int] = {}
    times: dict[tuple[int, ...], int] = {}
    for op, row in enumerate(ops.tolist()):
        if row[0] in (COMPUTE, DROP):
            continue
        members = run[op], row[AT["what"]], row[AT["dst"]]
        before = times.get(members, 0)
        times[members] = before + 1
        if op in waits:
            continue
        lists = row[AT["list0"] : AT["list1"] + 1] if row[0] in (SEND, MOVE) else [before]
        ends = [row[AT[name]] for name in ("src", "dst", "version", "encoding", "via")]
        found[op] = messages.setdefault((run[op], *ends, *lists), op)
    return found


@given(st.integers(0, 2**32 - 1), st.integers(0, 60))
@settings(max_examples=200, deadline=None)
def test_messages_are_those_of_the_rule(seed: int, count: int) -> None:
    rng = np.random.default_rng(seed)
    ops = rng.integers(0, 2, (count, len(COLUMN_NAMES)))
    ops[:, 0] = np.repeat(rng.choice(KINDS, count), rng.integers(1, 9, count))[:count]
    collective = np.isin(ops[:, 0], (GATHER, REDUCE))
    ops[collective, AT["src"]] = -1
    edges = sorted({(min(pair), max(pair)) for pair in rng.integers(0, max(count, 1), (count // 4, 2)).tolist()})
    edges = [(a, b) for a, b in edges if a != b]
    producer, consumer = np.array(edges, np.int64).reshape(-1, 2).T.copy()
    assert leaders(ops, producer, consumer).tolist() == told(ops, edges)
