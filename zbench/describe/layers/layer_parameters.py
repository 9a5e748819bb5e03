"""The parameters of one layer of a model, and the columns of its feed-forwards. Pure data."""

from typing import Literal


class LayerParameters:
    """Numbers of a model's layer with experts, or of each where none has any; zbench.describe.model.Model has the
    fields, and what they mean."""

    __slots__ = ()
    hidden: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_hidden: int
    num_experts: int
    experts_per_token: int
    shared_experts: int
    router: Literal["linear", "cosine"]
    router_dim: int

    @property
    def attention_params(self) -> int:
        """Parameters of one layer's q, k, v and output projections."""
        return self.hidden * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)

    @property
    def ffn_params(self) -> int:
        """Parameters of one SwiGLU feed-forward (gate, up, down): of one expert where there are experts."""
        return 3 * self.hidden * self.ffn_hidden

    @property
    def expert_params(self) -> int:
        """Parameters of one layer's experts that tokens choose among; 0 without experts."""
        return self.ffn_params * self.num_experts if self.num_experts > 1 else 0

    @property
    def common_ffn(self) -> int:
        """Columns of the feed-forward that every token passes, by which tensor parallelism cuts it: of shared experts
        all of theirs; without these the model's own, which is then no feed-forward of its own if it has experts."""
        return self.ffn_hidden * max(1, self.shared_experts)

    @property
    def active_ffn(self) -> int:
        """Columns of all feed-forwards that a token passes in a layer."""
        return self.ffn_hidden * (self.experts_per_token + self.shared_experts)

    @property
    def router_params(self) -> int:
        """Parameters of one layer's router; 0 without experts."""
        if self.router == "cosine":
            return self.router_dim * (self.hidden + self.num_experts)
        return self.hidden * self.num_experts if self.num_experts > 1 else 0

    @property
    def layer_matmul_params(self) -> int:
        """Parameters of one layer that a token is multiplied with (active experts only)."""
        return self.attention_params + 3 * self.hidden * self.active_ffn + self.router_params

    @property
    def layer_params(self) -> int:
        """Parameters of one layer, all experts and both norms."""
        experts = self.ffn_params * (self.num_experts + self.shared_experts)
        return self.attention_params + experts + self.router_params + 2 * self.hidden
