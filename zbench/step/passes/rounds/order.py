"""The order of rounds, proven: which outer parameters each round begins with, and how old they are.

Rounds are in the language of a step with a worker's local steps as one operation, which reads the outer parameters in a
version that it names. What a round ends with is zbench.step.passes.rounds.outer_step.
"""

from zbench.describe.sync import RoundSync
from zbench.step.passes.rounds.outer_step import FIRST, LATER, NOW, PHASES, UPDATED
from zbench.step.proof.prove import prove_step
from zbench.step.reading import read_step

SHOWN = 4  # rounds that are proven: the first, one that ends as all later ones, and what follows it

_LAYOUT = """layout
  index r: {ones}
  index b of batch: 1
  tensor p: state, none, 4 bytes, home 0
  tensor w[r,b]: copy, none, 4 bytes, home {homes}
  tensor d[b]: sum add, none, 4 bytes, home 0
  formula w[r,b] = train(p)
  formula d[b] += contribute(w[r,b])
  formula p := outer(p, d[*])
"""


def round_kind(sync: RoundSync, round_: int) -> str:
    """Returns what a round, counted from 0, ends with."""
    if not sync.age:
        return NOW
    return LATER if round_ else FIRST


def prove_ages(sync: RoundSync, workers: int) -> None:
    """Returns if every round sees the outer parameters that its method says: those of the round before it, or one
    older.

    Raises:
        zbench.step.proof.prove.StepError: it does not, which is a bug.
    """
    prove_step(read_step(rounds_text(sync, workers)))


def rounds_text(sync: RoundSync, workers: int, rounds: int = SHOWN) -> str:
    """Returns rounds as the text of a step: each trains, and the averages are used where the order of phases says."""
    every = f"0-{workers - 1}" if workers > 1 else "0"
    layout = _LAYOUT.format(ones=" ".join(["1"] * workers), homes=" ".join(map(str, range(workers))))
    templates, plays, updates = "", "", 0
    for round_ in range(rounds):
        age = -min(sync.age, round_)
        templates += _round(round_, every, workers, age) + _outer(round_, every, workers)
        plays += f"play round{round_} for layer 0, version {round_}\n"
        if UPDATED in PHASES[round_kind(sync, round_)]:
            plays += f"play outer{updates} for layer 0, version {updates}\n"
            updates += 1
    for late in range(updates, rounds):  # what is under way when the last round ends
        plays += f"play outer{late} for layer 0, version {late}\n"
    head = f"step of 0 layers on {workers} GPUs and 0 host memories\n{layout * rounds}{templates}{plays}"
    return f"{head}begins p at {every}\nends p at {every}, version {rounds}\n"


def _round(number: int, every: str, workers: int, age: int) -> str:
    seen = f", version {age}" if age else ""
    lines = [f"  compute: compute w[{at},0] at {at}{seen}\n" for at in range(workers)]
    lines += [f"  compute: compute d[0,{at}] at {at}\n" for at in range(workers)]
    return (
        f"template round{number} of layout {number}\n  makes w d\n  needs p at {every}{seen}\n"
        f"  leaves p at {every}{seen}\n  leaves d[0] at {every}, count 1\n{''.join(lines)}"
    )


def _outer(number: int, every: str, workers: int) -> str:
    moves = "".join(f"  gradients: move d[0] {at} -> 0\n" for at in range(1, workers))
    gather = f"  parameters: gather p to {every}, version 1\n" if workers > 1 else ""
    return (
        f"template outer{number} of layout {number}\n  makes p\n  needs p at {every}\n"
        f"  needs d[0] at {every}, count 1\n  leaves p at {every}, version 1\n{moves}"
        f"  compute: compute p at 0\n{gather}"
    )
