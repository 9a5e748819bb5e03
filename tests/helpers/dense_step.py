"""A training step of a dense model in one process, by torch's autograd in float64: what steps are compared with."""

import numpy as np
import torch

from zbench.describe.model import Model

SHAPES = {
    "g1": "e", "wq": "ehd", "wkv": "egkd", "wo": "hde", "g2": "e", "wz": "efk", "wd": "fe", "we": "ve", "gl": "e",
    "wh": "ve", "vh": "e",
}  # fmt: skip
EXPERT_SHAPES = {**SHAPES, "wr": "ex", "ez": "xefk", "ed": "xfe"}
SHARED_SHAPES = {"wzs": "esk", "wds": "se"}  # of experts that all tokens pass, side by side
COSINE_SHAPES = {"wp": "ey", "wc": "xy"}
LEADING_SHAPES = {"wzf": "ewk", "wdf": "we"}  # of dense layers before those with experts
OUTSIDE = ("we", "gl", "wh", "vh")


def weights(model: Model, seed: int = 0) -> dict[str, np.ndarray]:
    """Random parameters, of all layers in one array."""
    rng = np.random.default_rng(seed)
    size = {
        "e": model.hidden, "h": model.num_heads, "g": model.num_kv_heads, "d": model.head_dim, "k": 2,
        "f": model.ffn_hidden, "v": model.vocab, "x": model.num_experts, "s": model.shared_experts * model.ffn_hidden,
        "y": model.router_dim, "w": model.dense_ffn_hidden,
    }  # fmt: skip
    found = {}
    of_head = {"words": "wh", "value": "vh"}.get(model.kind_of_head)
    shared = SHARED_SHAPES if model.shared_experts else {}
    shared = shared | (LEADING_SHAPES if model.dense_layers else {})
    shared = shared | (COSINE_SHAPES if model.router == "cosine" else {})
    for name, dims in ((EXPERT_SHAPES | shared) if model.num_experts > 1 else SHAPES).items():
        if name == "wr" and model.router == "cosine":
            continue
        if (model.num_experts > 1 and name in ("wz", "wd")) or (name in ("wh", "vh") and name != of_head):
            continue
        layers = () if name in OUTSIDE else (model.num_layers,)
        value = rng.standard_normal((*layers, *(size[one] for one in dims)))
        found[name] = 1 + 0.1 * value if name[0] == "g" else 0.5 * value
    return found | ({"wh": found["we"].copy()} if model.tied_embeddings else {})  # which stages have a copy of


def layers_with(model: Model, name: str) -> range:
    """The layers that have a parameter."""
    if name in ("g1", "wq", "wkv", "wo", "g2"):
        return range(model.num_layers)
    return range(model.dense_layers) if name in LEADING_SHAPES else range(model.dense_layers, model.num_layers)


def _norm(x: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt((x * x).mean(1, keepdim=True) + 1e-5) * g


def _turn(x: torch.Tensor) -> torch.Tensor:
    half = x.shape[2] // 2
    rate = 500_000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    angle = torch.arange(len(x), dtype=torch.float64)[:, None, None] * rate
    pairs = torch.complex(x[..., ::2], x[..., 1::2]) * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(pairs).flatten(2)


def _feed_forward(
    m: torch.Tensor, w: dict[str, torch.Tensor], chosen: np.ndarray | None, gate: str, temperature: float
) -> torch.Tensor:
    """What a layer's feed-forward adds; chosen: the experts of each token, of a model that has some. All experts see
    all tokens, and those that a token did not choose, or that have no room for it, have a share of 0."""
    if chosen is None:
        up, down = ("wzf", "wdf") if "wzf" in w else ("wz", "wd")
        z = torch.einsum("te,efk->tfk", m, w[up])
        return (torch.nn.functional.silu(z[..., 0]) * z[..., 1]) @ w[down]
    common = torch.zeros_like(m)
    if "wzs" in w:
        z = torch.einsum("te,esk->tsk", m, w["wzs"])
        common = (torch.nn.functional.silu(z[..., 0]) * z[..., 1]) @ w["wds"]
    experts, room = torch.from_numpy(np.where(chosen < 0, -1 - chosen, chosen)), torch.from_numpy(chosen >= 0)
    if temperature:
        tokens, rows = torch.nn.functional.normalize(m @ w["wp"]), torch.nn.functional.normalize(w["wc"])
        logits = tokens @ rows.T / temperature
    else:
        logits = m @ w["wr"]
    picked = torch.gather(logits, 1, experts)
    parts = {
        "softmax": picked.softmax(1),
        "softmax_all": torch.gather(logits.softmax(1), 1, experts),
        "sigmoid": picked.sigmoid() / picked.sigmoid().sum(1, keepdim=True),
    }
    share = torch.zeros_like(logits).scatter(1, experts, parts[gate] * room)
    z = torch.einsum("te,xefk->txfk", m, w["ez"])
    return common + torch.einsum("tx,txf,xfe->te", share, torch.nn.functional.silu(z[..., 0]) * z[..., 1], w["ed"])


def step(
    model: Model,
    given: dict[str, np.ndarray],
    sequences: list[tuple[np.ndarray, np.ndarray]],
    routes: list[np.ndarray] | None = None,
) -> tuple[float, dict[str, np.ndarray]]:
    """(sum of the losses of all tokens, gradients of all parameters); sequences: (tokens, targets) of each, routes: the
    experts of its tokens, of each layer where there are three axes."""
    tied = ("wh",) if model.tied_embeddings else ()
    leaves = {name: torch.tensor(value, requires_grad=True) for name, value in given.items() if name not in tied}
    total = torch.zeros((), dtype=torch.float64)
    for number, (tokens, targets) in enumerate(sequences):
        x = leaves["we"][torch.from_numpy(tokens)]
        at = np.arange(len(tokens))
        seen = torch.from_numpy(model.mask.sees(at[:, None], at))
        for layer in range(model.num_layers):
            w = {name: value[layer] for name, value in leaves.items() if name not in OUTSIDE}
            n = _norm(x, w["g1"])
            q = _turn(torch.einsum("te,ehd->thd", n, w["wq"]))
            kv = torch.einsum("te,egkd->tgkd", n, w["wkv"])
            kv = kv.repeat_interleave(model.num_heads // model.num_kv_heads, 1)
            scores = torch.einsum("thd,shd->hts", q, _turn(kv[:, :, 0])) / model.head_dim**0.5
            scores = scores.masked_fill(~seen, -torch.inf)
            o = torch.einsum("hts,shd->thd", scores.softmax(2), kv[:, :, 1])
            y = x + torch.einsum("thd,hde->te", o, w["wo"])
            mine = None if routes is None or layer < model.dense_layers else routes[number]
            mine = mine if mine is None or mine.ndim < 3 else mine[layer]
            x = y + _feed_forward(_norm(y, w["g2"]), w, mine, model.gate, model.router_temperature)
        if model.head == "value":  # half the squares of how far values are from targets, as numbers
            values = _norm(x, leaves["gl"]) @ leaves["vh"]
            total = total + ((values - torch.from_numpy(targets)) ** 2).sum() / 2
            continue
        logits = _norm(x, leaves["gl"]) @ leaves["we" if model.tied_embeddings else "wh"].T
        total = total + torch.nn.functional.cross_entropy(logits, torch.from_numpy(targets), reduction="sum")
    total.backward()
    gradients = {name: leaf.grad.numpy() for name, leaf in leaves.items()}
    return float(total.detach()), gradients | dict.fromkeys(tied, gradients["we"])
