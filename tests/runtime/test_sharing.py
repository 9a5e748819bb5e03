"""Ranks that share a GPU: which device and backend a rank takes; messages through host memory, here between CPUs."""

import pytest
import torch
import torch.distributed as dist

from tests.helpers.oracles import small
from tests.helpers.variants import SYSTEMS
from tests.runtime.transport.test_transport_phases import LENGTHS, check, plans, ranks
from zbench.desk.attention_executor import DeskAttention
from zbench.runtime.processes.board import SLOT_BYTES, Board
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.workloads.fixed import Fixed


def rank(local: int, of: int = 4, everywhere: int | None = None, bound: bool = False) -> Rendezvous:
    board = Board(bytearray(SLOT_BYTES), 0)
    return Rendezvous(local, everywhere or of, local, of, "127.0.0.1", 1, "test", 60.0, bound, board)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, object]]:
    """(backend, device_id) of groups that would have been opened, on a machine with CUDA."""
    found: list[tuple[str, object]] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(Rendezvous, "store", lambda self: None)
    monkeypatch.setattr(
        dist, "init_process_group", lambda backend, device_id, **rest: found.append((backend, device_id))
    )
    return found


def gpus(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def test_ranks_with_a_gpu_each_take_nccl(monkeypatch: pytest.MonkeyPatch, opened: list[tuple[str, object]]) -> None:
    gpus(monkeypatch, 4)
    devices = [rank(local).open() for local in range(4)]
    assert devices == [torch.device("cuda", local) for local in range(4)]
    assert opened == [("nccl", device) for device in devices]
    assert [rank(local).sharing(devices[local]) for local in range(4)] == [1] * 4


@pytest.mark.parametrize(("count", "sharing"), [(1, [4, 4, 4, 4]), (2, [2, 2, 2, 2]), (3, [2, 1, 1, 2])])
def test_ranks_that_share_gpus_take_gloo(
    monkeypatch: pytest.MonkeyPatch, opened: list[tuple[str, object]], count: int, sharing: list[int]
) -> None:
    gpus(monkeypatch, count)
    devices = [rank(local).open("cuda") for local in range(4)]
    assert devices == [torch.device("cuda", local % count) for local in range(4)]
    assert opened == [("gloo", None)] * 4
    assert [rank(local).sharing(devices[local]) for local in range(4)] == sharing


def test_ranks_bound_to_a_gpu_each_take_nccl(monkeypatch: pytest.MonkeyPatch, opened: list[tuple[str, object]]) -> None:
    gpus(monkeypatch, 1)
    assert [rank(local, bound=True).open() for local in range(4)] == [torch.device("cuda", 0)] * 4
    assert {backend for backend, _ in opened} == {"nccl"}


def test_ranks_of_several_machines_share_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    gpus(monkeypatch, 1)
    with pytest.raises(ValueError, match="this machine has 1 GPU for more ranks; only ranks that are all on one"):
        rank(1, everywhere=8).device()


def test_a_device_is_asked_for(monkeypatch: pytest.MonkeyPatch, opened: list[tuple[str, object]]) -> None:
    gpus(monkeypatch, 1)
    assert rank(0).open("cpu") == torch.device("cpu")
    assert opened == [("gloo", None)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert rank(0).device() == torch.device("cpu")
    with pytest.raises(ValueError, match=r"executor.device is 'cuda'; torch finds no CUDA device"):
        rank(0).device("cuda")


def test_emulated_nodes_compute_on_the_cpu() -> None:
    with pytest.raises(ValueError, match=r"executor.device is 'cuda'; emulated nodes compute on the CPU"):
        DeskAttention(small(1, 2), Fixed(0, 1, 1), device="cuda")


def test_plans_are_exact_with_messages_in_host_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans of systems that have every kind of transfer between them come to the dense result by way of the host."""
    names = ("ring", "ulysses", "allgather", "zeppelin")
    with ranks(monkeypatch, 2, 2, (4, 2)) as (cost, fleet):
        some = [plan for which in SYSTEMS if which.path.stem in names for plan in plans(cost, which)]
        assert len(some) >= len(names) * len(LENGTHS)
        for plan in some:
            check(cost, fleet, plan, "staged")
