"""python -m zbench.speed --out results/gpu/speed.jsonl: how fast one GPU trains on packed variable-length batches.

Attention kernels on the same batches; a ring's step against one causal call of its area; training steps of as many
layers as fit, with the profile that says where their time goes. Steps are those of a rank of executor=torch_attention,
which compiles elementwise work and has a fused optimizer; whole steps (executor=torch) have neither, and are measured
by python -m zbench.predicted. What the file holds already, of the same sources, device and torch, is not measured
again. Exit codes: 0; 1 something failed; 2 bad input, such as no CUDA device; 130 stopped by Ctrl-C.
"""

import sys

from zbench.console.command import Parser, known_words, loading, ran
from zbench.describe.units import with_noun

with loading(__name__):
    import gc
    import os
    from collections.abc import Mapping, Sequence
    from dataclasses import asdict, dataclass
    from pathlib import Path
    from typing import TYPE_CHECKING, Any

    from hydra import compose, initialize_config_dir

    from zbench import CONF
    from zbench.console.extras import need
    from zbench.correctness.ledger import Ledger
    from zbench.record.fingerprint import source_digest
    from zbench.record.flops import Facts
    from zbench.run.parts import Parts
    from zbench.run.settings import Settings
    from zbench.runtime.job.footprint import LEVELS
    from zbench.speed.table import MAIN, agreeing, speed_table

if TYPE_CHECKING:
    from zbench.speed.kernels import KernelSubject

PARTS = ("attention", "ring", "step", "deep")
WORKLOADS = {
    "longtail_32k": ["workload=longtail_32k"],
    "fixed_4k": ["workload=fixed", "workload.length=4096"],
    "fixed_32k": ["workload=fixed", "workload.length=32768"],
    "wikipedia": ["workload=wikipedia"],
    "prolong64k": ["workload=prolong64k"],
    "pystdlib": ["workload=pystdlib"],
}
BATCHES = ("longtail_32k", "fixed_4k", "fixed_32k")  # of which attention kernels are compared
DEEP = MAIN  # of which as many layers are trained as fit at all


@dataclass(frozen=True, slots=True)
class SpeedSize:
    """The size of what is measured. tokens: of a batch. steps: that count. chunk: a ring's, tokens. workloads: of
    WORKLOADS."""

    model: str = "llama3_8b"
    tokens: int = 65536
    steps: int = 3
    chunk: int = 8192
    workloads: tuple[str, ...] = tuple(WORKLOADS)


TINY = SpeedSize("tiny", 512, 1, 64, ("longtail_32k",))


def main() -> int:
    """Runs the command and returns its exit code."""
    return ran(_main, "what was measured is in the file, and the same command goes on")


def _main() -> int:
    parser = Parser(prog="python -m zbench.speed", description="How fast one GPU trains.")
    parser.add_argument("--out", type=Path, default=Path("results/speed.jsonl"), help="measurements, as JSON lines")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: to try the path (with --tiny)")
    parser.add_argument("--tiny", action="store_true", help="a small model and batch: seconds, also on a CPU")
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)} (default all)")
    parser.add_argument("--cluster", default="h200_4x8", help="of conf/cluster: whose device's peak and memory count")
    parser.add_argument("--kernel", default=None, help="of attention; left out, the fastest that was measured here")
    asked = parser.parse_args()
    need("torch", "python -m zbench.speed")
    parts = known_words("--parts", asked.parts, PARTS)
    if asked.device == "cpu" and not asked.tiny:
        raise ValueError("--device is cpu, which takes --tiny: it tries the path; a step of the whole size takes hours")
    size = TINY if asked.tiny else SpeedSize()
    also = {"size": f"{size.model}, {size.tokens} tokens", "cluster": asked.cluster, "asked": asked.kernel or "fastest"}
    session = Session(size, asked.cluster, open_ledger(asked.device, asked.out, also))
    if "attention" in parts:
        session.attention()
    if "ring" in parts:
        session.ring(asked.kernel)
    if "step" in parts:
        session.steps("step", session.size.workloads, LEVELS[:1], asked.kernel)
    if "deep" in parts:
        session.steps("deep", [DEEP], LEVELS, asked.kernel)
    print(speed_table(list(session.ledger.found.values())))
    return 1 if any(line["failed"] for line in session.ledger.found.values()) else 0


def open_ledger(device: str, out: Path, also: Mapping[str, str]) -> Ledger:
    """Opens the file of findings. also: what else measurements depend on.

    Raises:
        ValueError: cuda is asked for, and there is none.
    """
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    # Sequences' lengths differ from batch to batch: memory in whole segments would be cut into pieces that fit none.
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    import torch

    from zbench.runtime.processes.host import cpu_name

    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "--device is cuda; torch finds no CUDA device on this machine (--device cpu --tiny tries the path on a CPU)"
        )
    name = torch.cuda.get_device_name() if device == "cuda" else cpu_name()
    return Ledger(out, {**also, "sources": source_digest(), "device": name, "torch": torch.__version__})


