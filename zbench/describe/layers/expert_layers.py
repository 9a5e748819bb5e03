"""Experts of a model's layers, and how many first layers are dense instead. Pure data."""

from typing import Literal


class ExpertLayers:
    """The experts of a model, and its dense first layers; zbench.describe.model.Model has the fields, and what they
    mean."""

    __slots__ = ()
    name: str
    num_layers: int
    num_experts: int
    experts_per_token: int
    shared_experts: int
    dense_layers: int
    dense_ffn_hidden: int
    gate: Literal["softmax", "softmax_all", "sigmoid"]
    router: Literal["linear", "cosine"]
    router_dim: int
    router_temperature: float

    def check_alike(self, why: str) -> None:
        """Refuses dense layers before others where layers are to be alike. why: what takes alike ones, a clause.

        Raises:
            ValueError: there are some.
        """
        if self.dense_layers:
            raise ValueError(
                f"model.dense_layers is {self.dense_layers}, as of {self.name}; {why}, so it takes 0 (and "
                "model.dense_ffn_hidden 0)"
            )
