"""python -m zbench.correctness rounds: every system with every choice of conf/sync, as a run makes it. An edge.

On a described cluster of four GPUs each pair plans hard batches, whose steps and ends of rounds are proven and played
(executor=simulated), or is refused in one sentence that names a key and its value. With --out what was stopped goes on
where it was. Exit codes: 0; 1 something is not as it should be; 2 bad input; 130 stopped by Ctrl-C, with the table so
far.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path

from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import DictConfig

from zbench import CONF
from zbench.console.command import Parser
from zbench.console.meter import Meter
from zbench.console.signals import stop_in
from zbench.correctness.adversarial import KINDS, adversarial_batches
from zbench.correctness.ledger import Finding, Ledger
from zbench.cost.job import make_cost, worker_gpus
from zbench.describe.expert_schedule import AUTO, PIPEMOE, USUAL_EXPERTS, Experts
from zbench.describe.sync import EVERY_STEP, NODE, STREAMING_DILOCO, WORKERS, RoundSync
from zbench.describe.units import with_noun
from zbench.record.fingerprint import source_digest
from zbench.run.choices import choices, missing_package
from zbench.run.system import make_system
from zbench.run.target import make_model
from zbench.simulated.executor import Simulated

STEPS = 2  # of a round; KINDS are three rounds
TOKENS = 512  # of a GPU
CLUSTER = (
    "model=tiny",
    "cluster=a800_4x8",
    "cluster.num_nodes=2",
    "cluster.gpus_per_node=2",
    "cluster.nics_per_node=2",
)
EXPERTS = (
    "model.num_experts=4",
    "model.experts_per_token=2",
    "+model.dense_layers=1",
    "+model.dense_ffn_hidden=192",
)
HOSTS = ("recompute=selective", "memory.offload_layers=auto")
STATE = ("sharding=zero1", "memory.optimizer_layers=1")
# Two groups of a node, and two nodes of a worker.
GROUPS = ("cluster.gpus_per_node=4", "parallel.tensor_parallel=2")
STAGES = ("cluster.num_nodes=4", "model.num_layers=4", "model.micro_batches=2", "parallel.pipeline_parallel=2")
_SENTENCE = re.compile(r"[a-z][\w.]* is [^\n]+[;,] [^\n]+")


@dataclass(frozen=True, slots=True)
class RoundVerdict:
    """The verdict on a system with a choice of conf/sync and a kind of workers. played: steps; refused: the sentence
    with which it is, "" if it is not; skipped: the package that is not installed; fault: what is wrong, "" if
    nothing."""

    system: str
    sync: str
    worker: str
    played: int = 0
    refused: str = ""
    skipped: str = ""
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.system} with {self.sync}, a {self.worker} a worker"


def main(arguments: Sequence[str]) -> int:
    """Runs the command with the words that follow its name; returns the exit code."""
    parser = Parser(prog="python -m zbench.correctness rounds", description="Every system with every choice of sync.")
    parser.add_argument("--systems", help="names, comma-separated (default all of conf/system)")
    parser.add_argument("--all", action="store_true", help="ranks and nodes as workers of each pair, not one in turn")
    parser.add_argument(
        "--experts",
        action="store_true",
        help="a model with four experts in all layers but the first, over a node's GPUs, in chunks that are chosen",
    )
    parser.add_argument("--hosts", action="store_true", help="activations of as many layers on hosts as have to be")
    parser.add_argument("--optimizer", action="store_true", help="optimizer state of some layers on hosts, ZeRO-1")
    parser.add_argument("--groups", action="store_true", help="tensor-parallel groups of two of a node's four GPUs")
    parser.add_argument("--stages", action="store_true", help="two stages, on two nodes of each worker; nodes alone")
    parser.add_argument("--out", type=Path, help="keep what was found in this file, and go on from there")
    parser.add_argument("--markdown", action="store_true", help="a table of systems by choices, for a document")
    asked = parser.parse_args(list(arguments))
    names = list(choices("system")) if asked.systems is None else asked.systems.split(",")
    for name in (one for one in names if one not in choices("system")):
        raise ValueError(f"--systems has {name!r}; it takes names of {', '.join(choices('system'))}")
    settings = {name: getattr(asked, name) for name in ("experts", "hosts", "optimizer", "groups", "stages")}
    ledger = None if asked.out is None else Ledger(asked.out, {"sources": source_digest(), **settings})
    found: list[RoundVerdict] = []
    try:
        checked = RoundCombinations(names, **settings)
        every = checked.combinations(asked.all)
        with Meter(len(every), unit="combination") as meter:
            for one in every:
                found.append(_found_before(ledger, *one) or checked.check(*one))
                if ledger is not None and not ledger.has(str(found[-1])):
                    ledger.add(str(found[-1]), bool(found[-1].fault), **asdict(found[-1]))
                meter.show("rounds", len(found))
    finally:  # Ctrl-C, too, leaves what was finished
        if asked.markdown:
            _print_table(found)
        _print(found)
    return 1 if any(one.fault for one in found) or not found else 0


def _found_before(ledger: Ledger | None, system: str, sync: str, worker: str) -> RoundVerdict | None:
    """Returns the verdict that is kept of a combination; None where there is none, or it failed."""
    asked = RoundVerdict(system, sync, worker)
    if ledger is None or not ledger.has(str(asked)):
        return None
    kept: Finding = ledger.found[str(asked)]
    return replace(asked, **{name: kept[name] for name in ("played", "refused", "skipped", "fault")})


class RoundCombinations:
    """Reads conf/ once and makes a run's parts from it. systems: names of conf/system. experts: whether the model has
    some, which workers with several GPUs have on these. hosts: whether activations wait in host memory. optimizer:
    whether the optimizer state of some layers, and of the head, is there. groups: whether GPUs are tensor-parallel
    groups. stages: whether workers have several."""

    def __init__(
        self,
        systems: Sequence[str],
        experts: bool = False,
        hosts: bool = False,
        optimizer: bool = False,
        groups: bool = False,
        stages: bool = False,
    ) -> None:
        given = [*CLUSTER, *(EXPERTS if experts else ()), *(HOSTS if hosts else ()), *(STATE if optimizer else ())]
        given += [*(GROUPS if groups else ()), *(STAGES if stages else ())]
        words = [word for word, is_there in (("activations", hosts), ("optimizer", optimizer)) if is_there]
        given += [f"memory.offload={'_and_'.join(words)}"] if words else []
        self.experts = experts
        with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
            self.systems = {name: compose("config", [f"system={name}", *given]) for name in systems}
            configs = {name: compose("config", [f"sync={name}"]).sync for name in choices("sync")}
        self.syncs: Mapping[tuple[str, str], DictConfig] = {
            (name, worker): _short(one, worker) for name, one in configs.items() for worker in WORKERS
        }
        self.workers = (NODE,) if stages else WORKERS

    def combinations(self, every: bool = False) -> list[tuple[str, str, str]]:
        """Lists every system with every choice, with each kind of workers or with one of them in turn."""
        pairs = product(enumerate(self.systems), enumerate(choices("sync")))
        return [
            (system, name, worker)
            for (row, system), (column, name) in pairs
            for worker in (self.workers if every else self.workers[(row + column) % len(self.workers) :][:1])
        ]

    def check(self, system: str, name: str, worker: str, kinds: Sequence[str] = KINDS) -> RoundVerdict:
        """Plays a system's rounds of a batch of each of `kinds`, and returns the verdict."""
        verdict = RoundVerdict(system, name, worker)
        if package := missing_package(system):
            return replace(verdict, skipped=package)
        config = self.systems[system].copy()
        config.sync = self.syncs[name, worker]
        sync: RoundSync = instantiate(config.sync)
        cost = make_cost(instantiate(config.cluster, _convert_="all"), make_model(config))
        played = 0
        try:
            degree = worker_gpus(cost, sync) // cost.pp if self.experts else 1
            chunks = Experts(PIPEMOE, AUTO) if degree > 1 else USUAL_EXPERTS
            made = make_system(config, cost)
            executor = Simulated(cost, sync=sync, expert_parallel=degree, experts=chunks)
            executor.start()
            batches = adversarial_batches(cost, TOKENS, 0)
            for step, kind in enumerate(kinds):
                batch = replace(batches[kind], step=step)
                one = executor.step(batch, tuple(made.plan(batch)))
                played += 1
                if not 0 < one.seconds < float("inf"):
                    return replace(verdict, played=played, fault=f"step {batch.step} takes {one.seconds} seconds")
        except ValueError as error:
            if _SENTENCE.fullmatch(str(error)) and not played:
                return replace(verdict, refused=str(error))
            return replace(verdict, played=played, fault=f"after {played} steps {error}")
        except Exception as error:  # whatever a system raises is what is looked for
            if stop_in(error):
                raise KeyboardInterrupt from error
            return replace(verdict, played=played, fault=f"{type(error).__name__}: {error}")
        return replace(verdict, played=played)