@dataclass(frozen=True, slots=True)
class Session:
    """A session of measurements: what is measured, and where it is written. cluster: of conf/cluster, one GPU of it."""

    size: SpeedSize
    cluster: str
    ledger: Ledger

    def attention(self) -> None:
        """Measures the attention kernels on every batch that is not in the file yet."""
        from zbench.speed.kernels import on_batch

        for name in BATCHES:
            case = f"attention {name}"
            if name in self.size.workloads and not self.ledger.has(case):
                _tell(case)
                lengths = self.parts(name).workload.batch(0).lengths.tolist()
                kernels = on_batch(self._subject(), lengths)
                self.ledger.add(case, False, kernels=kernels, sequences=len(lengths), longest=max(lengths))
                restart_if_broken()

    def ring(self, kernel: str | None) -> None:
        """Measures a ring's step, unless it is in the file."""
        from zbench.speed.kernels import ring_step

        subject = self._subject()
        rivals = subject.rivals()
        if not rivals:
            raise ValueError(
                f"--parts has ring; {subject.device} has no attention kernel but matmul for a head dimension of "
                f"{subject.model.head_dim} in {subject.dtype}"
            )
        name = self._kernel(kernel) or next(iter(rivals))
        if name not in rivals:
            raise ValueError(f"--kernel is {name!r}; here there are {', '.join(rivals)}")
        case = f"ring step, {name}"
        if not self.ledger.has(case):
            _tell(case)
            self.ledger.add(case, False, kernel=name, **ring_step(subject, rivals[name], self.size.chunk))

    def steps(self, part: str, workloads: Sequence[str], levels: tuple[str, ...], kernel: str | None) -> None:
        """Trains as many layers as are predicted to fit with one of the levels; one fewer where they do not."""
        import torch

        from zbench.runtime.processes.host import memory_bytes
        from zbench.speed.training import most_layers

        wanted = [name for name in workloads if not self.ledger.has(f"{part} {name}")]
        if not wanted:
            return
        parts, device = self.parts(wanted[0]), self._subject().device
        capacity = memory_bytes(device, parts.cluster.device.memory_bytes)
        layers = most_layers(parts.cost, self.size.tokens, capacity, levels)
        if layers == 0:
            raise ValueError(f"cluster is {self.cluster}; not one layer of {self.size.model} fits its device's memory")
        while layers:
            short = f"{part} with {with_noun(layers, 'layer')}"
            if short not in self.ledger.found:
                try:
                    self._train(part, wanted, layers, levels, self._kernel(kernel))
                    return
                except torch.OutOfMemoryError as error:
                    self.ledger.add(short, False, out_of_memory=str(error).splitlines()[0])
                gc.collect()  # of frames that the error held
                torch.cuda.empty_cache()
            layers -= 1

    def _train(
        self, part: str, workloads: Sequence[str], layers: int, levels: tuple[str, ...], kernel: str | None
    ) -> None:
        from zbench.speed.training import train, trainer_of

        first = self.parts(workloads[0], layers)
        _tell(f"{part}: {with_noun(layers, 'layer')}")
        with trainer_of(first.cost, first.workload, kernel or "auto") as trainer:
            for name in workloads:
                if not self.ledger.has(f"{part} {name}"):
                    _tell(f"{part} {name}")
                    parts = self.parts(name, layers)
                    found = train(trainer, parts.workload, Facts.of(parts.facts()), self.size.steps, levels)
                    self.ledger.add(f"{part} {name}", False, **asdict(found))

    def _kernel(self, asked: str | None) -> str | None:
        """Returns the one asked for, or the fastest that agreed with the others on a measured batch; None where none
        was."""
        if asked is not None:
            return asked
        lines = [self.ledger.found.get(f"attention {name}") for name in BATCHES]
        kernels: dict[str, Any] = next((line["kernels"] for line in lines if line is not None), {})
        ours = self._subject().rivals()
        seconds = {name: sum(kernels[name]["seconds"]) for name in agreeing(kernels) if name in ours}
        return min(seconds, key=seconds.__getitem__) if seconds else None

    def _subject(self) -> "KernelSubject":
        import torch

        from zbench.speed.kernels import KernelSubject

        return KernelSubject(self.parts(BATCHES[0]).model, torch.device("cuda" if torch.cuda.is_available() else "cpu"))

    def parts(self, workload: str, layers: int | None = None) -> Parts:
        """Returns one GPU of the cluster, the model with that many layers, and batches for it."""
        one = ["cluster.num_nodes=1", "cluster.gpus_per_node=1", "cluster.nics_per_node=1", "tracker=none"]
        with initialize_config_dir(version_base="1.3", config_dir=str(CONF)):
            config = compose(
                "config",
                [
                    f"cluster={self.cluster}",
                    f"model={self.size.model}",
                    f"tokens_per_gpu={self.size.tokens}",
                    *one,
                    *WORKLOADS[workload],
                    *([] if layers is None else [f"model.num_layers={layers}"]),
                ],
            )
        return Parts.of(config, Settings.of(config))


def restart_if_broken() -> None:
    """Starts a new process where a kernel wrote where it may not, and so left one that can use the GPU no more."""
    import torch

    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    except RuntimeError as error:
        _tell(f"a kernel broke the GPU's context ({str(error).splitlines()[0]}); going on in a new process")
        os.execv(sys.executable, [sys.executable, "-m", "zbench.speed", *sys.argv[1:]])


def _tell(what: str) -> None:
    print(f"zbench: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
