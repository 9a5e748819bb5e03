"""Numbers of parameters of a whole model: its layers, the table and the head, and those on hosts. Pure data."""

from typing import Literal

from zbench.describe.layers.layer_parameters import LayerParameters
from zbench.describe.layers.on_hosts import LayersOnHosts

WORDS, VALUE = HEADS = ("words", "value")
TIED = "tied"  # a head of words that is the embedding table
TWO_TABLES = "two_tables"  # one on another stage than that, which has a table of its own with the same numbers


class ModelParameters(LayersOnHosts, LayerParameters):
    """Numbers of parameters of a model; zbench.describe.model.Model has the fields, and what they mean."""

    __slots__ = ()
    dense_layers: int
    dense_ffn_hidden: int
    vocab: int
    tied_embeddings: bool
    head: Literal["words", "value"]
    pipeline_parallel: int

    @property
    def dense_matmul_params(self) -> int:
        """Parameters of one dense first layer that a token is multiplied with."""
        return self.attention_params + 3 * self.hidden * self.dense_ffn_hidden

    @property
    def dense_layer_params(self) -> int:
        """Parameters of one dense first layer, both norms among them."""
        return self.dense_matmul_params + 2 * self.hidden

    def _of_all_layers(self, dense: int, other: int) -> int:
        """Returns the sum over all layers of a dense first one's number and another one's."""
        return self.dense_layers * dense + (self.num_layers - self.dense_layers) * other

    @property
    def has_two_tables(self) -> bool:
        """Whether the first and the last of several stages have a table each, which tied embeddings keep equal."""
        return self.tied_embeddings and self.pipeline_parallel > 1

    @property
    def kind_of_head(self) -> str:
        """The head: "words", "value", or "tied" where scores of words are by the embedding table; "two_tables" where
        that is on another stage."""
        return TWO_TABLES if self.has_two_tables else TIED if self.tied_embeddings else self.head

    @property
    def head_outputs(self) -> int:
        """Numbers that the head makes of a token: a word's each, or one."""
        return self.vocab if self.head == WORDS else 1

    @property
    def head_params(self) -> int:
        """Parameters of the output projection, onto the vocabulary or one number."""
        return self.head_outputs * self.hidden

    @property
    def table_params(self) -> int:
        """Parameters of the embedding table."""
        return self.vocab * self.hidden

    @property
    def active_matmul_params(self) -> int:
        """Parameters a token is multiplied with: all layers and the head; the embedding look-up multiplies nothing."""
        return self._of_all_layers(self.dense_matmul_params, self.layer_matmul_params) + self.head_params

    @property
    def total_params(self) -> int:
        """Parameters of the whole model, embeddings among them."""
        head = 0 if self.tied_embeddings else self.head_params
        return self._of_all_layers(self.dense_layer_params, self.layer_params) + self.table_params + head + self.hidden

    @property
    def placed_params(self) -> int:
        """Parameters of all stages together, on which a table may be there twice."""
        return self.total_params + (self.table_params if self.has_two_tables else 0)

    @property
    def params_updated_on_hosts(self) -> int:
        """The parameters whose optimizer state is in host memory: those of so many layers; of the head, where it has
        its own and some layers' are; of the tables where all layers' are."""
        layers = self.layers_updated_on_hosts
        of_head = self.hidden + (0 if self.tied_embeddings else self.head_params)
        of_layers = self.params_of_last(layers)
        if layers == self.num_layers:
            return of_layers + of_head + self.table_params * (2 if self.has_two_tables else 1)
        return of_layers + of_head if layers and not self.tied_embeddings else of_layers

    @property
    def params_held_by_hosts(self) -> int:
        """The parameters that are in host memory themselves: where their state is, and where they rest."""
        resting = min(self.parameters_on_hosts, self.num_layers - self.layers_updated_on_hosts)
        return self.params_updated_on_hosts + self.params_of_first(resting)

    def params_of_first(self, layers: int) -> int:
        """Returns the parameters of so many layers, the first ones, of which some may be dense."""
        dense = min(layers, self.dense_layers)
        return dense * self.dense_layer_params + (layers - dense) * self.layer_params

    def params_of_last(self, layers: int) -> int:
        """Returns the parameters of so many layers, the last ones, of which the first may be dense."""
        others = min(layers, self.num_layers - self.dense_layers)
        dense = (layers - others) * self.dense_layer_params if layers > others else 0
        return others * self.layer_params + dense