def _short(sync: DictConfig, worker: str) -> DictConfig:
    """Returns a choice with rounds of few steps, which a run of the batches can have."""
    found = sync.copy()
    if found.method != EVERY_STEP:
        found.steps, found.worker = STEPS, worker
    if found.method == STREAMING_DILOCO:
        found.fragments, found.delay = STEPS, STEPS - 1
    return found


def _print_table(found: Sequence[RoundVerdict]) -> None:
    """Prints systems by choices of sync: the batches that each kind of workers played, or what became of them."""
    cells: dict[str, dict[str, list[str]]] = {}
    for one in found:
        became = "FAILED" if one.fault else "refused" if one.refused else "skipped" if one.skipped else str(one.played)
        cells.setdefault(one.system, {}).setdefault(one.sync, []).append(f"{became}, {one.worker}")
    titles = list(dict.fromkeys(one.sync for one in found))
    rows = [[system, *("; ".join(row.get(name, [])) for name in titles)] for system, row in cells.items()]
    for row in (["", *titles], ["---"] * (1 + len(titles)), *rows):
        print(f"| {' | '.join(row)} |")
    print()


def _print(found: Sequence[RoundVerdict]) -> None:
    """Prints refusals with the combinations that they are of, faults, and a last line that counts all."""
    refused: dict[str, list[str]] = {}
    for one in found:
        if one.refused:
            refused.setdefault(one.refused, []).append(f"{one.system} with {one.sync} ({one.worker})")
    for sentence, of in refused.items():
        print(f"refused, {', '.join(of)}: {sentence}")
    for package in sorted({one.skipped for one in found} - {""}):
        systems = sorted({one.system for one in found if one.skipped == package})
        print(f"skipped, {', '.join(systems)}: {package} is not installed")
    faults = [one for one in found if one.fault]
    for one in faults:
        print(f"FAILED {one}: {one.fault}")
    played = sum(one.played == len(KINDS) for one in found)
    print(
        f"{with_noun(len(found), 'combination')}, {played} played with {len(KINDS)} batches each, "
        f"{sum(map(len, refused.values()))} refused, {sum(bool(one.skipped) for one in found)} skipped, "
        f"{len(faults)} of them FAILED"
    )
