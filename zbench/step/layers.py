"""The formulas of a model's layers, of what is before and after them, and of the optimizer.

Slots: t tokens, s tokens as keys, h query heads, g kv heads, f columns of the feed-forward, e experts, k slices of
them, v words of the vocabulary. Weights have the name of what they make: wq makes q; wz is gate and up in one. Norms'
gains are g1, g2, gl.

n, m are inputs after their norm; q, kv are turned by their positions (RoPE); o comes with its log-sum-exp; z is gate
and up, u their product; x' is the next layer's x. l is what the loss of a token needs of all words: the log-sum-exp of
the logits, and the target's logit.

With experts: r has router logits. Slice k of the experts lies on a GPU of each group of them: i has those tokens of t
that go there, p their shares of the chosen experts; z, u are those of an expert's tokens; v is the sum of what the
experts of a slice make of them, by shares; ez is an expert's gate and up, ed its way down.
"""

from collections.abc import Mapping
from types import MappingProxyType

from zbench.step.formula import Formula, parse_formulas
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
EXPERTS = (
    ATTENTION
    + """
r[t]       = m[t] wr
p[t,k]     = share(r[t])                      for goes(t, k)
i[t,k]     = pick(m[t])                       for goes(t, k)
z[t,e]     = enter(i[t,k(e)], ez[e])          for route(t, e)
u[t,e]     = act(z[t,e])                      for route(t, e)
v[t,k(e)] += leave(p[t,k(e)], u[t,e], ed[e])  for route(t, e)
b[t]      += settle(v[t,k])                   for goes(t, k)
x'[t]      = y[t] + b[t]
"""
)
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
ATTEND_BACKWARD = """
e[t,h]                 = row_sums(o[t,h], do[t,h])
dq[t,h], dkv[s,g(h)] += attend_d(q[t,h], kv[s,g(h)], do[t,h], e[t,h])  for visible(t, s)
"""
_SCORE_BACKWARD = """
dc[t]       += score_d0(c[t], {table}[v], l[t])
d{table}[v] += score_d1(c[t], {table}[v], l[t])
"""
# Of functions: which operands the gradient of each operand reads again.
DERIVATIVES: Mapping[str, Derivative] = MappingProxyType({
    "norm": Derivative(((0, 1), (0,))),
    "turn": Derivative(((1,), (0,))),
    "turn_keys": Derivative(((1,), (0,))),
    "attend": Derivative(given=ATTEND_BACKWARD),
    "act": Derivative(((0,),)),
    "share": Derivative(((0,),)),
    "pick": Derivative(((),)),
    "enter": Derivative(((1,), (0,))),
    "leave": Derivative(((1, 2), (0, 2), (0, 1))),
    "settle": Derivative(((),)),
    "lose": Derivative((None,)),
})  # fmt: skip
SLICED = ("h", "g", "f", "v")  # slots of which each GPU of a tensor-parallel group has a slice
MERGE: Mapping[str, str] = MappingProxyType({"o": "softmax", "l": "softmax"})  # of sums that are not added


def is_sliced(formula: Formula) -> bool:
    """Returns whether GPUs of a group compute a slice of a formula each."""
    return any(slot in SLICED for slot in formula.slots)


def of_experts(formula: Formula) -> bool:
    """Returns whether a formula is computed where experts are."""
    return "e" in formula.slots


def is_gradient_of_experts(formula: Formula) -> bool:
    """Returns whether a formula adds to the gradient of experts' parameters."""
    return of_experts(formula) and formula.action == "+=" and formula.results[0].slots == ("e",)


def head_forward(tied: bool) -> tuple[Formula, ...]:
    """Returns the formulas of what is after the layers, forward alone. tied: as of `head`."""
    return parse_formulas(_HEAD.format(table="we" if tied else "wh"))


def head(tied: bool) -> tuple[Formula, ...]:
    """Returns the formulas of what is after the layers, forward and backward. tied: the words' scores are by the
    embedding table, whose gradient is then of both."""
    table, forward = "we" if tied else "wh", head_forward(tied)
    score = Derivative(given=_SCORE_BACKWARD.format(table=table))
    return forward + transpose(forward, {**DERIVATIVES, "score": score})


def update(weight: str, axes: str = "") -> str:
    """Returns the formula that updates a parameter: its moments are the state s + its name."""
    ref = f"[{axes}]" if axes else ""
    return f"{weight}{ref}, s{weight}{ref} := adam({weight}{ref}, s{weight}{ref}, d{weight}{ref})"
