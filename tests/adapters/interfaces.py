"""The least that adapters meet of frameworks which no registry has, or which are too large to install for tests.

Written from the frameworks' interfaces (docs/adapters.md names their versions): what is called with what, and what is
expected of the result. Where the real package can be imported, tests run with it as well.
"""

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
import torch


def put_module(monkeypatch: pytest.MonkeyPatch, name: str, **contents: Any) -> ModuleType:
    """Makes a module that can be imported by that name for the length of a test, with its parents where missing."""
    parts = name.split(".")
    for count in range(1, len(parts)):
        parent = ".".join(parts[:count])
        if parent not in sys.modules:
            monkeypatch.setitem(sys.modules, parent, ModuleType(parent))
    module = ModuleType(name)
    vars(module).update(contents)
    monkeypatch.setitem(sys.modules, name, module)
    return module


class DefaultDynamicCPScheduler:
    """megatron-core's class: what it is made with, and the names that its methods use."""

    def __init__(
        self,
        max_seqlen_per_dp_cp_rank: int,
        cp_size: int,
        dp_size: int,
        microbatch_group_size_per_vp_stage: int | None,
        max_num_seqs: int | None = None,
        min_cp_size: int = 1,
    ) -> None:
        self.microbatch_group_size_per_vp_stage = microbatch_group_size_per_vp_stage
        self.max_num_seqs = max_num_seqs
        self.max_seq_len_per_rank = max_seqlen_per_dp_cp_rank
        self.total_hdp_gpus = dp_size * cp_size
        self.min_cp_size = min_cp_size

    def get_groups_and_subsamples(self, sample_id_seqlens: Sequence[tuple[int, int]]) -> list[list[list[int]]]:
        raise AssertionError("the adapter has a method of its own")


def put_megatron(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Makes megatron-core's data_schedule, as of the development branch, importable."""
    return put_module(
        monkeypatch,
        "megatron.core.datasets.data_schedule",
        DefaultDynamicCPScheduler=DefaultDynamicCPScheduler,
        scheduler_map={"dp_balanced": object, "default_dynamic_cp": DefaultDynamicCPScheduler},
    )


VERL = """
import torch

def calculate_workload(seqlen_list):
    return 24576 * seqlen_list + seqlen_list**2

def get_seqlen_balanced_partitions(seqlen_list, k_partitions, equal_size):
    raise AssertionError("the adapter has a function of its own")

def rearrange_micro_batches(batch, max_token_len, dp_group=None, num_batches_divided_by=None,
                            same_micro_num_in_dp=True, min_num_micro_batch=None, use_dynamic_bsz_balance=True,
                            force_group_size=1):
    lengths = batch["attention_mask"].sum(dim=1)
    count = max(min_num_micro_batch or 1, -(-int(lengths.sum()) // max_token_len))
    works = calculate_workload(lengths.long()).view(-1, force_group_size).sum(dim=1).tolist()
    sets = get_seqlen_balanced_partitions(works, count, equal_size=False)
    indices = [[one for item in items for one in range(item * force_group_size, (item + 1) * force_group_size)]
               for items in sets]
    return indices, indices
"""


def put_verl(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    """Makes verl's seqlen_balancing importable, and a trainer that has two of its functions by name; returns both."""
    module = put_module(monkeypatch, "verl.utils.seqlen_balancing")
    exec(VERL, vars(module))
    trainer = put_module(
        monkeypatch,
        "verl.trainer.ppo.ray_trainer",
        calculate_workload=module.calculate_workload,
        get_seqlen_balanced_partitions=module.get_seqlen_balanced_partitions,
    )
    return module, trainer


def verl_batch(lengths: Sequence[int]) -> dict[str, torch.Tensor]:
    """Returns a batch as verl has it before padding is taken away: token ids and which of them are some."""
    mask = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    return {"input_ids": mask.long(), "attention_mask": mask.long()}
