"""The place where the ranks of a fleet find each other: what an object on a rank needs for torch.distributed.

The same whether zbench.runtime.processes.launch started the ranks or zbench.runtime.processes.join found them. Imports
torch only when used.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from zbench.describe.units import with_noun
from zbench.runtime.processes.board import Board

if TYPE_CHECKING:
    import torch

    from zbench.runtime.network.place import Place


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """A rank's way to the others.

    num_local: ranks on this machine, None where unknown. host, port: of a store (TCPStore) that is up. prefix: of
    this fleet's keys in it. seconds: what a collective may take before torch gives up; longer than the fleet's own
    patience, so that the fleet, which knows more, speaks first. may_be_bound: each process may see only its own
    GPU (Slurm's --gpus-per-task).
    board: where the rank says what it is doing. place: where on an emulated cluster it is; None: on the machine itself.
    """

    rank: int
    num_ranks: int
    local_rank: int
    num_local: int | None
    host: str
    port: int
    prefix: str
    seconds: float
    may_be_bound: bool
    board: Board
    place: "Place | None" = None

    def store(self) -> Any:
        """Opens a torch.distributed.Store, a connection of this rank's own."""
        return store_at(self.host, self.port, self.prefix)

    def device(self, asked: str = "auto") -> "torch.device":
        """Returns the rank's device, a GPU if there is CUDA, else the CPU; asked: of zbench.runtime.job.job.DEVICES.

        Ranks of one machine that has fewer GPUs than ranks share them.

        Raises:
            ValueError: "cuda" was asked for, and there is none; or this machine, one of several, has too few GPUs.
        """
        import torch

        if asked == "cpu":
            return torch.device("cpu")
        if not torch.cuda.is_available():
            if asked == "cuda":
                raise ValueError("executor.device is 'cuda'; torch finds no CUDA device on this machine")
            return torch.device("cpu")
        num_gpus = torch.cuda.device_count()
        if self.local_rank < num_gpus:
            return torch.device("cuda", self.local_rank)
        if self._is_bound(num_gpus):
            return torch.device("cuda", 0)
        if self._share(num_gpus):
            return torch.device("cuda", self.local_rank % num_gpus)
        raise ValueError(
            f"this machine has {with_noun(num_gpus, 'GPU')} for more ranks; only ranks that are all on "
            "one machine can share a GPU (executor.device=cpu runs them on the CPU)"
        )

    def sharing(self, device: "torch.device") -> int:
        """Returns how many ranks share the GPU `device`, this one's; 1 on a CPU."""
        import torch

        if device.type != "cuda" or not self._share(num_gpus := torch.cuda.device_count()):
            return 1
        return len(range(self.local_rank % num_gpus, self.num_ranks, num_gpus))

    def open(self, asked: str = "auto") -> "torch.device":
        """Opens torch.distributed's default group and returns the rank's device, as device(asked). Of a rank with
        several models the first one opens it.

        nccl where each rank has a GPU of its own; gloo on the CPU, and where ranks share GPUs, which NCCL refuses
        ("Duplicate GPU detected", since 2.5): all ranks of a machine find the same.
        """
        import torch
        import torch.distributed as dist

        if dist.is_initialized():
            return self.device(asked)
        store = self.store()  # from an emulated node it cannot be reached
        if self.place is not None:
            self.place.enter()
        device = self.device(asked)
        is_cuda = device.type == "cuda"
        if is_cuda:
            torch.cuda.set_device(device)
        nccl = is_cuda and not self._share(torch.cuda.device_count())
        dist.init_process_group(
            "nccl" if nccl else "gloo",
            store=store,
            rank=self.rank,
            world_size=self.num_ranks,
            timeout=timedelta(seconds=self.seconds),
            device_id=device if nccl else None,
        )
        return device

    def _is_bound(self, num_gpus: int) -> bool:
        """Returns whether the one GPU that this process sees is its own."""
        return self.may_be_bound and num_gpus == 1

    def _share(self, num_gpus: int) -> bool:
        """Returns whether ranks share GPUs: the same on all ranks, as they are all on one machine."""
        return self.num_local == self.num_ranks > num_gpus and not self._is_bound(num_gpus)

    def close(self) -> None:
        """Ends what `open` opened, and all further groups."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


def store_at(host: str, port: int, prefix: str, **options: Any) -> Any:
    """Opens a TCPStore's client, or its server with is_master=True; keys begin with `prefix`. A server listens at once.

    Raises:
        torch.distributed.DistError: nobody serves there, or the port is taken.
    """
    import torch.distributed as dist

    options = {"is_master": False, "wait_for_workers": False, **options}
    store = dist.TCPStore(host, port, **options)  # type: ignore[attr-defined]
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]
