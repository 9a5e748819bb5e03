"""The first layers of a model with experts, which may be dense: how many, and of how many columns. Pure data."""


class LeadingLayers:
    """Properties of a model that follow from its dense first layers; zbench.describe.model.Model has the fields, and
    what they mean."""

    __slots__ = ()
    name: str
    num_layers: int
    num_experts: int
    dense_layers: int
    dense_ffn_hidden: int

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
