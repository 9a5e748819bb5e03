"""Trains a torch model of one's own, sharded by FSDP2, with attention of zbench's plans: any lengths, no padding.

torchrun --nproc-per-node=4 examples/own_model.py    # on GPUs the same with "nccl", their cluster and your model
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.functional import rms_norm

import zbench.torch
from zbench.describe.model import Model

H, K, D, HIDDEN = 4, 2, 16, 64  # heads of queries and of keys, their size, the model's
MODEL = Model("own", 2, HIDDEN, H, K, D, ffn_hidden=128, vocab=256, element_bytes=4)  # 2 layers, in float32
LENGTHS = ([700, 3, 41, 1, 200], [90, 90, 500, 7], [1, 1024])  # of every step's batch


def rotated(x: Tensor, positions: Tensor) -> Tensor:
    """Returns x [T, heads, D] with RoPE, of tokens at these positions of their own sequences, [T]."""
    angles = positions[:, None, None] * 10_000.0 ** -torch.arange(0, 1, 2 / D, device=x.device)
    a, b = x.chunk(2, -1)
    return torch.cat((a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()), -1)


class ModelLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(HIDDEN, (H + 2 * K) * D), nn.Linear(H * D, HIDDEN)
        self.mlp = nn.Sequential(nn.Linear(HIDDEN, 128), nn.SiLU(), nn.Linear(128, HIDDEN))

    def forward(self, x: Tensor, batch: zbench.torch.PlannedBatch) -> Tensor:
        q, k, v = self.qkv(rms_norm(x, (HIDDEN,))).unflatten(1, (-1, D)).split((H, K, K), 1)  # [T, heads, D]
        x = x + self.out(batch.attention(rotated(q, batch.positions), rotated(k, batch.positions), v).flatten(1))
        return x + self.mlp(rms_norm(x, (HIDDEN,)))


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(256, HIDDEN), nn.Linear(HIDDEN, 256)
        self.layers = nn.ModuleList(ModelLayer() for _ in range(2))

    def forward(self, tokens: Tensor, batch: zbench.torch.PlannedBatch) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, batch)
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
        step = zbench.plan(lengths, cluster="local_2x2", model=MODEL, system="nodewise", pipelines=False)
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
