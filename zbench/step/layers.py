"""The formulas of a model's layers, of what is before and after them, and of the optimizer.

Slots: t tokens, s tokens as keys, h query heads, g kv heads, f columns of the feed-forward, e experts, k slices of
them, n nodes of these, v words of the vocabulary. Weights have the name of what they make: wq makes q; wz is gate and
up in one. Norms' gains are g1, g2, gl.

n, m are inputs after their norm; q, kv are turned by their positions (RoPE); o comes with its log-sum-exp; z is gate
and up, u their product; x' is the next layer's x. l is what the loss of a token needs of all words: the log-sum-exp of
the logits, and the target's logit. val is a token's value, where the head (vh) makes one number of it.

With experts: r has router logits, of rh, projections of the tokens, where these are cosines. Slice k of the experts
lies on a GPU of each group of them: i has those tokens of t that go there, p their shares of the chosen experts; z, u
are those of an expert's tokens; v is the sum of what the experts of a slice make of them, by shares; ez is an expert's
gate and up, ed its way down. Shared experts, which all tokens pass, are one feed-forward: zs, us and bs are its z, u
and b. In two levels ni has those tokens that go to a node n of the experts, i those of them that go on to a slice
there, and nv is the sum of v over the node's slices. By 2DH n are numbers of GPUs in their nodes, ni, np and nv have
the rows of i, p and v of all slices on such GPUs, and what aligns them copies rows alone. Where each expert is cut over
GPUs, e are parts of experts (zbench.step.expert_cut), and n groups of GPUs that have the same ones.

The first layers of a model with experts may be dense: mf, zf, uf and bf are m, z, u and b there, w the columns of their
feed-forward, which are others than experts'. What layers of one kind alone have has names of its own, so that a name
says which layers there is one of.

Where a router chooses while the step runs, a are all tokens of a GPU: ra has their logits, to the token that has each
seat of a slice of the experts, and i, pa (shares), z, u and v are of seats, with a token or without. Where these are
counted, they are of the seats alone that have a token, and ct has how many these are of each expert. With experts cut
over GPUs, to is of groups of these, and cn, pn, ni and nv are ct, pa, i and v of a group (zbench.step.router_formulas).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from zbench.describe.expert_schedule import DRAWN, EXPERT_CHOICE, TOKEN_CHOICE
from zbench.describe.layers.model_parameters import TIED, TWO_TABLES, VALUE, WORDS
from zbench.describe.model import COSINE, LINEAR, SIGMOID, SOFTMAX, SOFTMAX_ALL
from zbench.step.formula import Formula, parse_formulas
from zbench.step.router_formulas import router_formulas
from zbench.step.transpose import Derivative, transpose

ATTENTION = """
n[t]    = norm(x[t], g1)
q[t,h]  = turn(n[t], wq[h])
kv[t,g] = turn_keys(n[t], wkv[g])
o[t,h] += attend(q[t,h], kv[s,g(h)])  for visible(t, s)
a[t]   += o[t,h] wo[h]
y[t]    = x[t] + a[t]
m[t]    = norm(y[t], g2)
"""
DENSE = (
    ATTENTION
    + """
z[t,f]  = m[t] wz[f]
u[t,f]  = act(z[t,f])
b[t]   += u[t,f] wd[f]
x'[t]   = y[t] + b[t]
"""
)
# A dense layer before layers with experts: m is of these alone, as it has gradients of other formulas there.
LEADING_DENSE = (
    ATTENTION.replace("m[t] ", "mf[t]")
    + """
