"""Trains a torch model of one's own, sharded by FSDP2, with attention of zbench's plans: any lengths, no padding.

    torchrun --nproc-per-node=4 examples/own_model.py

On GPUs it is the same with "nccl", and a cluster and a model that describe what it runs on.
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import rms_norm, silu

import zbench
import zbench.torch
from zbench.describe.model import Model

MODEL = Model(
    "own", num_layers=2, hidden=64, num_heads=4, num_kv_heads=2, head_dim=16, ffn_hidden=128, vocab=256, element_bytes=4
)
LENGTHS = ([700, 3, 41, 1, 200], [90, 90, 500, 7], [1, 1024])  # of every step's batch


class ModelLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(MODEL.hidden, (MODEL.num_heads + 2 * MODEL.num_kv_heads) * MODEL.head_dim, bias=False)
        self.out = nn.Linear(MODEL.num_heads * MODEL.head_dim, MODEL.hidden, bias=False)
        self.up, self.down = (
            nn.Linear(*size) for size in ((MODEL.hidden, MODEL.ffn_hidden), (MODEL.ffn_hidden, MODEL.hidden))
        )

    def forward(self, x: Tensor, batch: zbench.torch.PlannedBatch, turn: Tensor) -> Tensor:
        qkv = self.qkv(rms_norm(x, x.shape[-1:])).unflatten(1, (-1, MODEL.head_dim))  # [T, heads, D]
        q, k, v = qkv.split((MODEL.num_heads, MODEL.num_kv_heads, MODEL.num_kv_heads), 1)
        q, k = (
            torch.view_as_real(torch.view_as_complex(y.unflatten(-1, (-1, 2)).contiguous()) * turn).flatten(-2)
            for y in (q, k)
        )
        x = x + self.out(batch.attention(q, k, v).flatten(1))
        return x + self.down(silu(self.up(rms_norm(x, x.shape[-1:]))))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = (
            nn.Embedding(MODEL.vocab, MODEL.hidden),
            nn.Linear(MODEL.hidden, MODEL.vocab, bias=False),
        )
        self.layers = nn.ModuleList(ModelLayer() for _ in range(MODEL.num_layers))

    def forward(self, tokens: Tensor, batch: zbench.torch.PlannedBatch) -> Tensor:
        rates = 10_000.0 ** -torch.arange(0, 1, 2 / MODEL.head_dim, device=tokens.device)
        angles = batch.positions[:, None, None] * rates  # of a token in its own sequence
        x, turn = self.embedding(tokens), torch.polar(torch.ones_like(angles), angles)  # [T, hidden], [T, 1, D/2]
        for layer in self.layers:
            x = layer(x, batch, turn)
        return self.head(x)


def train(runtime: zbench.torch.Runtime) -> list[float]:
    """Returns the loss of every step, the mean over all tokens of all ranks."""
    torch.manual_seed(0)
    model, losses = Decoder(), []
    for module in (*model.layers, model):
        fully_shard(module)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for lengths in LENGTHS * 3:
        tokens = torch.arange(sum(lengths)) % 97  # the packed batch, the same on every rank
        labels = zbench.torch.next_tokens(tokens, lengths)
        step = zbench.plan(lengths, cluster="local_2x2", model=MODEL, system="nodewise")
        loss = torch.zeros(())
        for batch in runtime.micro_batches(step):
            logits = model(batch.scatter(tokens), batch)
            part = zbench.torch.token_loss(logits, batch.scatter(labels), (labels >= 0).sum())
            (part * runtime.num_ranks).backward()  # FSDP takes the mean over ranks
            loss += part.detach()
        optimizer.step()
        optimizer.zero_grad()
        dist.all_reduce(loss)
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    dist.init_process_group("gloo")
    runtime = zbench.torch.Runtime()
    losses = train(runtime)
    if runtime.rank == 0:
        print("loss of every step:", *(f"{loss:.3f}" for loss in losses))
    runtime.close()
    dist.destroy_process_group()
