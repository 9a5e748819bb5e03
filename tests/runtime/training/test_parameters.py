"""Training on two gloo processes, replicated and sharded, against one process that holds every token."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor
from torch.multiprocessing.spawn import spawn

from zbench.describe.model import Model
from zbench.runtime.training import dense
from zbench.runtime.training.parameters import AdamW, Parameters, Replicated, Sharded
from zbench.runtime.training.reduction import Flat
from zbench.runtime.training.transformer import Attend, Transformer

pytestmark = pytest.mark.usefixtures("one_torch_thread")

RANKS, STEPS, SAVED, SEED = 2, 5, 2, 4
ADAMW = AdamW(lr=1e-2, weight_decay=0.3)
# Nothing is even: 31 tokens, 5 experts, and 24 and 72 rows are cut in two, as are norms.
DENSE = Model("dense", 2, 24, 6, 3, 4, 36, 31, element_bytes=8, recompute="full")
EXPERTS = replace(DENSE, tied_embeddings=True, num_experts=5, experts_per_token=2, recompute="none")
MODELS = {"dense": DENSE, "experts": EXPERTS, "bfloat16": replace(DENSE, element_bytes=2)}
KINDS: dict[str, Callable[..., Parameters]] = {
    "replicated": lambda network, adamw, group, device: Replicated(network, adamw, Flat(group), device),
    "sharded": Sharded,
}
# Lengths of the sequences of every rank in every micro-batch; a rank without any has no tokens.
MICRO_BATCHES = (((5, 1, 9), (2,)), ((), (7, 3)), ((4,), ()))
NUM_TOKENS = sum(sum(own) for micro in MICRO_BATCHES for own in micro)


def sequences(step: int, micro: int, rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(100 * step + 10 * micro + rank)
    return [torch.randint(31, (length,), generator=generator) for length in MICRO_BATCHES[micro][rank]]


def inputs(own: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, positions and targets of sequences one after another."""
    empty = torch.zeros(0, dtype=torch.int64)
    after = [torch.cat([s[1:], s.new_zeros(1)]) for s in own]
    return (
        torch.cat([*own, empty]),
        torch.cat([*(torch.arange(len(s)) for s in own), empty]),
        torch.cat([*after, empty]),
    )


class Together(torch.autograd.Function):
    """Changes nothing, and in forward and backward meets all ranks of `group`, which have to be at the same layer."""

    @staticmethod
    def forward(ctx: Any, o: Tensor, layer: int, group: dist.ProcessGroup) -> Tensor:
        ctx.layer, ctx.group = layer, group
        Together.meet(layer + 1, group)
        return o.clone()

    @staticmethod
    def backward(ctx: Any, do: Tensor) -> tuple[Tensor, None, None]:
        Together.meet(-ctx.layer - 1, ctx.group)
        return do, None, None

    @staticmethod
    def meet(place: int, group: dist.ProcessGroup) -> None:
        total = torch.tensor([place, place**2])
        dist.all_reduce(total, group=group)
        assert total.tolist() == [group.size() * place, group.size() * place**2], "ranks are at different layers"


def attention(own: list[Tensor], group: dist.ProcessGroup) -> Attend:
    lengths = [len(s) for s in own]

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        parts = zip(q.split(lengths), k.split(lengths), v.split(lengths), strict=True) if lengths else ()
        o = torch.cat([dense.attention(layer, *part) for part in parts] or [q * 1])
        done: Tensor = Together.apply(o, layer, group)
        return done

    return attend


@dataclass
class Rank:
    """A rank of the test: what it knows, and `found`, which goes back to the test."""

    rank: int
    folder: Path
    group: dist.ProcessGroup  # of parameters
    meeting: dist.ProcessGroup  # of attention
    found: dict[str, Any]

    def train(self, name: str, parameters: Parameters, steps: range, keep: bool) -> None:
        """Runs `steps` on this rank's tokens; notes losses, the last gradients, and the weights before and after."""
        self.found[f"{name} first weights"] = parameters.weights()
        losses, early = [], []
        for step in steps:
            if step == SAVED and keep:
                save(parameters.state(), checkpoint_id=self.folder / name)
            total = torch.zeros((), dtype=torch.float64)
            for micro in range(len(MICRO_BATCHES)):
                own, last = sequences(step, micro, self.rank), micro == len(MICRO_BATCHES) - 1
                parameters.begin(last)
                loss = parameters.network(*inputs(own), attention(own, self.meeting), NUM_TOKENS)
                loss.backward()
                total += loss.item()
                early += [p.grad is not None for p in parameters.network.parameters() if not last]
            parameters.finish()
            dist.all_reduce(total)
            losses.append(total.item())
            self.found[f"{name} gradients"] = parameters.gradients()
            parameters.step()
        self.found |= {f"{name} losses": losses, f"{name} early": any(early), f"{name} weights": parameters.weights()}
        local = [p.to_local() if isinstance(p, DTensor) else p for p in parameters.network.parameters()]
        moments = [m for state in parameters.optimizer.state.values() for n, m in state.items() if n != "step"]
        self.found[f"{name} held"] = sum(p.numel() for p in local)
        self.found[f"{name} moments held"] = sum(
            (m.to_local() if isinstance(m, DTensor) else m).numel() for m in moments
        )

    def everything(self) -> None:
        for label, model in MODELS.items():
            for kind, make in KINDS.items():
                device = "meta" if label == "dense" else "cpu"
                parameters = make(Transformer(model, SEED, device), ADAMW, self.group, "cpu")
                self.train(f"{kind} {label}", parameters, range(STEPS), label == "dense")
        for kind, make in KINDS.items():
            for source in KINDS:  # from a checkpoint of its own kind and of the other
                parameters = make(Transformer(DENSE, SEED + 1, "meta"), ADAMW, self.group, "cpu")
                state = parameters.state()
                load(state, checkpoint_id=self.folder / f"{source} dense")
                parameters.load(state)
                self.train(f"{kind} from {source}", parameters, range(SAVED, STEPS), False)


