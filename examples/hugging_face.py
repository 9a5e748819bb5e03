"""Trains a Llama of Hugging Face Transformers with attention of zbench's plans: attn_implementation="zbench".

    torchrun --nproc-per-node=4 examples/hugging_face.py

The model is tiny and its weights are random; nothing is downloaded.
"""

import torch
import torch.distributed as dist
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

import zbench
import zbench.torch
from zbench.describe.model import Model

CONFIG = LlamaConfig(
    vocab_size=128,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=8,
)
LENGTHS = ([300, 2, 41, 1, 77], [90, 90, 7, 13])  # of every step's batch


def described(config: LlamaConfig, element_bytes: int) -> Model:
    """Returns the model as zbench plans for it; element_bytes: 2 for bfloat16, 4 for float32, 8 for float64."""
    return Model(
        config.model_type,
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.intermediate_size,
        config.vocab_size,
        element_bytes=element_bytes,
        lse_bytes=max(4, element_bytes),
    )


def loss_and_gradients(
    model: PreTrainedModel, runtime: zbench.torch.Runtime, step: zbench.StepPlans, tokens: torch.Tensor
) -> torch.Tensor:
    """Returns the loss of a batch, the mean over all tokens of all ranks, and leaves its gradient in the model.

    tokens: int64 [N], the packed batch, the same on every rank.
    """
    labels = zbench.torch.next_tokens(tokens, step.lengths)
    loss = torch.zeros((), dtype=torch.float64)
    for batch in runtime.micro_batches(step):
        logits = model(
            input_ids=batch.scatter(tokens)[None],
            position_ids=batch.positions[None],
            micro_batch=batch,
            use_cache=False,
        ).logits[0]
        part = zbench.torch.token_loss(logits.double(), batch.scatter(labels), (labels >= 0).sum())
        part.backward()
        loss += part.detach()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    dist.all_reduce(loss)
    return loss


def train(runtime: zbench.torch.Runtime) -> list[float]:
    """Returns the loss of every step."""
    zbench.torch.register_with_transformers()
    torch.manual_seed(0)  # the same weights on every rank
    model = AutoModelForCausalLM.from_config(CONFIG, attn_implementation="zbench")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    losses = []
    for lengths in LENGTHS * 3:
        tokens = torch.arange(sum(lengths)) % 97
        step = zbench.plan(lengths, cluster="local_2x2", model=described(CONFIG, 4), system="nodewise", pipelines=False)
        losses.append(loss_and_gradients(model, runtime, step, tokens).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses


if __name__ == "__main__":
    dist.init_process_group("gloo")
    runtime = zbench.torch.Runtime()
    losses = train(runtime)
    if runtime.rank == 0:
        print("loss of every step:", *(f"{loss:.3f}" for loss in losses))
    runtime.close()
    dist.destroy_process_group()
