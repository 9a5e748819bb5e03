"""A rank that uses zbench.torch as a user's own program does; what it finds is compared with one process."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import replace
from functools import partial
from time import sleep
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers.models.llama import modeling_llama as llama

import zbench
import zbench.torch
from examples import hugging_face, own_model, planned_ahead
from tests.torch import slow_planner
from zbench.describe.mask import Mask
from zbench.runtime.processes.rendezvous import Rendezvous
from zbench.torch import runtime as torch_runtime
from zbench.torch.hugging_face import planned_attention

PATIENCE = 3.0  # seconds that ranks wait for one that does not come


class Ranks:
    """argument: unused."""

    def __init__(self, rank: int, num_ranks: int, rendezvous: Rendezvous, argument: Any) -> None:
        rendezvous.open("cpu")
        self.rank, self.board = rank, rendezvous.board
        self.runtimes: list[zbench.torch.Runtime] = []

    @staticmethod
    def prepare() -> None:
        """Loads once what each rank would load by itself (zbench.runtime.processes.launch)."""
        import torch._dynamo  # noqa: F401 - torch's optimizers do

        zbench.plan([30, 3], cluster="local_2x2", model=own_model.MODEL, system="nodewise")

    def runtime(self, **named: Any) -> zbench.torch.Runtime:
        """Of one model only, as a program of one's own has one."""
        self.runtimes.append(zbench.torch.Runtime(**named))
        return self.runtimes[-1]

    def attend(self, steps: list[zbench.StepPlans]) -> list[float]:
        """Of every step the largest difference of o, dq, dk, dv to dense attention, over the largest value of each."""
        runtime = self.runtime()
        return [self._worst(runtime, step) for step in steps]

    def checkpointed(self, step: zbench.StepPlans) -> bool:
        """Whether attention that runs again in the backward has the same gradients, to the bit."""
        (batch,) = self.runtime().micro_batches(step)
        found = []
        for attend in (batch.attention, partial(checkpoint, batch.attention, use_reentrant=False)):
            q, k, v = (x.sin().requires_grad_() for x in _inputs(batch, step).values())
            attend(attend(q, k, v), k, v).square().sum().backward()
            found.append((q.grad, k.grad, v.grad))
        return all(torch.equal(a, b) for a, b in zip(*found, strict=True))

    def again(self, step: zbench.StepPlans) -> tuple[bool, bool, int]:
        """Whether programs are kept, whether those of other plans are not taken for them, and positions' sum."""
        runtime = self.runtime()
        (first,), (second,) = runtime.micro_batches(step), runtime.micro_batches(step)
        (alone,) = self.runtime(cluster=step.cluster, model=step.model).micro_batches(step.plans[0])
        return first is second, alone is not first, int(first.positions.sum())

    def round_trip(self, step: zbench.StepPlans) -> bool:
        """What is scattered and gathered is as it was, and rows are those that sequences and positions say."""
        tokens = torch.arange(int(step.lengths.sum())) * 3 + 1
        pairs = torch.stack((tokens, -tokens), 1)
        starts = torch.from_numpy(step.lengths.cumsum() - step.lengths)
        whole, same = None, True
        for batch in self.runtime().micro_batches(step):
            mine = batch.scatter(pairs)
            same &= torch.equal(mine[:, 0], tokens[starts[batch.sequences] + batch.positions])
            same &= len(mine) == batch.num_tokens
            whole = batch.gather(mine, whole)
        return same and whole is not None and torch.equal(whole, pairs)

    def refused(self, what: str, *arguments: Any) -> str:
        """The sentence that a wrong use ends with."""
        return _sentence(partial(getattr(self, f"_{what}"), *arguments))

    def absent(self, step: zbench.StepPlans) -> dict[str, str]:
        """The sentences where rank 3 does not come to a collective: at once, on a Runtime each, as each takes PATIENCE
        twice."""
        places = {"forward": self._forward, "backward": self._backward, "micro_batches": self._micro_batches}
        calls = {place: make(self.runtime(timeout=PATIENCE), step) for place, make in places.items()}
        if self.rank == 3:
            return {}
        with ThreadPoolExecutor(len(calls)) as threads:
            told = dict(zip(calls, threads.map(_sentence, calls.values()), strict=True))
        return told | {"after": _sentence(calls["micro_batches"])}

    def apart(self, step: zbench.StepPlans) -> list[str]:
        """The sentences where rank 1 refuses its q, where rank 0 calls micro_batches once more, and where rank 1
        gathers another dtype: at once, on a Runtime each, as ranks wait PATIENCE in each."""
        calls = [getattr(self, f"_{what}")(self.runtime(timeout=PATIENCE), step) for what in ("odd", "more", "mixed")]
        with ThreadPoolExecutor(len(calls)) as threads:
            return list(threads.map(_sentence, calls))

    def closed(self, step: zbench.StepPlans) -> list[str]:
        """The sentences of calls after close, which may be closed again."""
        runtime = self.runtime()
        (batch,) = runtime.micro_batches(step)
        inputs = _inputs(batch, step)
        runtime.close()
        runtime.close()
        calls = (partial(batch.attention, **inputs), partial(batch.gather, inputs["q"]))
        return [_sentence(call) for call in (*calls, partial(runtime.micro_batches, step))]

    def late(self, step: zbench.StepPlans) -> str:
        """The sentence, if any, where rank 3 takes longer than PATIENCE for its first programs."""
        runtime = self.runtime(timeout=PATIENCE)
        compiled, patched = runtime._compiled, torch_runtime.has_compiled
        runtime._compiled = lambda *given: (sleep(2 * PATIENCE if self.rank == 3 else 0), compiled(*given))[1]  # type: ignore[method-assign]
        torch_runtime.has_compiled = lambda: True  # type: ignore[assignment]
        try:
            (batch,) = runtime.micro_batches(step)
            return _sentence(lambda: batch.attention(**_inputs(batch, step)))
        finally:
            torch_runtime.has_compiled = patched

    def absent_at_first(self) -> str:
        """The sentence where rank 1 makes no Runtime; torch keeps the addresses of those that came, to which the next
        group of the same ranks would connect."""
        return _sentence(lambda: self.runtime(timeout=PATIENCE)) if self.rank != 1 else ""

    def own_model(self) -> tuple[list[float], list[float]]:
        """Losses of the example in float64, and on rank 0 those of the same model in one process."""
        own = own_model
        torch.set_default_dtype(torch.float64)
        own.MODEL = replace(own.MODEL, element_bytes=8, lse_bytes=8)
        try:
            return own.train(self.runtime()), _own_model_alone(own) if self.rank == 0 else []
        finally:
            torch.set_default_dtype(torch.float32)

    def hugging_face(self, step: zbench.StepPlans, is_patched: bool) -> tuple[float, float]:
        """The largest relative differences of the loss and of any gradient to one process with sdpa, on rank 0."""
        zbench.torch.register_with_transformers()
        kept = llama.LlamaRMSNorm.forward
        if is_patched:
            llama.LlamaRMSNorm.forward = _norm
        try:
            models = []
            for name in ("zbench", "sdpa"):
                torch.manual_seed(1)
                config = deepcopy(hugging_face.CONFIG)  # a model keeps its own, and writes into it how it attends
                config._attn_implementation = name
                models.append(llama.LlamaForCausalLM(config).double())
            tokens = torch.randint(128, (int(step.lengths.sum()),), generator=torch.Generator().manual_seed(2))
            loss = hugging_face.loss_and_gradients(models[0], self.runtime(), step, tokens)
            if self.rank:
                return 0.0, 0.0
            dense = _dense_llama(models[1], tokens, step.lengths.tolist())
        finally:
            llama.LlamaRMSNorm.forward = kept
        pairs = zip(models[0].parameters(), models[1].parameters(), strict=True)
        worst = max(float((a.grad - b.grad).abs().max() / b.grad.abs().max()) for a, b in pairs)
        return abs(float(loss) / dense - 1), worst

    def hugging_face_example(self) -> list[float]:
        return hugging_face.train(self.runtime())

    def planned_ahead(self) -> tuple[list[float], list[tuple[float, float]]]:
        """What the example finds with a planner and a step of known seconds at least."""
        runtime = self.runtime()
        own = runtime.micro_batches
        runtime.micro_batches = lambda step: (sleep(slow_planner.TRAINING), own(step))[1]  # type: ignore[method-assign]
        return planned_ahead.train(runtime, slow_planner.plan_slowly)

    def close(self) -> None:
        for runtime in self.runtimes:
            runtime.close()
        dist.destroy_process_group()

    # -- wrong uses ---------------------------------------------------------------------------------
    def _open(self, named: dict[str, Any], plans: Any) -> None:
        self.runtime(**named).micro_batches(plans)

    def _given(self, step: zbench.StepPlans, name: str, change: str) -> None:
        """q, k, v as they have to be but for one of them; on every rank."""
        (batch,) = self.runtime().micro_batches(step)
        inputs = _inputs(batch, step)
        inputs[name] = CHANGES[change](inputs[name])
        batch.attention(**inputs)

    def _transformers(self, step: zbench.StepPlans, rows: int, others: dict[str, Any]) -> None:
        (batch,) = self.runtime().micro_batches(step)
        q, k, v = (x.transpose(0, 1)[None].expand(rows, -1, -1, -1) for x in _inputs(batch, step).values())
        named = {"attention_mask": None, "micro_batch": batch, "scaling": q.shape[-1] ** -0.5, **others}
        planned_attention(torch.nn.Identity(), q, k, v, **named)

    def _rows(self, step: zbench.StepPlans, what: str) -> None:
        (batch,) = self.runtime().micro_batches(step)
        getattr(batch, what)(torch.zeros(3))

    def _value(self, step: zbench.StepPlans, what: str) -> None:
        (batch,) = self.runtime().micro_batches(step)
        {"scatter": lambda: batch.scatter([1, 2, 3]), "attention": lambda: batch.attention(None, None, None)}[what]()

    # -- calls that differ between ranks ----------------------------------------------------------------
    def _odd(self, runtime: zbench.torch.Runtime, step: zbench.StepPlans) -> Callable[[], Any]:
        (batch,) = runtime.micro_batches(step)
        inputs = _inputs(batch, step)
        return partial(batch.attention, **inputs | ({"q": inputs["q"][1:]} if self.rank == 1 else {}))

    def _more(self, runtime: zbench.torch.Runtime, step: zbench.StepPlans) -> Callable[[], Any]:
        (batch,) = runtime.micro_batches(step)
        return (
            partial(runtime.micro_batches, step) if self.rank == 0 else partial(batch.attention, **_inputs(batch, step))
        )

    def _mixed(self, runtime: zbench.torch.Runtime, step: zbench.StepPlans) -> Callable[[], Any]:
        (batch,) = runtime.micro_batches(step)
        return partial(batch.gather, torch.zeros(batch.num_tokens, 1 + (self.rank == 1)))

    # -- what rank 3 does not come to -----------------------------------------------------------------
    def _forward(self, runtime: zbench.torch.Runtime, step: zbench.StepPlans) -> Callable[[], Any]:
        (batch,) = runtime.micro_batches(step)
        return partial(batch.attention, **_inputs(batch, step))

    def _backward(self, runtime: zbench.torch.Runtime, step: zbench.StepPlans) -> Callable[[], Any]:
        (batch,) = runtime.micro_batches(step)
        inputs = {name: x.requires_grad_() for name, x in _inputs(batch, step).items()}
        return batch.attention(**inputs).sum().backward

    def _micro_batches(self, runtime: zbench.torch.Runtime, step: zbench.StepPlans) -> Callable[[], Any]:
        return partial(runtime.micro_batches, step)

    def _worst(self, runtime: zbench.torch.Runtime, step: zbench.StepPlans) -> float:
        """Of two layers of every micro-batch that are one query apart."""
        model, total = step.model, int(step.lengths.sum())
        random = torch.Generator().manual_seed(7)
        heads = (model.num_heads, model.num_kv_heads, model.num_kv_heads, model.num_heads)
        given = [torch.randn(total, count, model.head_dim, dtype=torch.float64, generator=random) for count in heads]
        whole = [x.clone().requires_grad_() for x in given[:3]]
        dense = _dense(*whole, step.lengths.tolist(), model.mask)
        (dense * given[3]).sum().backward()
        wanted = [dense.detach(), *(x.grad for x in whole)]
        worst = 0.0
        for batch in runtime.micro_batches(step):
            q, k, v = (batch.scatter(x).requires_grad_() for x in given[:3])
            o = batch.attention(q, k, v)
            (o * batch.scatter(given[3])).sum().backward()
            for ours, theirs in zip((o.detach(), q.grad, k.grad, v.grad), wanted, strict=True):
                if batch.num_tokens:
                    worst = max(worst, float((ours - batch.scatter(theirs)).abs().max() / theirs.abs().max()))
        return worst


