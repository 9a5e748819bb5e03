"""Where the ranks of a fleet find each other: what an object on a rank needs for torch.distributed.

The same whether zbench.runtime.launch started the ranks or zbench.runtime.join found them. Imports torch only
when used.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from zbench.runtime.board import Board

if TYPE_CHECKING:
    import torch

    from zbench.desk.place import Place


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
        """A torch.distributed.Store: a connection of this rank's own."""
        return store_at(self.host, self.port, self.prefix)

    def device(self) -> "torch.device":
        """A GPU of this rank's own if there is CUDA, else the CPU.

        Raises:
            ValueError: there are GPUs, but fewer than ranks on this machine.
        """
        import torch

        if not torch.cuda.is_available():
            return torch.device("cpu")
        num_gpus = torch.cuda.device_count()
        if self.local_rank < num_gpus:
            return torch.device("cuda", self.local_rank)
        if self.may_be_bound and num_gpus == 1:
            return torch.device("cuda", 0)
        ranks = "more" if self.num_local is None else str(self.num_local)
        raise ValueError(
            f"this machine has {num_gpus} GPU{'s' if num_gpus > 1 else ''} for {ranks} ranks; each rank takes one "
            "of its own (CUDA_VISIBLE_DEVICES= hides them, and the ranks run on the CPU)"
        )

    def open(self) -> "torch.device":
        """Opens torch.distributed's default group: nccl if there is CUDA, else gloo. Returns the rank's device."""
        import torch
        import torch.distributed as dist

        store = self.store()  # from an emulated node it cannot be reached
        if self.place is not None:
            self.place.enter()
        device = self.device()
        is_cuda = device.type == "cuda"
        if is_cuda:
            torch.cuda.set_device(device)
        dist.init_process_group(
            "nccl" if is_cuda else "gloo",
            store=store,
            rank=self.rank,
            world_size=self.num_ranks,
            timeout=timedelta(seconds=self.seconds),
            device_id=device if is_cuda else None,
        )
        return device

    def close(self) -> None:
        """Ends what `open` opened, and all further groups."""
        import torch.distributed as dist

        if dist.is_initialized():
            dist.destroy_process_group()


def store_at(host: str, port: int, prefix: str, **options: Any) -> Any:
    """A TCPStore's client, or its server with is_master=True; keys begin with `prefix`. A server listens at once.

    Raises:
        torch.distributed.DistError: nobody serves there, or the port is taken.
    """
    import torch.distributed as dist

    options = {"is_master": False, "wait_for_workers": False, **options}
    store = dist.TCPStore(host, port, **options)  # type: ignore[attr-defined]
    return dist.PrefixStore(prefix, store)  # type: ignore[attr-defined]