def rank_main(rank: int, folder: Path) -> None:
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    where = f"file://{folder}/store"
    dist.init_process_group("gloo", where, rank=rank, world_size=RANKS, timeout=timedelta(seconds=60))
    try:
        groups = [dist.new_group(list(range(RANKS))) for _ in range(2)]
        here = Rank(rank, folder, groups[0], groups[1], {})
        here.everything()
        torch.save(here.found, folder / f"{rank}.pt")
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """What every rank of one run of two processes found; none of them outlives it."""
    folder = tmp_path_factory.mktemp("ranks")
    context = spawn(rank_main, (folder,), nprocs=RANKS, join=False)
    try:
        deadline = time.monotonic() + 120
        while not context.join(timeout=1):
            assert time.monotonic() < deadline, "the ranks hang"
        yield [torch.load(folder / f"{rank}.pt") for rank in range(RANKS)]
    finally:
        for process in context.processes:
            process.kill()
            process.join()


@pytest.fixture(scope="module")
def alone() -> dict[str, tuple[list[float], dict[str, Tensor], dict[str, Tensor]]]:
    """Losses, last gradients and weights of every model trained by one process, with torch's plain AdamW."""
    return {label: train_alone(model) for label, model in MODELS.items()}


def train_alone(model: Model) -> tuple[list[float], dict[str, Tensor], dict[str, Tensor]]:
    network = Transformer(model, SEED)
    matrices, norms = ([p for p in network.parameters() if (p.ndim > 1) is wanted] for wanted in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.3}, {"params": norms, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    losses = []
    for step in range(STEPS):
        every = [
            s for micro in range(len(MICRO_BATCHES)) for rank in range(RANKS) for s in sequences(step, micro, rank)
        ]
        optimizer.zero_grad()
        loss = torch.stack([network(*inputs([s]), dense.attention, NUM_TOKENS) for s in every]).sum()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    gradients = {name: p.grad for name, p in network.named_parameters() if p.grad is not None}
    return losses, gradients, {name: p.detach() for name, p in network.named_parameters()}


def farthest(some: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    """The largest relative distance (2-norms) of two tensors of a name."""
    assert list(some) == list(others)
    return max(float((some[name] - others[name]).norm().item() / others[name].norm().item()) for name in some)


@pytest.mark.parametrize("label", ["dense", "experts"])
@pytest.mark.parametrize("kind", KINDS)
def test_two_ranks_train_as_one(found: list[dict[str, Any]], alone: dict[str, Any], kind: str, label: str) -> None:
    losses, gradients, weights = alone[label]
    assert farthest(weights, Transformer(MODELS[label], SEED).state_dict()) > 0.1, "training changes something"
    for one in found:
        assert one[f"{kind} {label} losses"] == pytest.approx(losses, rel=1e-12)
        assert farthest(one[f"{kind} {label} gradients"], gradients) < 1e-12
        assert farthest(one[f"{kind} {label} weights"], weights) < 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16_comes_close(found: list[dict[str, Any]], alone: dict[str, Any], kind: str) -> None:
    name = f"{kind} bfloat16"
    assert found[0][f"{name} losses"] == pytest.approx(alone["dense"][0], rel=1e-2)
    assert all(w.dtype == torch.float32 for w in found[0][f"{name} weights"].values())
    assert all(g.dtype == torch.float32 for g in found[0][f"{name} gradients"].values())


@pytest.mark.parametrize("label", MODELS)
@pytest.mark.parametrize("kind", KINDS)
def test_initial_weights_are_the_same_in_every_process(found: list[dict[str, Any]], kind: str, label: str) -> None:
    drawn = Transformer(MODELS[label], SEED).state_dict()
    for one in found:
        weights = one[f"{kind} {label} first weights"]
        assert list(weights) == list(drawn)
        assert all(torch.equal(weights[name], drawn[name]) for name in drawn)


@pytest.mark.parametrize("label", MODELS)
def test_each_rank_holds_its_share(found: list[dict[str, Any]], label: str) -> None:
    total = MODELS[label].total_params
    for one in found:
        assert one[f"replicated {label} held"] * 2 == one[f"replicated {label} moments held"] == 2 * total
        assert one[f"sharded {label} held"] < 0.55 * total
        assert one[f"sharded {label} moments held"] == 2 * one[f"sharded {label} held"]
        assert not one[f"sharded {label} early"], "gradients are reduced in the last micro-batch only"
    assert sum(one[f"sharded {label} held"] for one in found) == total


@pytest.mark.parametrize("source", KINDS)
@pytest.mark.parametrize("kind", KINDS)
def test_training_continues_from_a_checkpoint(found: list[dict[str, Any]], kind: str, source: str) -> None:
    name = f"{kind} from {source}"
    assert found[0][f"{name} losses"] == pytest.approx(found[0][f"{kind} dense losses"][SAVED:], rel=1e-14)
    assert farthest(found[0][f"{name} weights"], found[0][f"{kind} dense weights"]) < (
        1e-14 if kind == source else 1e-12
    )


@pytest.mark.parametrize(
    ("field", "value"), [("lr", -1.0), ("beta1", 1.0), ("weight_decay", float("nan")), ("epsilon", "small")]
)
def test_what_adamw_cannot_take(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"optimizer.{field} is "):
        AdamW(**{field: value})  # type: ignore[arg-type]
