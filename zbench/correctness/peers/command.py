"""python -m zbench.correctness peers: trains zbench's step with DDP, FSDP2 and DeepSpeed, and compares. An edge.

The same model, parameters and sequences, as data parallelism over gloo processes of this machine: losses, gradients and
updated parameters with those of one dense process, and bytes that processes send for parameters and for gradients,
zbench's as counted at its messages and a peer's at its collectives. Every byte by which they differ has a reason
(zbench.correctness.peers.differences).
Exit codes: 0; 1 something differs, or has no reason; 2 bad input; 130 stopped by Ctrl-C, with the table so far.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from rich.console import Console
from rich.table import Table

from zbench.console.command import Parser, known_words
from zbench.console.extras import EXTRAS, installed, need
from zbench.console.meter import Meter
from zbench.correctness.peers.cases import (
    DEGREES,
    FAMILIES,
    GRADIENTS,
    LIMITS,
    OTHER,
    PAIR,
    PARAMETERS,
    PEERS,
    Peer,
    Trained,
    step_of,
    training_of,
)
from zbench.correctness.peers.differences import reasons
from zbench.correctness.steps.cases import Executed
from zbench.correctness.steps.choices import MODEL
from zbench.describe.checks import check_whole_number
from zbench.runtime.processes.fleet import RankFailed
from zbench.runtime.processes.launch import LocalFleet
from zbench.step.byte_law import stated_bytes
from zbench.step.passes.parameters.zero import STAGES
from zbench.step.proof.prove import prove_step
from zbench.step.template import Step

MOST_RANKS = 8  # processes on one machine, and rows of the smallest parameters
RANK, DEEPSPEED_RANK = (f"zbench.correctness.peers.rank:{name}" for name in ("PeerRank", "DeepSpeedRank"))
TITLES = (
    "ZeRO",
    "by",
    "bits",
    "loss",
    "gradients",
    "updated",
    "parameters, bytes",
    "",
    "gradients, bytes",
    "",
    "other",
    "why",
)
LEFT = (0, 1, len(TITLES) - 1)  # columns of words


@dataclass(frozen=True)
class PeerVerdict:
    """The verdict on a peer, or on zbench's own step. by: who trained. sent: bytes of all processes together, by what
    they are of; beside: zbench's. differences: the largest to one dense process, of loss, gradients and updated
    parameters; why: of bytes; fault: what is wrong, "" if nothing."""

    sharding: str
    by: str
    element_bytes: int
    differences: tuple[float, ...]
    sent: dict[str, int]
    beside: dict[str, int]
    why: str
    fault: str

    def row(self) -> list[str]:
        """Returns the row of a table."""
        cells = [self.sharding, self.by, str(8 * self.element_bytes), *(f"{one:.0e}" for one in self.differences)]
        for of in (PARAMETERS, GRADIENTS):
            ratio = f"{self.sent[of] / self.beside[of]:.3f}" if self.sent and self.beside.get(of) else ""
            cells += [f"{self.sent[of]:,}" if self.sent else "", ratio]
        return [*cells, f"{self.sent.get(OTHER, 0):,}", "FAILED" if self.fault else self.why]


def main(arguments: Sequence[str]) -> int:
    """Runs the command with the words that follow its name; returns the exit code."""
    parser = Parser(prog="python -m zbench.correctness peers", description="Data parallelism beside other projects'.")
    parser.add_argument("--ranks", type=int, default=4, help="processes (default 4)")
    parser.add_argument("--peers", help=f"of {', '.join(FAMILIES)} (default all that are installed)")
    parser.add_argument("--seed", type=int, default=0, help="of the words and the parameters (default 0)")
    parser.add_argument("--markdown", action="store_true", help="the table for a document")
    asked = parser.parse_args(list(arguments))
    check_whole_number("--ranks", asked.ranks, 2, MOST_RANKS)
    check_whole_number("--seed", asked.seed, 0)
    families = _families(asked.peers)
    pairs = asked.ranks % 2 == 0 and asked.ranks > PAIR
    chosen = [peer for peer in PEERS if peer.family in families and (pairs or peer.sharding not in DEGREES)]
    found: list[PeerVerdict] = []
    try:
        own = {(peer.sharding, peer.element_bytes) for peer in chosen}
        with Meter(len(chosen) + len(own), unit="training") as meter:
            for verdict in beside_peers(chosen, asked.ranks, asked.seed):
                found.append(verdict)
                meter.show("peers", len(found))
    finally:  # Ctrl-C, too, leaves the table of what was finished
        _print(found, asked.markdown, [one for one in FAMILIES if asked.peers is None and one not in families])
    return 1 if any(one.fault for one in found) or not found else 0


def _families(asked: str | None) -> list[str]:
    """Returns the peers that are asked for; where none are, those that are installed."""
    need("torch", "correctness peers")
    if asked is None:
        return [one for one, package in FAMILIES.items() if installed(package)]
    names = known_words("--peers", asked, FAMILIES)
    for name in names:
        need(FAMILIES[name], f"--peers {name}")
    return names


def beside_peers(peers: Sequence[Peer], ranks: int, seed: int) -> Iterator[PeerVerdict]:
    """Trains with every peer on the same processes, after one that fails on fresh ones, and before it with zbench where
    that has not trained so; yields verdicts."""
    own: dict[tuple[str, int], PeerVerdict] = {}
    target = DEEPSPEED_RANK if any(peer.family == "deepspeed" for peer in peers) else RANK
    left = list(peers)
    while left:
        with LocalFleet(ranks, target, timeout=120) as fleet:
            while left:
                peer = left.pop(0)
                key = (peer.sharding, peer.element_bytes)
                trains = "zbench"
                try:
                    if key not in own:
                        case = step_of(*key, ranks, seed)
                        prove_step(case.step)
                        own[key] = judged_own(*key, fleet.call("run", case), case.step)
                        yield own[key]
                    trains = str(peer)
                    found = fleet.call("train", training_of(peer, ranks, seed))
                except RankFailed as error:
                    yield _failed(peer, trains, str(error))
                    break
                yield judged_peer(peer, found, own[key].sent)


def _failed(peer: Peer, trains: str, fault: str) -> PeerVerdict:
    """Returns the verdict on what failed, a peer or zbench beside it, so that nothing was trained."""
    return PeerVerdict(peer.sharding, trains, peer.element_bytes, (float("nan"),) * 3, {}, {}, "", fault)


def judged_own(sharding: str, element_bytes: int, found: Sequence[Executed], step: Step) -> PeerVerdict:
    """Compares what zbench's executor came to with one dense process, and its bytes with what the step says."""
    losses = [abs(one.loss / one.wanted_loss - 1) for one in found if one.loss is not None] or [float("inf")]
    worst = (_largest(losses), *(_largest([getattr(one, of) for one in found]) for of in ("gradients", "parameters")))
    faults, stated = _too_far(worst, element_bytes), stated_bytes(step)
    for at, one in enumerate(found):
        if dict(one.bytes) != stated[at]:
            faults.append(f"process {at} has (sent, received) {dict(one.bytes)}; the step says {stated[at]}")
    sent = {of: sum(one.bytes.get(of, (0, 0))[0] for one in found) for of in (PARAMETERS, GRADIENTS)}
    loss = (len(found) - 1) * step.layouts[0].tensors[step.layouts[0].number["loss"]].unit
    sent |= {GRADIENTS: sent[GRADIENTS] - loss, OTHER: loss}  # it is added up in the same queue
    busiest = max(sum(size for size, _ in one.bytes.values()) for one in found)
    share = f"the busiest process sends {busiest / (sum(sent.values()) / len(found)):.3f} of the mean; other: the loss"
    return PeerVerdict(sharding, "zbench", element_bytes, worst, sent, {}, share, "; ".join(faults))