def _sentence(call: Callable[[], Any]) -> str:
    """What a call ends with, "" if it does not."""
    try:
        call()
    except (ValueError, TimeoutError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


CHANGES: dict[str, Callable[[Tensor], Tensor]] = {
    "a head more": lambda x: torch.cat((x, x[:, :1]), 1),
    "a token more": lambda x: torch.cat((x, x.new_zeros(1, *x.shape[1:]))),
    "flat": lambda x: x.flatten(1),
    "float32": Tensor.float,
    "nowhere": lambda x: x.to("meta"),
}


def _inputs(batch: Any, step: Any) -> dict[str, Tensor]:
    heads = {"q": step.model.num_heads, "k": step.model.num_kv_heads, "v": step.model.num_kv_heads}
    return {name: torch.ones(batch.num_tokens, count, step.model.head_dim).double() for name, count in heads.items()}


def _dense(q: Tensor, k: Tensor, v: Tensor, lengths: list[int], mask: Mask) -> Tensor:
    out = []
    for some in zip(*(x.split(lengths) for x in (q, k, v)), strict=True):
        length = len(some[0])
        back = torch.arange(length)[:, None] - torch.arange(length)
        visible = ((back >= 0) | (not mask.causal)) & ((back < mask.window) | (mask.window == 0))
        rows = (x.transpose(0, 1)[None] for x in some)
        out.append(scaled_dot_product_attention(*rows, attn_mask=visible, enable_gqa=True)[0].transpose(0, 1))
    return torch.cat(out)


class _Alone:
    """In a micro-batch's place: the whole batch in one process, with dense attention."""

    def __init__(self, lengths: list[int]) -> None:
        self.lengths, self.positions = lengths, torch.cat([torch.arange(length) for length in lengths])

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return _dense(q, k, v, self.lengths, Mask())


def _own_model_alone(own: Any) -> list[float]:
    torch.manual_seed(0)
    model, losses = own.Decoder(), []
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    for lengths in own.LENGTHS * 3:
        tokens = torch.arange(sum(lengths)) % 97
        logits = model(tokens, _Alone(lengths))
        pairs = zip(logits.split(lengths), tokens.split(lengths), strict=True)
        parts = [cross_entropy(some[:-1], ids[1:], reduction="sum") for some, ids in pairs]
        loss = torch.stack(parts).sum() / sum(length - 1 for length in lengths)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def _dense_llama(model: Any, tokens: Tensor, lengths: list[int]) -> float:
    """Runs whole sequences one by one; its loss, the mean over all tokens that have a next one."""
    total = 0.0
    for ids in tokens.split(lengths):
        logits = model(input_ids=ids[None], use_cache=False).logits[0].double()
        part = cross_entropy(logits[:-1], ids[1:], reduction="sum") / sum(length - 1 for length in lengths)
        part.backward()
        total += part.item()
    return total


def _norm(self: Any, x: Tensor) -> Tensor:
    """RMSNorm in the dtype of x; Transformers computes it in float32."""
    return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon))
