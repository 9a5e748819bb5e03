"""The order of rounds, proven: what follows each local step, which outer parameters the next ones see, and their age.

Rounds are in the language of a step with a worker's local steps as one operation, or as two where an average arrives
between them, which reads the outer parameters in a version that it names. What a round ends with is
zbench.step.passes.rounds.outer_step.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from zbench.describe.sync import RoundSync
from zbench.step.passes.rounds.outer_step import ARRIVED, FIRST, LATER, NOW, PHASES, REDUCED, SENT, UPDATED
from zbench.step.proof.prove import prove_step
from zbench.step.reading.read import read_step

SHOWN = 4  # rounds that are proven: the first, one that ends as all later ones, and what follows it

_LAYOUT = """layout
  index r: {ones}
  index b of batch: 1
  tensor p: state, none, 4 bytes, home 0
  tensor w[r,b]: copy, none, 4 bytes, home {homes}
{more}  tensor d[b]: sum add, none, 4 bytes, home 0
{trained}  formula d[b] += contribute(w[r,b])
  formula p := outer(p, d[*])
"""
_AT_ONCE = "", "  formula w[r,b] = train(p)\n"
# With steps before the average of the round before arrives, and steps after it.
_IN_TWO = (
    "  tensor v[r,b]: copy, none, 4 bytes, home {homes}\n",
    "  formula v[r,b] = train(p)\n  formula w[r,b] = train(p, v[r,b])\n",
)


@dataclass(frozen=True, slots=True)
class RoundEnd:
    """The average of a fragment as it follows a local step, in one of the ways of
    zbench.step.passes.rounds.outer_step."""

    fragment: int
    kind: str

    @property
    def begins_anew(self) -> bool:
        """Whether the tokens of an average are counted from here on."""
        return self.kind != ARRIVED

    @property
    def is_late(self) -> bool:
        """Whether it leaves an average under way."""
        return PHASES[self.kind][-1] == REDUCED


def round_ends(sync: RoundSync, step: int) -> tuple[RoundEnd, ...]:
    """Returns what follows a step, counted from 0: averages that arrive, and then those that leave or are used at
    once."""
    arriving, leaving = list[RoundEnd](), list[RoundEnd]()
    for fragment, since in _sent(sync, step + 1).items():
        if since == 0:
            leaving.append(RoundEnd(fragment, _leaving(sync, step + 1 == sync.steps)))
        elif since == sync.delay:
            arriving.append(RoundEnd(fragment, ARRIVED))
    return (*arriving, *leaving)


def under_way(sync: RoundSync, steps: int) -> Mapping[int, str]:
    """Returns what the averages arrive with that are under way after so many steps, by their fragment."""
    sent = _sent(sync, steps)
    if sync.age:
        return dict.fromkeys(sent, LATER)
    return {fragment: ARRIVED for fragment, since in sent.items() if since < sync.delay}


def _sent(sync: RoundSync, steps: int) -> Mapping[int, int]:
    """Returns how many of the steps so far there were since each fragment was sent, of those that were."""
    since = {one: (steps - sync.offset(one)) % sync.steps for one in range(sync.fragments)}
    return {one: count for one, count in since.items() if count < steps}


def _leaving(sync: RoundSync, is_first: bool) -> str:
    """Returns in which way the average of a round leaves."""
    if sync.delay:
        return SENT
    if not sync.age:
        return NOW
    return FIRST if is_first else LATER


def prove_ages(sync: RoundSync, workers: int) -> None:
    """Returns if every local step sees the outer parameters that its method says: those of the round before it, or one
    older; with a delay one older until the average of the round before arrives.

    Raises:
        zbench.step.proof.prove.StepError: it does not, which is a bug.
    """
    prove_step(read_step(rounds_text(sync, workers)))


def rounds_text(sync: RoundSync, workers: int, rounds: int = SHOWN) -> str:
    """Returns rounds as the text of a step: each trains, and the averages are used where the order of phases says. Of
    rounds in fragments it is one fragment's, as all are alike."""
    every = f"0-{workers - 1}" if workers > 1 else "0"
    homes = " ".join(map(str, range(workers)))
    layouts, templates, plays, updates = "", "", "", 0
    for round_ in range(rounds):
        in_two = sync.delay > 0 and round_ > 0
        more, trained = _IN_TWO if in_two else _AT_ONCE
        ones = " ".join(["1"] * workers)
        layouts += _LAYOUT.format(ones=ones, homes=homes, more=more.format(homes=homes), trained=trained)
        if in_two:
            templates += _beside(round_, every, workers)
            plays += f"play beside{round_} for layer 0, version {round_}\n"
            plays += f"play outer{updates} for layer 0, version {updates}\n"
            updates += 1
        templates += _round(round_, every, workers, (-min(sync.age, round_), in_two)) + _outer(round_, every, workers)
        plays += f"play round{round_} for layer 0, version {round_}\n"
        if UPDATED in PHASES[_leaving(sync, round_ == 0)]:
            plays += f"play outer{updates} for layer 0, version {updates}\n"
            updates += 1
    for late in range(updates, rounds):  # what is under way when the last round ends
        plays += f"play outer{late} for layer 0, version {late}\n"
    head = f"step of 0 layers on {workers} GPUs and 0 host memories\n{layouts}{templates}{plays}"
    return f"{head}begins p at {every}\nends p at {every}, version {rounds}\n"


def _beside(number: int, every: str, workers: int) -> str:
    """Returns the steps of a round beside which the average of the one before is under way."""
    lines = "".join(f"  compute: compute v[{at},0] at {at}, version -1\n" for at in range(workers))
    return (
        f"template beside{number} of layout {number}\n  makes v\n  needs p at {every}, version -1\n"
        f"  leaves p at {every}, version -1\n  leaves v[*,0] at home\n{lines}"
    )


def _round(number: int, every: str, workers: int, seen: tuple[int, bool]) -> str:
    """Returns the steps of a round, or those after the average has arrived. seen: the version of the outer parameters,
    and whether there were steps before."""
    version, goes_on = f", version {seen[0]}" if seen[0] else "", "  needs v[*,0] at home\n" if seen[1] else ""
    lines = [f"  compute: compute w[{at},0] at {at}{version}\n" for at in range(workers)]
    lines += [f"  compute: compute d[0,{at}] at {at}\n" for at in range(workers)]
    return (
        f"template round{number} of layout {number}\n  makes w d\n  needs p at {every}{version}\n{goes_on}"
        f"  leaves p at {every}{version}\n  leaves d[0] at {every}, count 1\n{''.join(lines)}"
    )


def _outer(number: int, every: str, workers: int) -> str:
    moves = "".join(f"  gradients: move d[0] {at} -> 0\n" for at in range(1, workers))
    gather = f"  parameters: gather p to {every}, version 1\n" if workers > 1 else ""
    return (
        f"template outer{number} of layout {number}\n  makes p\n  needs p at {every}\n"
        f"  needs d[0] at {every}, count 1\n  leaves p at {every}, version 1\n{moves}"
        f"  compute: compute p at 0\n{gather}"
    )