def judged_peer(peer: Peer, found: Sequence[Trained], own: dict[str, int]) -> PeerVerdict:
    """Compares what a peer came to with one dense process, and its bytes with zbench's and the reasons why they differ.
    own: zbench's, of all processes together."""
    worst = tuple(_largest([getattr(one, of) for one in found]) for of in ("loss", "gradients", "parameters"))
    faults = _too_far(worst, peer.element_bytes)
    sent = {PARAMETERS: 0, GRADIENTS: 0, **found[0].sent[-1]}
    if any(dict(one.sent[-1]) != dict(found[0].sent[-1]) for one in found):
        faults.append("processes have counted different bytes")
    why = reasons(peer, MODEL, len(found))
    for of in (PARAMETERS, GRADIENTS):
        if left := sent[of] - own[of] - sum(one.bytes for one in why if one.of == of):
            faults.append(f"{left:+,} bytes of {of} have no reason")
    told = "; ".join(map(str, why))
    return PeerVerdict(peer.sharding, str(peer), peer.element_bytes, worst, sent, own, told, "; ".join(faults))


def _too_far(worst: tuple[float, ...], element_bytes: int) -> list[str]:
    """Says which of the differences of loss, gradients and parameters are too large."""
    limit, names = LIMITS[element_bytes], ("losses", "gradients", "parameters")
    return [
        f"the {name} differ by {off:.1e}, above {limit:g}"
        for name, off in zip(names, worst, strict=True)
        if not off < limit
    ]


def _largest(values: Sequence[float]) -> float:
    """Returns the largest number, and what is none where there is such."""
    return float(np.max(values))


def _print(found: Sequence[PeerVerdict], markdown: bool, missing: Sequence[str]) -> None:
    """Prints the table, then failures, what is not installed, and a last line that counts."""
    rows = sorted(found, key=lambda one: (-one.element_bytes, (*STAGES, *DEGREES).index(one.sharding)))
    if markdown:
        for row in (
            TITLES,
            ["---" if at in LEFT else "---:" for at in range(len(TITLES))],
            *(one.row() for one in rows),
        ):
            print(f"| {' | '.join(row)} |")
    else:
        table = Table(title="largest relative differences to one dense process; bytes of a step, and over zbench's")
        for at, name in enumerate(TITLES):
            table.add_column(name, justify="left" if at in LEFT else "right")
        for one in rows:
            table.add_row(*one.row())
        Console(width=200).print(table)
    failed = [one for one in found if one.fault]
    for one in failed:
        print(f"FAILED {one.by}, ZeRO {one.sharding}: {one.fault}")
    for family in missing:
        package = FAMILIES[family]
        print(f"not run: {family}, as {package} is not installed: pip install 'zbench[{EXTRAS[package]}]'")
    print(f"{len(found)} kinds of training compared, {len(failed)} of them FAILED")
