"""The planned load balancer in PyTorch's own context parallelism."""

import numpy as np
import pytest
import torch
from torch import distributed
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.experimental._context_parallel import _load_balancer
from torch.distributed.tensor.experimental._context_parallel._attention import _context_parallel_shard

from zbench.adapters.torch_context_parallel import areas, load_balancer, load_balancer_of
from zbench.contracts.schedule import ContractError, TokenPermutation

LENGTHS = (5600, 328, 1, 1047, 2400, 96)  # 9,472 tokens, a multiple of 4


def order_of(balancer: _load_balancer._LoadBalancer) -> TokenPermutation:
    indices = balancer._generate_indices()
    return TokenPermutation(LENGTHS, 4, indices[0].numpy().astype(np.int64))


def test_a_planned_balancer_is_one_of_pytorch_s() -> None:
    balancer = load_balancer(LENGTHS, 4, cluster="local_2x2", model="tiny")
    assert isinstance(balancer, _load_balancer._LoadBalancer)
    order, back = balancer._generate_indices(), balancer._generate_indices(restore=True)
    usual = _load_balancer._HeadTailLoadBalancer(sum(LENGTHS), 4, "cpu")._generate_indices()
    assert order.shape == usual.shape
    assert order.dtype == usual.dtype
    tokens = torch.arange(sum(LENGTHS))
    assert torch.equal(tokens[order[0]][back[0]], tokens)


def test_areas_are_more_even_than_head_tail_s() -> None:
    planned = areas(order_of(load_balancer(LENGTHS, 4, cluster="local_2x2", model="tiny")))
    usual = areas(order_of(_load_balancer._HeadTailLoadBalancer(sum(LENGTHS), 4, "cpu")))
    assert planned.sum() == usual.sum() == sum(n * (n + 1) // 2 for n in LENGTHS)
    assert planned.max() / planned.mean() < 1.02
    assert usual.max() / usual.mean() > 1.1


def test_shards_of_a_real_mesh_of_one_rank(tmp_path: object) -> None:
    """The sharding of PyTorch puts buffers in the balancer's order; with one rank the shard is all of it."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        mesh = DeviceMesh("cpu", [0])
        order = np.random.default_rng(0).permutation(sum(LENGTHS))
        balancer = load_balancer_of(TokenPermutation(LENGTHS, 1, order))
        tokens = torch.arange(sum(LENGTHS))[None]
        (shard,) = _context_parallel_shard(mesh, [tokens], [1], load_balancer=balancer)
        assert isinstance(shard, torch.Tensor)
        assert torch.equal(shard[0], torch.from_numpy(order))
    finally:
        distributed.destroy_process_group()


def test_what_cannot_be_shared() -> None:
    with pytest.raises(ContractError, match="there are no samples; a batch has at least one"):
        load_balancer([], 4, cluster="local_2x2", model="tiny")
    with pytest.raises(ContractError, match="9,473 tokens"):
        load_balancer([*LENGTHS, 1], 4, cluster="local_2x2", model="tiny")
    with pytest.raises(ValueError, match="the job has 8 ranks"):
        load_balancer(LENGTHS, 8, cluster="local_2x2", model="tiny")
