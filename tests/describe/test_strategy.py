"""The groups beside a model: what their yamls say, what they refuse, and how they come to a model's fields."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from hydra.utils import instantiate
from omegaconf import OmegaConf

from zbench import CONF
from zbench.describe.degrees import NODE, WORLD, ShardDegrees, TransferBits
from zbench.describe.exchanges import ASYNC_TP, DIRECT, METHODS, RING, SLICED, ExchangeOverlap
from zbench.describe.expert_schedule import SCHEDULES, SEQUENTIAL, Experts
from zbench.describe.model import RECOMPUTE, SHARDING, Model
from zbench.describe.overlap import USUAL
from zbench.describe.strategies.strategy_keys import strategy_words, typed_key, with_model_fields
from zbench.describe.strategies.training_strategy import TrainingStrategy
from zbench.describe.strategy import (
    ADAPTIVE,
    MODEL_FIELDS,
    STRATEGY_GROUPS,
    Parallel,
    Recompute,
    Sharding,
    TrainingMemory,
)
from zbench.describe.sync import CO2, EVERY_STEP, RoundSync
from zbench.describe.sync import METHODS as SYNC_METHODS
from zbench.run.target import make_model, make_strategy

MEMORIES = {
    "none": TrainingMemory(),
    "loss": TrainingMemory("whole", "auto"),
    "chunks": TrainingMemory(4096, 4096),
    "offload": TrainingMemory(4096, 4096, "inputs"),
    "zero_offload": TrainingMemory(offload="optimizer"),
    "alst": TrainingMemory(4096, 4096, "inputs_and_optimizer"),
}
YAMLS = sorted(path for group in STRATEGY_GROUPS for path in (CONF / group).glob("*.yaml"))
MODELS = {
    "llama_7b": ("none", "zero3", 1, 1),
    "moe_8x550m": ("none", "zero1", 1, 1),
    "tiny": ("none", "zero1", 1, 1),
    "desk": ("none", "none", 1, 1),
    "llama_13b_tp2": ("none", "zero3", 2, 1),
    "llama_30b_tp4": ("full", "zero3", 4, 1),
    "llama_7b_pp4": ("none", "zero1", 1, 4),
}

BULK = "bulk"  # Transformer Engine's name for what none has
USUAL_TRANSFERS = {ASYNC_TP: DIRECT}  # of exchanges, where they are not by ring
# Frameworks' defaults by name: strategy, window, bucket of gradients.
OVERLAPS = {
    "ddp": ("none", 1, "layer"),
    "fsdp2": ("zero3", 1, "layer"),
    "fsdp_in_order": ("zero3", "backward", "layer"),
    "deepspeed_zero3": ("zero3", 1, 500_000_000),
    "megatron_zero1": ("zero1", "all", "end"),
    "megatron_zero1_overlap": ("zero1", 1, "layer"),
}
# Degrees by name: of weights, secondary weights, gradients, optimizer state; ranks that updated weights come through,
# and that gradients are reduced among first; bits.
DEGREES = {
    "three_level": ShardDegrees(2, 2, NODE, WORLD, NODE, bits=TransferBits(gradients=4, updates=8)),
    "hsdp": ShardDegrees(NODE, NODE, NODE, NODE),
    "mics": ShardDegrees(2, 2, 2, 2),
    "fsdp2_reshard": ShardDegrees(WORLD, NODE, WORLD, WORLD),
    "hpz": ShardDegrees(WORLD, NODE, WORLD, WORLD),
    "qwz": ShardDegrees(WORLD, WORLD, WORLD, WORLD, bits=TransferBits(8, 8)),
    "qgz": ShardDegrees(WORLD, WORLD, WORLD, WORLD, hop=NODE, bits=TransferBits(gradients=4)),
    "zeropp": ShardDegrees(WORLD, NODE, WORLD, WORLD, hop=NODE, bits=TransferBits(8, 8, 4)),
}


def composed(*words: str) -> Any:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return compose("config", list(words))


def fields_of(model: Model) -> tuple[Any, ...]:
    return model.recompute, model.sharding, model.tensor_parallel, model.pipeline_parallel


@pytest.mark.parametrize("path", YAMLS, ids=lambda path: f"{path.parent.name}={path.stem}")
def test_every_choice_can_be(path: Path) -> None:
    made = instantiate(OmegaConf.load(path))
    assert type(made).__name__.lower().endswith(path.parent.name)
    if path.stem in OVERLAPS:
        assert (made.strategy, made.window, made.gradient_bucket) == OVERLAPS[path.stem]
    elif path.stem in DEGREES:
        assert (made.strategy, made.of_model, made.overlap) == ("nested", DEGREES[path.stem], USUAL)
    elif path.parent.name in ("sharding", "recompute"):
        assert path.stem in (getattr(made, "strategy", None), getattr(made, "granularity", None))
    elif path.parent.name == "parallel":
        degrees = {"tp": made.tensor_parallel, "pp": made.pipeline_parallel, "ep": made.expert_parallel}
        wanted = {} if path.stem == "none" else {path.stem[:2]: int(path.stem[2:])}
        assert {name: degree for name, degree in degrees.items() if degree != 1} == wanted
        assert made.expert_tensor_parallel == 1
    elif path.parent.name == "memory":
        assert made == MEMORIES[path.stem]
    elif path.parent.name == "overlap":
        method = "none" if path.stem == BULK else path.stem
        assert made == ExchangeOverlap(method, 4 if method == SLICED else 1, USUAL_TRANSFERS.get(method, RING))
    elif path.parent.name == "sync":
        assert made.method == path.stem
        assert (made.in_rounds, made.age) == (path.stem != EVERY_STEP, int(path.stem == CO2))
    elif path.parent.name == "job":
        assert made.has_rollouts == (path.stem != "training")
        assert path.stem in ("training", "rlhf", f"rlhf_{made.schedule}")
    else:
        assert (made.schedule, made.skew) == (path.stem, 0)
        assert made.exchanges.is_open == (path.stem != SEQUENTIAL)


def test_there_is_a_choice_for_every_value() -> None:
    names = {group: {path.stem for path in YAMLS if path.parent.name == group} for group in STRATEGY_GROUPS}
    assert (names["sharding"], names["recompute"]) == ({*SHARDING, *OVERLAPS, *DEGREES}, {*RECOMPUTE, ADAPTIVE})
    assert (names["overlap"], names["experts"]) == ({*METHODS, BULK}, set(SCHEDULES))
    assert names["sync"] == set(SYNC_METHODS)
    assert names["job"] == {"training", "rlhf", "rlhf_streamed", "rlhf_one_step_off"}


@pytest.mark.parametrize(("name", "expected"), MODELS.items())
def test_a_model_s_yaml_chooses_what_its_model_was_trained_with(name: str, expected: tuple[Any, ...]) -> None:
    assert fields_of(make_model(composed(f"model={name}"))) == expected


def test_the_command_line_wins_over_what_a_model_s_yaml_chooses() -> None:
    config = composed("model=llama_30b_tp4", "sharding=zero1", "recompute=none", "parallel.tensor_parallel=2")
    assert fields_of(make_model(config)) == ("none", "zero1", 2, 1)
    assert fields_of(make_model(composed("executor=torch_attention", "sharding=zero3"))) == ("none", "zero3", 1, 1)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama_13b_tp2", ("model=llama_13b", "parallel=tp2")),
        ("llama_30b_tp4", ("model=llama_30b", "parallel=tp4", "recompute=full")),
        ("llama_7b_pp4", ("model=llama_7b", "parallel=pp4", "sharding=zero1", "model.micro_batches=16")),
    ],
)
def test_a_composition_is_what_its_yaml_says_it_is(name: str, words: tuple[str, ...]) -> None:
    one, other = (make_model(composed(*chosen)) for chosen in ((f"model={name}",), words))
    assert replace(one, name="") == replace(other, name="")
    assert one.name == name


def test_a_strategy_sets_the_fields_of_a_model_that_no_yaml_of_a_model_has() -> None:
    exchanges = ExchangeOverlap(SLICED, 2)
    strategy = TrainingStrategy(
        Sharding("none"), Recompute("full"), TrainingMemory(), Parallel(4, 2), exchanges, Experts()
    )
    assert strategy.model_fields == {
        "recompute": "full",
        "recompute_layers": "all",
        "sharding": "none",
        "tensor_parallel": 4,
        "pipeline_parallel": 2,
        "stage_layers": "even",
        "mlp_chunk_tokens": "whole",
        "loss_chunk_tokens": "whole",
        "offload": "none",
        "offload_layers": "all",
        "offload_tokens": "all",
        "optimizer_layers": "all",
        "parameter_layers": "none",
        "host_updates": "as_gradients_come",
        "carried_layers": "all",
    }
    for path in (CONF / "model").glob("*.yaml"):
        assert not strategy.model_fields.keys() & OmegaConf.load(path).keys()


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (lambda: Sharding("zero4"), "sharding.strategy is 'zero4'; it takes none, zero1, zero2, zero3 or nested"),
        (
            lambda: Sharding("nested"),
            "sharding.degrees is null; with sharding.strategy=nested it takes weights,",
        ),
        (lambda: Sharding("zero3", degrees={}), "sharding.degrees is {}; only sharding.strategy=nested has"),
        (lambda: Sharding("zero3", -1), "sharding.window is -1; it takes a whole number of at least 0"),
        (lambda: Recompute("some"), "recompute.granularity is 'some'; it takes none, selective, chunked, full or ad"),
        (
            lambda: TrainingMemory(0),
            "memory.mlp_chunk_tokens is 0; it takes a whole number from 1 to .*, or whole",
        ),
        (
            lambda: TrainingMemory(offload="all"),
            "memory.offload is 'all'; it takes none, inputs, activations, optimizer, inputs_and_optimizer or",
        ),
        (lambda: TrainingMemory("whole", "all"), "memory.loss_chunk_tokens is 'all'; it takes .*, or whole or auto"),
        (
            lambda: Sharding("zero3", "far"),
            "sharding.window is 'far'; it takes a whole number of at least 0, all or",
        ),
        (
            lambda: Sharding("zero3", collectives="tree"),
            "sharding.collectives is 'tree'; it takes flat or hierarchical",
        ),
        (lambda: Sharding("zero3", 1, 0), "sharding.gradient_bucket is 0; it takes layer, end, or a whole number"),
        (lambda: Parallel(0), "parallel.tensor_parallel is 0"),
        (lambda: Parallel(1, True), "parallel.pipeline_parallel is True"),
        (lambda: Parallel(1, 1, 1.5), "parallel.expert_parallel is 1.5"),  # type: ignore[arg-type]
        (lambda: Parallel(1, 1, 2, 0), "parallel.expert_tensor_parallel is 0"),
        (lambda: Experts(skew=-1), "experts.skew is -1; it takes a number from 0 to below 100"),
        (lambda: Experts(skew="much"), "experts.skew is 'much'"),  # type: ignore[arg-type]
        (lambda: Experts(skew=1, popularity="pareto"), "experts.popularity is 'pareto'; it takes zipf or dirichlet"),
        (
            lambda: Experts(popularity="dirichlet"),
            "experts.popularity is dirichlet; with experts.skew=0 all experts are",
        ),
        (lambda: Experts(skew=1, drift=0), "experts.drift is 0; it takes a whole number from 1 to 16777216"),
        (lambda: Experts(capacity=0), "experts.capacity is 0; it takes dropless, or a number above 0 and up to 1024"),
        (lambda: Experts(capacity="most"), "experts.capacity is 'most'; it takes dropless, or a number above 0"),
        (lambda: Experts(capacity=1.0, padded=1), "experts.padded is 1; it takes true or false"),  # type: ignore[arg-type]
        (
            lambda: Experts(padded=True),
            "experts.padded is true; with experts.capacity=dropless an expert has no number",
        ),
        (lambda: Experts(routing="hash"), "experts.routing is 'hash'; it takes drawn, token_choice or expert_choice"),
        (lambda: Experts(routing="expert_choice"), "experts.capacity is dropless and experts.padded false; with"),
        (lambda: Experts(routing="expert_choice", capacity=2), "experts.capacity is 2 and experts.padded false; with"),
        (
            lambda: Experts("tutel", 2, routing="token_choice", capacity=1.25),
            "experts.schedule is tutel and experts.capacity 1.25; with experts.routing=token_choice",
        ),
        (
            lambda: Experts(routing="token_choice", capacity=1.25, padded=True, skew=1.0),
            "experts.skew is 1.0; with experts.routing=token_choice routers choose",
        ),
        (
            lambda: Experts("tutel", 2, routing="token_choice", capacity=1.25, padded=True),
            "experts.schedule is tutel and experts.capacity 1.25; with experts.routing=token_choice",
        ),
        (lambda: Experts(dispatch="1dh"), "experts.dispatch is '1dh'; it takes flat, two_level or 2dh"),
        (
            lambda: Experts(dispatch="2dh", routing="token_choice"),
            "experts.dispatch is 2dh; with experts.routing=token_choice experts have seats",
        ),
        (
            lambda: Experts(homes="dispatch"),
            "experts.homes is 'dispatch'; it takes planned, attention, even, even_in_node, priced or fastest",
        ),
        (
            lambda: Experts(capacity=1, padded=True, dispatch="two_level"),
            "experts.padded is true; with experts.disp",
        ),
        (
            lambda: Experts("comet"),
            "experts.schedule is 'comet'; it takes sequential, pipemoe, tutel, lina, fsmoe or clock",
        ),
        (lambda: Experts("lina", 2), "experts.gradients is 'layer'; with experts=lina it takes between$"),
        (
            lambda: Experts("clock", "auto", gradients="end"),
            "experts.gradients is 'end'; with experts=clock it takes layer or between$",
        ),
        (lambda: Experts("tutel", 0), "experts.degree is 0; it takes a whole number from 1 to 64, or auto"),
        (lambda: Experts("tutel", "few"), "experts.degree is 'few'; it takes a whole number from 1 to 64, or auto"),
        (
            lambda: Experts("sequential", 2),
            "experts.degree is 2; experts=sequential has all tokens at once, so it takes",
        ),
        (lambda: Experts("fsmoe", 2), "experts.degree is 2; experts=fsmoe chooses the chunks of forward and backward"),
    ],
)
def test_what_cannot_be_is_one_sentence(made: Any, told: str) -> None:
    with pytest.raises(ValueError, match=f"^{told}"):
        made()


def test_nothing_is_exchanged_in_groups_of_one() -> None:
    exchanges = ExchangeOverlap(SLICED, 2)
    told = r"^overlap.method is sliced; with parallel.tensor_parallel=1 no group exchanges anything, so it takes none"
    with pytest.raises(ValueError, match=told):
        TrainingStrategy(Sharding("none"), Recompute("full"), TrainingMemory(), Parallel(1, 2), exchanges, Experts())


def test_what_goes_by_chunks_takes_chunks() -> None:
    told = r"^recompute.granularity is chunked and memory.mlp_chunk_tokens whole; chunked takes chunks of tokens"
    whole, parts = ExchangeOverlap(), (Sharding("none"), Recompute("chunked"))
    with pytest.raises(ValueError, match=told):
        TrainingStrategy(*parts, TrainingMemory(), Parallel(), whole, Experts())
    assert (
        TrainingStrategy(*parts, TrainingMemory(7), Parallel(), whole, Experts()).model_fields["mlp_chunk_tokens"] == 7
    )


@pytest.mark.parametrize("level", ["selective", "adaptive"])
def test_inputs_wait_in_host_memory_where_nothing_else_is_kept(level: str) -> None:
    told = rf"^memory.offload is inputs with recompute.granularity {level}; .* so it takes recompute=full, or memory\."
    parts, inputs = (ExchangeOverlap(), Experts()), TrainingMemory(offload="inputs")
    with pytest.raises(ValueError, match=told):
        TrainingStrategy(Sharding("none"), Recompute(level), inputs, Parallel(1, 2), *parts)
    made = TrainingStrategy(Sharding("none"), Recompute("full"), inputs, Parallel(1, 2), *parts)
    assert made.model_fields["offload"] == "inputs"


@pytest.mark.parametrize("level", ["none", "selective", "full", "adaptive"])
def test_activations_wait_in_host_memory_whatever_is_recomputed(level: str) -> None:
    for layers in ("all", 3, "all" if level == "adaptive" else "auto"):
        memory = TrainingMemory(offload="activations", offload_layers=layers)
        assert memory.check_offload(level, Sharding("zero1")) is None


def test_one_choice_for_the_batch_at_hand() -> None:
    told = r"^memory.offload_layers is auto with recompute.granularity adaptive; .* so it takes all or a number$"
    with pytest.raises(ValueError, match=told):
        TrainingMemory(offload="activations", offload_layers="auto").check_offload("adaptive", Sharding("zero2"))
    told = r"^memory.offload_tokens is auto with recompute.granularity adaptive; .* so it takes all or a share$"
    with pytest.raises(ValueError, match=told):
        TrainingMemory(offload="activations", offload_tokens="auto").check_offload("adaptive", Sharding("zero2"))
    told = (
        r"^memory.offload_tokens is auto with memory.offload_layers auto; one of both .* or memory.offload_layers=all$"
    )
    with pytest.raises(ValueError, match=told):
        TrainingMemory(offload="activations", offload_layers="auto", offload_tokens="auto")


@pytest.mark.parametrize("tokens", [0.0, 1.0, 1, 0, -0.5, "some", float("nan"), True])
def test_a_share_of_tokens_on_hosts_is_between_none_and_all(tokens: float | str) -> None:
    with pytest.raises(ValueError, match=r"^memory.offload_tokens is .*; it takes a number between 0 and 1, the share"):
        TrainingMemory(offload="activations", offload_tokens=tokens)
    told = r"^memory.offload_tokens is 0.5; without inputs or activations of layers in memory.offload it takes all,"
    with pytest.raises(ValueError, match=told):
        TrainingMemory(offload="optimizer", offload_tokens=0.5)
    assert TrainingMemory(offload="activations", offload_tokens=0.5).offload_tokens == 0.5


def test_optimizer_state_is_in_one_hosts_memory() -> None:
    memory, others = TrainingMemory(offload="optimizer"), (ExchangeOverlap(), Experts())
    assert memory.check_offload("none", Sharding("zero2")) is None
    assert TrainingStrategy(Sharding("zero1"), Recompute("none"), memory, Parallel(1, 2), *others).memory == memory
    degrees = {"weights": "world", "secondary": "node", "gradients": "world", "optimizer": "world"}
    assert memory.check_offload("none", Sharding("nested", degrees=degrees)) is None
    mics = Sharding("nested", degrees=dict.fromkeys(degrees, "node"))
    for sharding, told in ((Sharding("none"), "none"), (mics, "of degrees {weights: node, .*}")):
        told = rf"^memory.offload is optimizer with sharding {told}; with it several hosts .* with optimizer: world$"
        with pytest.raises(ValueError, match=told):
            TrainingStrategy(sharding, Recompute("none"), memory, Parallel(), *others)


@pytest.mark.parametrize("layers", [2, "all", "auto"])
def test_parameters_rest_on_hosts_in_stages(layers: int | str) -> None:
    parts = Sharding("zero3"), Recompute("none"), TrainingMemory(parameter_layers=layers)
    for stages in (1, 2):
        strategy = TrainingStrategy(*parts, Parallel(1, stages), ExchangeOverlap(), Experts())
        assert strategy.model_fields["parameter_layers"] == layers


@pytest.mark.parametrize("memory", [TrainingMemory(64), TrainingMemory("whole", 64)])
def test_chunks_go_beside_slices_of_exchanges(memory: TrainingMemory) -> None:
    parts = Sharding("none"), Recompute("none"), memory, Parallel(2), ExchangeOverlap(SLICED, 2), Experts()
    assert TrainingStrategy(*parts).memory == memory


def test_nothing_is_sent_to_experts_that_every_gpu_has() -> None:
    told = r"^experts.schedule is tutel; with parallel.expert_parallel=1 no token is sent to an expert"
    with pytest.raises(ValueError, match=told):
        TrainingStrategy(
            Sharding("none"), Recompute("full"), TrainingMemory(), Parallel(), ExchangeOverlap(), Experts("tutel", 4)
        )


@pytest.mark.parametrize("key", ["tensor_parallel", "pipeline_parallel"])
def test_workers_of_rounds_have_groups_and_stages(key: str) -> None:
    parallel = Parallel(**{key: 2})
    strategy = Sharding("none"), Recompute("none"), TrainingMemory(), parallel, ExchangeOverlap(), Experts()
    assert TrainingStrategy(*strategy, RoundSync("local_sgd", 3)).sync.in_rounds
    assert not TrainingStrategy(*strategy).sync.in_rounds


@pytest.mark.parametrize(
    ("experts", "told"),
    [
        (Experts(homes="even"), r"experts\.homes is even; with sync=local_sgd .* so it takes planned"),
        (Experts(homes="fastest"), r"experts\.homes is fastest; with sync=local_sgd .* so it takes planned"),
    ],
)
def test_workers_of_rounds_have_no_homes(experts: Experts, told: str) -> None:
    parts = Sharding("none"), Recompute("none"), TrainingMemory(), Parallel(expert_parallel=2), ExchangeOverlap()
    with pytest.raises(ValueError, match=f"^{told}$"):
        TrainingStrategy(*parts, experts, RoundSync("local_sgd", 3))
    assert TrainingStrategy(*parts, experts).sync == RoundSync()
    for degree in (2, "auto"):
        assert TrainingStrategy(*parts, Experts("tutel", degree), RoundSync("local_sgd", 3)).sync.in_rounds
    for one in (Experts(routing="token_choice"), Experts("lina", gradients="between"), Experts("fsmoe", "auto")):
        assert TrainingStrategy(*parts, one, RoundSync("local_sgd", 3)).sync.in_rounds


def test_workers_of_rounds_have_hosts_of_their_own() -> None:
    """With numbers of layers that are given, and updates that are not late."""
    groups = Parallel(), ExchangeOverlap(), Experts(), RoundSync("local_sgd", 3)
    zero = Sharding("zero1"), Recompute("full")
    for memory in (
        TrainingMemory(offload="inputs"),
        TrainingMemory(offload="activations", offload_layers="auto"),
        TrainingMemory(offload="optimizer", optimizer_layers=1),
    ):
        assert TrainingStrategy(*zero, memory, *groups).sync.in_rounds
    for given, told in (
        (
            {"optimizer_layers": "auto"},
            r"optimizer_layers is auto; with sync=local_sgd .* so it takes a number or all$",
        ),
        ({"host_updates": "across_steps"}, r"host_updates is across_steps; with sync=local_sgd .* or after_backward$"),
    ):
        with pytest.raises(ValueError, match=rf"^memory\.{told}"):
            TrainingStrategy(*zero, TrainingMemory(offload="optimizer", **given), *groups)


def test_words_and_fields_are_of_the_groups() -> None:
    config = composed("parallel=tp8", "recompute=full")
    plain = {group: OmegaConf.to_container(config[group], resolve=True) for group in (*STRATEGY_GROUPS, "model")}
    said = strategy_words(plain)
    strategy = make_strategy(config)
    assert {key: said[key] for key in MODEL_FIELDS} == strategy.model_fields
    assert {key: said[key] for key in said.keys() - MODEL_FIELDS.keys()} == {
        "expert_parallel": 1,
        "expert_tensor_parallel": 1,
        "sharding.window": 1,
        "sharding.gradient_bucket": "layer",
        "sharding.collectives": "flat",
        "overlap": "none",
        "overlap.slices": 1,
        "overlap.transfers": "ring",
        "overlap.balance": "tokens",
        "experts": "sequential",
        "experts.degree": 1,
        "experts.capacity": "dropless",
        "experts.padded": False,
        "experts.dispatch": "flat",
        "experts.gradients": "layer",
        "experts.routing": "drawn",
        "experts.homes": "planned",
        "experts.skew": 0,
        "experts.popularity": "zipf",
        "experts.drift": 1,
        "sync": "every_step",
        "sync.steps": 1,
        "sync.worker": "node",
        "sync.lr": 1.0,
        "sync.momentum": 0.0,
        "sync.penalty": "none",
        "sync.penalty_constant": 1.0,
        "sync.clip": None,
        "sync.fragments": 1,
        "sync.delay": 0,
        "sync.mixing": 0.0,
        "job.algorithm": "none",
        "job.schedule": "synchronous",
        "job.generate_tensor": 1,
        "job.generate_pipeline": 1,
        "job.generate_nodes": 0,
        "job.memory_share": 0.5,
        "job.engine": "auto",
        "job.placement": "colocate",
        "job.set_nodes": None,
        "job.reference": None,
        "job.reward": None,
        "job.cost": None,
        "job.critic": None,
        "job.generation_engine": "continuous",
        "job.pass_tokens": None,
        "job.prefill_tensor": None,
        "job.host_kv": None,
    }
    other = with_model_fields(plain, {"sharding": "zero1", "tensor_parallel": 2, "num_layers": 3})
    assert strategy_words(other) == {**said, "sharding": "zero1", "tensor_parallel": 2}
    assert other["model"] == {**plain["model"], "num_layers": 3}  # type: ignore[dict-item]
    assert (typed_key("sharding"), typed_key("tensor_parallel")) == ("sharding", "parallel.tensor_parallel")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"optimizer_layers": 0}, "memory.optimizer_layers is 0; it takes a whole number from 1 to"),
        (
            {"optimizer_layers": 4},
            "memory.optimizer_layers is 4; without optimizer state in memory.offload it takes all",
        ),
        ({"parameter_layers": -1}, "memory.parameter_layers is -1; it takes a whole number from 1 to"),
        ({"parameter_layers": True}, "memory.parameter_layers is True; it takes a whole number from 1 to"),
        (
            {"host_updates": "late"},
            "memory.host_updates is 'late'; it takes as_gradients_come, after_backward or across",
        ),
        (
            {"host_updates": "after_backward"},
            "memory.host_updates is after_backward; without optimizer state in memory.",
        ),
        (
            {"offload": "optimizer", "carried_layers": 3},
            "memory.carried_layers is 3; with memory.host_updates=as_gradients_come it takes all, or memory.host_",
        ),
    ],
)
def test_layers_that_cannot_rest_on_hosts(given: dict[str, Any], told: str) -> None:
    for kind in (TrainingMemory, lambda **more: Model("one", 2, 64, 4, 2, 16, 128, 1000, **more)):
        with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
            kind(**given)


def test_parameters_rest_on_hosts_in_parts_alone() -> None:
    memory, degrees = TrainingMemory(parameter_layers=2), dict.fromkeys(("gradients", "optimizer"), "world")
    hpz, three = {**degrees, "weights": "world", "secondary": "node"}, {**degrees, "weights": "node", "secondary": 2}
    right = "sharding=zero3, or degrees with weights and optimizer: world"
    for sharding in (Sharding("zero2"), Sharding("none"), Sharding("nested", degrees=three)):
        with pytest.raises(ValueError, match=rf"^memory.parameter_layers is 2 with sharding .* so it takes {right}$"):
            memory.check_offload("none", sharding)
    for sharding in (Sharding("zero3"), Sharding("nested", degrees=hpz)):
        assert memory.check_offload("none", sharding) is None
