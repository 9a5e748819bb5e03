"""The first layers of a model with experts, which may be dense: how many they are, and their feed-forward's columns."""

from zbench.describe.checks import MOST, check_whole_number


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

    def check_dense_layers(self) -> None:
        """Refuses dense layers that a model cannot have.

        Raises:
            ValueError: it has too many, or no experts, or columns without such layers.
        """
        check_whole_number("model.dense_layers", self.dense_layers, 0, MOST)
        if not self.dense_layers:
            if self.dense_ffn_hidden:
                told = "with model.dense_layers=0 there is no dense layer, so it takes 0"
                raise ValueError(f"model.dense_ffn_hidden is {self.dense_ffn_hidden}; {told}")
            return
        if self.num_experts == 1:
            raise ValueError(
                f"model.dense_layers is {self.dense_layers}; model {self.name} has no experts, so all of its layers "
                "are dense and it takes 0"
            )
        if self.dense_layers >= self.num_layers:
            raise ValueError(
                f"model.dense_layers is {self.dense_layers}; model {self.name} has {self.num_layers} layers, of which "
                f"at least the last has experts: it takes 0 to {self.num_layers - 1}"
            )
        check_whole_number("model.dense_ffn_hidden", self.dense_ffn_hidden, 1, MOST)
