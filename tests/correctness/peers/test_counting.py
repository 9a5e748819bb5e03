"""What is counted of collectives: the bytes of rings, in autograd as well; others are refused."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from zbench.correctness.peers.cases import GRADIENTS, OTHER, PARAMETERS
from zbench.correctness.peers.counting import CountedCollectives


@pytest.fixture
def group() -> Iterator[dist.ProcessGroup]:
    """A gloo group of this process alone: what is counted is of tensors' sizes, for any number of processes."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def test_bytes_are_those_of_rings(group: dist.ProcessGroup) -> None:
    floats, ints = torch.zeros(6, dtype=torch.float64), torch.zeros(3, dtype=torch.int32)
    with (counted := CountedCollectives(4)):
        group._allgather_base(floats, floats.clone()).wait()  # 48 bytes to three others
        assert counted.sent == {PARAMETERS: 144}
        group._reduce_scatter_base(floats, floats.clone()).wait()
        assert counted.sent.pop(GRADIENTS) == 144
        dist.all_reduce(floats)
        assert counted.sent.pop(GRADIENTS) == 288
        dist.reduce(floats, 0)
        assert counted.sent.pop(GRADIENTS) == 144
        dist.broadcast(floats, 0)
        assert counted.sent == {PARAMETERS: 288}
        dist.broadcast(ints, 0)  # what processes agree on
        assert counted.sent.pop(OTHER) == 36
        dist.barrier()
    dist.all_reduce(floats)
    counted.backward = False
    with counted:
        dist.all_reduce(floats[:1])
    assert counted.sent == {PARAMETERS: 288, OTHER: 48}


def test_what_autograd_sends_is_counted(group: dist.ProcessGroup) -> None:
    weight = torch.ones(6, requires_grad=True)
    weight.register_post_accumulate_grad_hook(lambda one: dist.all_reduce(one.grad))
    with (counted := CountedCollectives(2)):
        weight.square().sum().backward()
    assert counted.sent == {GRADIENTS: 2 * 6 * 4}


def test_a_collective_that_is_not_known_is_refused(group: dist.ProcessGroup) -> None:
    told = r"c10d::alltoall_base_ was called; collectives that are counted are _allgather_base_, _reduce"
    with pytest.raises(ValueError, match=told), CountedCollectives(2):
        dist.all_to_all_single(torch.zeros(2), torch.ones(2))
