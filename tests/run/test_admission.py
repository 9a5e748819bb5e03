"""Jobs that this machine cannot take, told before they start."""

from typing import Any

import pytest
from hydra import compose, initialize_config_dir

from zbench import CONF
from zbench.run import admission
from zbench.run.admission import RANKS_PER_CORE, check_ranks_here, gpu_bytes, rank_bytes
from zbench.run.parts import Parts
from zbench.run.settings import Settings
from zbench.runtime.attention_executor import TorchAttention

GIB = 2**30


def parts(*overrides: str) -> tuple[Parts, int]:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        config = compose("config", ["tracker=none", *overrides])
    settings = Settings.of(config)
    return Parts.of(config, settings), settings.tokens_per_gpu


@pytest.fixture
def laptop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "cores", lambda: 2)
    monkeypatch.setattr(admission, "free_memory", lambda: 8 * GIB)


@pytest.mark.parametrize(
    ("executor", "cluster", "model", "ranks"),
    [
        ("torch", "local_2x2", "tiny", 4),
        ("torch_attention", "local_2x2", "tiny", 4),
        ("desk", "desk_2x4_a800", "desk", 8),
        ("desk_attention", "desk_2x4_a800", "desk", 8),
    ],
)
@pytest.mark.usefixtures("laptop")
def test_executors_that_train_choose_what_fits_a_laptop(executor: str, cluster: str, model: str, ranks: int) -> None:
    found, tokens = parts(f"executor={executor}", "workload=longtail_4k")
    assert (found.cluster.name, found.model.name, found.cluster.num_ranks) == (cluster, model, ranks)
    check_ranks_here(found, tokens)


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (
            ("cluster=h100_4x8", "model=llama_7b", "tokens_per_gpu=1024"),
            r"^model is llama_7b with tokens_per_gpu=1,024 on 32 ranks, which are processes of this "
            r"machine; they need an estimated .* GiB .*"
            r" 8\.0 GiB are free: use a smaller model, as in model=tiny, or less than cluster.num_nodes=4 and "
            r"cluster.gpus_per_node=8, or less than tokens_per_gpu=1,024$",
        ),
        (
            ("tokens_per_gpu=1000000",),
            r"^tokens_per_gpu is 1,000,000 with model=tiny on 4 ranks, which are .* GiB \(each \S+ of activations, \S+ "
            r"of parameters, gradients and optimizer state\), and 8\.0 GiB are free: use less than "
            r"tokens_per_gpu=1,000,000, or less than cluster.num_nodes=2 and cluster.gpus_per_node=2, or a smaller "
            r"model$",
        ),
        (
            ("cluster=h100_4x8", "cluster.num_nodes=9"),
            r"^cluster is h100_4x8 with 72 ranks, each a process of this machine, whose 2 cores take at most 64",
        ),
    ],
)
@pytest.mark.usefixtures("laptop")
def test_what_does_not_fit_is_one_sentence(overrides: tuple[str, ...], told: str) -> None:
    found, tokens = parts("executor=torch_attention", "executor.device=cpu", "workload=longtail_4k", *overrides)
    with pytest.raises(ValueError, match=told):
        check_ranks_here(found, tokens)


@pytest.mark.usefixtures("laptop")
def test_what_just_fits_its_cores() -> None:
    found, tokens = parts("executor=torch_attention", f"cluster.num_nodes={RANKS_PER_CORE}", "tokens_per_gpu=64")
    check_ranks_here(found, tokens)


@pytest.mark.usefixtures("laptop")
def test_memory_of_a_gpu_is_not_this_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    found, tokens = parts("executor=torch_attention", "cluster=h100_4x8", "model=llama_7b")
    monkeypatch.setattr(admission, "no_gpu", lambda _: None)
    check_ranks_here(found, tokens)


def test_a_rank_is_priced_by_its_parameters_and_tokens() -> None:
    def priced(tokens: int, *overrides: str) -> tuple[float, float]:
        found, _ = parts("executor=torch_attention", *overrides)
        executor: Any = found.executor
        assert isinstance(executor, TorchAttention)
        return rank_bytes(found.cost, executor, tokens)

    (state, small), (_, large) = priced(100), priced(100_000)
    found, _ = parts("executor=torch_attention")
    assert state >= 16 * found.model.total_params  # float32 weight, gradient and both moments
    assert 500 * small < large < 2000 * small
    assert priced(100_000, "executor.recompute=full")[1] < large
    device = found.cluster.device.memory_bytes
    assert sum(priced(10**9)) == pytest.approx(device)  # systems divide a batch that does not fit


@pytest.mark.usefixtures("laptop")
def test_gpus_of_whole_steps_hold_their_slices_and_shards() -> None:
    """In float32 a parameter is 4 bytes, its gradient, master copy and moments 16 more."""
    words = ("executor=torch", "cluster.gpus_per_node=4", "workload=pystdlib")
    whole, tokens = parts(*words, "sharding=none")
    state, activations = gpu_bytes(whole.cost, tokens)
    params = whole.model.total_params
    assert state == 20 * params
    for strategy, share in (
        (("sharding=zero1",), 8 + 12 / 8),
        (("sharding=zero2",), 4 + 16 / 8),
        (("sharding=zero3",), 20 / 8),
        (("sharding=zero1", "parallel.tensor_parallel=2"), 4 + 12 / 8),
        (("sharding=none", "parallel.pipeline_parallel=2"), 10),
    ):
        found, _ = parts(*words, *strategy)
        assert gpu_bytes(found.cost, tokens) == (pytest.approx(share * params), activations)
    found, _ = parts(*words, "sharding=zero3")
    assert gpu_bytes(found.cost, tokens, pipelines=True)[0] == pytest.approx((8 + 12 / 8) * params)
    found, _ = parts(*words, "sharding=none", "model.num_experts=4", "model.experts_per_token=2")
    of_experts = found.model.num_layers * 4 * 3 * found.model.hidden * found.model.ffn_hidden
    rest = found.model.total_params - of_experts
    assert gpu_bytes(found.cost, tokens, 2)[0] == pytest.approx(20 * (rest + of_experts / 2))
    large, tokens = parts("executor=torch", "cluster=h100_4x8", "model=llama_7b", "tokens_per_gpu=1024")
    with pytest.raises(ValueError, match=r"^model is llama_7b with tokens_per_gpu=1,024 on 32 ranks, which are proc"):
        check_ranks_here(large, tokens)