zf[t,w] = mf[t] wzf[w]
uf[t,w] = act(zf[t,w])
bf[t]  += uf[t,w] wdf[w]
x'[t]   = y[t] + bf[t]
"""
)
_EXPERTS = (
    ATTENTION
    + """
{logits}
{out}z[t,e]     = enter(i[t,k(e)], ez[e])          for route(t, e)
u[t,e]     = act(z[t,e])                      for route(t, e)
v[t,k(e)] += leave(p[t,k(e)], u[t,e], ed[e])  for route(t, e)
{home}x'[t]      = y[t] + b[t]{shared}
"""
)
# Beside shared experts' gate and up tokens go to the others, and beside their way down they come home, as with
# Megatron-Core's --moe-shared-expert-overlap (its documentation of experts).
# The functions of shares, by a model's gate.
SHARES: Mapping[str, str] = MappingProxyType({
    SOFTMAX: "share", SOFTMAX_ALL: "share_all", SIGMOID: "share_sigmoid",
})  # fmt: skip
_SHARED_IN = "zs[t,f] = m[t] wzs[f]\nus[t,f] = act(zs[t,f])\n"
_SHARED_DOWN = "bs[t] += us[t,f] wds[f]\n"


# Tensors that say how many rows have a token, of each expert of a slice, and of a group of GPUs with the same ones.
COUNTS, GROUP_COUNTS = EVERY_COUNT = ("ct", "cn")
# The functions that choose, by who does: tokens their experts, or experts their tokens.
CHOICES: Mapping[str, str] = MappingProxyType({TOKEN_CHOICE: "choose_experts", EXPERT_CHOICE: "choose_tokens"})


_LOGITS: Mapping[str, str] = MappingProxyType({
    LINEAR: "r[t] = m[t] wr", COSINE: "rh[t] = m[t] wp\nr[t] = cosine(rh[t], wc)",
})  # fmt: skip


@dataclass(frozen=True)
class RouterFormulas:
    """The kinds of formulas that a router has: gate, scores, of zbench.describe.model.GATES and ROUTERS, and routing,
    of zbench.describe.expert_schedule.ROUTINGS. counted: whether the seats alone are sent that have a token. aligned:
    whether rows that go in two steps are brought into order between them, and neither once a node nor summed (2DH)."""

    gate: str = SOFTMAX
    scores: str = LINEAR
    routing: str = DRAWN
    counted: bool = False
    aligned: bool = False


USUAL_ROUTER = RouterFormulas()


def expert_layer(shared: bool, two_level: bool, router: RouterFormulas) -> str:
    """Returns the formulas of a layer with experts. shared: whether all tokens pass some of them; two_level: whether
    rows go to a node, or to GPUs that have the same experts, once, and there to the GPUs of their experts, and back, or
    by 2DH (RouterFormulas.aligned)."""
    beside, down = (_SHARED_IN, _SHARED_DOWN) if shared else ("", "")
    logits, gate, routing = _LOGITS[router.scores], router.gate, router.routing
    if routing != DRAWN:
        common = " + bs[t]" if shared else ""
        named = {"choose": CHOICES[routing], "gate": SHARES[gate], "beside": beside, "down": down, "shared": common}
        return ATTENTION + router_formulas(two_level, router.counted).format(logits=logits, **named)
    shares = f"{{to}} = {SHARES[gate]}(r[t]) for {{those}}\n"
    own = shares.format(to="p[t,k]", those="goes(t, k)")
    if two_level and router.aligned:
        out = shares.format(to="np[t,n]", those="visits(t, n)") + f"ni[t,n] = pick(m[t]) for visits(t, n)\n{beside}"
        out += "p[t,k] = align(np[t,n(k)]) for goes(t, k)\ni[t,k] = align(ni[t,n(k)]) for goes(t, k)\n"
        home = f"nv[t,n(k)] += realign(v[t,k]) for goes(t, k)\n{down}b[t] += settle(nv[t,n]) for visits(t, n)\n"
    elif two_level:
        out = f"{own}ni[t,n] = pick(m[t]) for visits(t, n)\n{beside}i[t,k] = relay(ni[t,n(k)]) for goes(t, k)\n"
        home = f"nv[t,n(k)] += together(v[t,k]) for goes(t, k)\n{down}b[t] += settle(nv[t,n]) for visits(t, n)\n"
    else:
        out = f"{own}i[t,k] = pick(m[t]) for goes(t, k)\n{beside}"
        home = f"{down}b[t] += settle(v[t,k]) for goes(t, k)\n"
    return _EXPERTS.format(logits=logits, out=out, home=home, shared=" + bs[t]" if shared else "")


EMBEDDING = """
w[t]   += lookup(we[v])
x[t]    = w[t]
"""
EMBEDDING_BACKWARD = """
dwe[v] += lookup_d0(dx[t])
"""
_HEAD = """
c[t]    = norm(x[t], gl)
l[t]   += score(c[t], {table}[v])
loss   += lose(l[t])
"""
_VALUE_HEAD = """
c[t]    = norm(x[t], gl)
val[t]  = value(c[t], vh)
loss   += regress(val[t])
"""
ATTEND_BACKWARD = """
e[t,h]                 = row_sums(o[t,h], do[t,h])
dq[t,h], dkv[s,g(h)] += attend_d(q[t,h], kv[s,g(h)], do[t,h], e[t,h])  for visible(t, s)
"""
_SCORE_BACKWARD = """
dc[t]       += score_d0(c[t], {table}[v], l[t])
d{table}[v] += score_d1(c[t], {table}[v], l[t])
"""
_VALUE_BACKWARD = """
dc[t]  = value_d0(vh, val[t])
dvh   += value_d1(c[t], val[t])
"""
# Of functions: which operands the gradient of each operand reads again.
DERIVATIVES: Mapping[str, Derivative] = MappingProxyType({
    "norm": Derivative(((0, 1), (0,))),
    "turn": Derivative(((1,), (0,))),
    "turn_keys": Derivative(((1,), (0,))),
    "attend": Derivative(given=ATTEND_BACKWARD),
    "act": Derivative(((0,),)),
    **{name: Derivative(((0,),)) for name in SHARES.values()},
    **{f"{name}_of_seats": Derivative(((0, 1), None)) for name in SHARES.values()},
    **{name: Derivative((None,)) for name in ("collect", *CHOICES.values())},
    "seat": Derivative(((1,), None)),
    "unseat": Derivative(((1,), None)),
    **{f"{name}_of_seats_counted": Derivative(((0, 1), None)) for name in SHARES.values()},
    "count": Derivative((None,)),
    "seat_counted": Derivative(((1,), None)),
    "unseat_counted": Derivative(((1,), None)),
    "replicate_counts": Derivative((None,)),
    "replicate": Derivative(((),)),
    "sum_parts": Derivative(((),)),
    "replicate_counted": Derivative(((1,), None)),
    "sum_parts_counted": Derivative(((1,), None)),
    "enter_counted": Derivative(((1, 2), (0, 2), None)),
    "leave_counted": Derivative(((1, 2, 3), (0, 2, 3), (0, 1, 3), None)),
    "cosine": Derivative(((0, 1), (0, 1))),
    "pick": Derivative(((),)),
    "enter": Derivative(((1,), (0,))),
    "leave": Derivative(((1, 2), (0, 2), (0, 1))),
    "settle": Derivative(((),)),
    "relay": Derivative(((),)),
    "together": Derivative(((),)),
    "align": Derivative(((),)),
    "realign": Derivative(((),)),
    "value": Derivative(given=_VALUE_BACKWARD),
    **{name: Derivative((None,)) for name in ("lose", "regress")},
})  # fmt: skip
_TABLES: Mapping[str, str] = MappingProxyType({WORDS: "wh", TIED: "we", TWO_TABLES: "wh"})  # that score words
SLICED = ("h", "g", "f", "v", "w")  # slots of which each GPU of a tensor-parallel group has a slice
MERGE: Mapping[str, str] = MappingProxyType({"o": "softmax", "l": "softmax"})  # of sums that are not added


def without_counts(function: str) -> str:
    """Returns the function that a function of counted seats is but for which rows it has."""
    return function.replace("_counted", "")


def is_sliced(formula: Formula) -> bool:
    """Returns whether GPUs of a group compute a slice of a formula each."""
    return any(slot in SLICED for slot in formula.slots)


def is_attention(formula: Formula) -> bool:
    """Returns whether a formula is of tokens that see each other."""
    return formula.relation is not None and formula.relation[0] == "visible"


def of_experts(formula: Formula) -> bool:
    """Returns whether a formula is computed where experts are."""
    return "e" in formula.slots


def of_relay(formula: Formula) -> bool:
    """Returns whether a formula is computed where a node gets tokens for its experts and sends what these make home."""
    return any(axis.map == "n" for one in (*formula.results, *formula.operands) for axis in one.axes)


def of_shared_experts(formula: Formula) -> bool:
    """Returns whether a formula is a matmul or the activation of shared experts, forward or backward, which need
    nothing of the others."""
    return any(
        one.tensor.rstrip("~").removeprefix("d") in ("zs", "us") for one in (*formula.results, *formula.operands)
    )


def is_gradient_of_experts(formula: Formula) -> bool:
    """Returns whether a formula adds to the gradient of experts' parameters."""
    return of_experts(formula) and formula.action == "+=" and formula.results[0].slots == ("e",)


def head_forward(kind: str) -> tuple[Formula, ...]:
    """Returns the formulas of what is after the layers, forward alone. kind: as of `head`."""
    return parse_formulas(_VALUE_HEAD if kind == VALUE else _HEAD.format(table=_TABLES[kind]))


def head(kind: str) -> tuple[Formula, ...]:
    """Returns the formulas of what is after the layers, forward and backward. kind: of
    zbench.describe.model.Model.kind_of_head; tied, words' scores are by the embedding table, whose gradient is then of
    both."""
    forward = head_forward(kind)
    score = Derivative(given=_SCORE_BACKWARD.format(table=_TABLES.get(kind, "")))
    return forward + transpose(forward, {**DERIVATIVES, "score": score})


def update(weight: str, axes: str = "") -> str:
    """Returns the formula that updates a parameter: its moments are the state s + its name."""
    ref = f"[{axes}]" if axes else ""
    return f"{weight}{ref}, s{weight}{ref} := adam({weight}{ref}, s{weight}{ref}, d{weight}{ref})"
