"""The part of a training strategy that whole steps have beside the fields of their model: what is gathered ahead and
reduced together, how exchanges go beside matmuls, and where experts are.

Pure data: a run and the library make it of a strategy's groups, executors of whole steps take it as arguments, and a
plan file keeps it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from zbench.describe.checks import check_whole_number
from zbench.describe.degrees import ShardDegrees
from zbench.describe.exchanges import WHOLE as WHOLE_EXCHANGES
from zbench.describe.exchanges import ExchangeOverlap
from zbench.describe.expert_schedule import DRAWN, DROPLESS, FLAT, PLANNED, SEQUENTIAL, USUAL_EXPERTS, Experts
from zbench.describe.model import AUTO, NONE, WHOLE
from zbench.describe.overlap import FLAT as FLAT_COLLECTIVES
from zbench.describe.overlap import LAYER, USUAL, StepOverlap
from zbench.describe.pipeline.staged_layers import ALL_LAYERS, EVEN, bracketed
from zbench.describe.strategies.training_strategy import TrainingStrategy
from zbench.describe.strategy import ADAPTIVE


@dataclass(frozen=True, slots=True)
class StepStrategy:
    """A strategy of one step, but for what a model has fields for.

    window, gradient_bucket, collectives: as zbench.describe.overlap.StepOverlap has them. expert_parallel,
    expert_tensor_parallel: as zbench.describe.strategy.Parallel has them. experts: how tokens choose them, and go
    there. exchanges: of tensor-parallel groups, beside matmuls. adaptive_recompute: whether recomputation is chosen for
    every batch.

    Raises:
        ValueError: one of them cannot be; the message names its key.
    """

    window: int | str = 1
    gradient_bucket: int | float | str = LAYER
    expert_parallel: int = 1
    experts: Experts = USUAL_EXPERTS
    exchanges: ExchangeOverlap = WHOLE_EXCHANGES
    adaptive_recompute: bool = False
    expert_tensor_parallel: int = 1
    collectives: str = FLAT_COLLECTIVES

    def __post_init__(self) -> None:
        _ = self.sharding_overlap  # refuses what cannot be
        check_whole_number("parallel.expert_tensor_parallel", self.expert_tensor_parallel, 1)

    @staticmethod
    def of(strategy: TrainingStrategy) -> "StepStrategy":
        """Returns that part of a strategy."""
        sharding, parallel = strategy.sharding, strategy.parallel
        return StepStrategy(
            sharding.window,
            sharding.gradient_bucket,
            parallel.expert_parallel,
            strategy.experts,
            strategy.overlap,
            strategy.recompute.is_adaptive,
            parallel.expert_tensor_parallel,
            sharding.collectives,
        )

    @property
    def sharding_overlap(self) -> StepOverlap:
        """The gathers and reductions that are beside the layers' work."""
        return StepOverlap(self.window, self.gradient_bucket, collectives=self.collectives)

    @property
    def plans_pipelines(self) -> bool:
        """Whether whole steps have pipelines that a planner chooses: they gather and reduce as usual."""
        return self.sharding_overlap == USUAL

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments that executors of whole steps take of it, by name."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def check_attention_alone(self, model_fields: Mapping[str, Any]) -> None:
        """Refuses what one layer's attention does not depend on. model_fields: that a strategy sets.

        Raises:
            ValueError: there is something that only whole steps have.
        """
        sharding, loss = model_fields["sharding"], model_fields["loss_chunk_tokens"]
        again = "none, selective or full"
        for name, value, usual in (
            ("sharding", f"of degrees {sharding.told}" if isinstance(sharding, ShardDegrees) else "", ""),
            ("recompute.granularity", ADAPTIVE if self.adaptive_recompute else again, again),
            ("recompute.layers", model_fields["recompute_layers"], ALL_LAYERS),
            ("parallel.stage_layers", model_fields["stage_layers"], EVEN),
            ("sharding.window", self.window, 1),
            ("sharding.gradient_bucket", self.gradient_bucket, LAYER),
            ("sharding.collectives", self.collectives, FLAT_COLLECTIVES),
            ("parallel.expert_parallel", self.expert_parallel, 1),
            ("parallel.expert_tensor_parallel", self.expert_tensor_parallel, 1),
            ("experts.schedule", self.experts.schedule, SEQUENTIAL),
            ("experts.skew", self.experts.skew, 0),
            ("experts.capacity", self.experts.capacity, DROPLESS),
            ("experts.dispatch", self.experts.dispatch, FLAT),
            ("experts.routing", self.experts.routing, DRAWN),
            ("experts.homes", self.experts.homes, PLANNED),
            ("overlap.method", self.exchanges.method, WHOLE_EXCHANGES.method),
            ("memory.mlp_chunk_tokens", model_fields["mlp_chunk_tokens"], WHOLE),
            ("memory.loss_chunk_tokens", WHOLE if loss == AUTO else loss, WHOLE),
            ("memory.offload", model_fields["offload"], NONE),
            ("memory.parameter_layers", model_fields["parameter_layers"], NONE),
        ):
            if value != usual:
                on_hosts = name in ("memory.offload", "memory.parameter_layers")  # emulated nodes have no link there
                have = "simulated or torch" if on_hosts else "simulated, torch or desk"
                raise ValueError(
                    f"{name} is {bracketed(value)}; only runs with executor={have} have that, all else takes "
                    f"{'none, zero1, zero2 or zero3' if usual == '' else usual}"
                )


USUAL_STRATEGY = StepStrategy()
