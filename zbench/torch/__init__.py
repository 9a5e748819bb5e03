"""Attention of any plan for a model of one's own, under torchrun: docs/torch.md has how to use it.

runtime = zbench.torch.Runtime(group)              # once; the group is the caller's
for micro_batch in runtime.micro_batches(step):    # of what zbench.plan or zbench.load returned
    o = micro_batch.attention(q, k, v)             # in every layer, forward and backward
"""

from zbench.torch.hugging_face import register_with_transformers
from zbench.torch.losses import IGNORED, next_tokens, token_loss
from zbench.torch.planned_batch import PlannedBatch
from zbench.torch.runtime import Runtime

__all__ = ["IGNORED", "PlannedBatch", "Runtime", "next_tokens", "register_with_transformers", "token_loss"]
