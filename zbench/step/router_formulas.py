"""The formulas of a layer whose router chooses experts while the step runs, from its logits to experts' outputs.

Which token has which seat is of all tokens of a GPU. Where each expert is cut over GPUs, a home sends rows, shares and
numbers to one of them, which passes them on to the others and sums what these make of their columns: `to` says who has
the seats of the group, and cn, pn, ni and nv are of the group what ct, pa, i and v are of a GPU.
"""

_FORMULAS = """
{logits}
ra[a(t)] += collect(r[t])
to[a,<cut>] = {choose}(ra[a])
<numbers>
<shares>[a(t),<cut>] += {gate}_of_seats<counted>(r[t], to[a(t),<cut>])
<rows>[a(t),<cut>] += seat<counted>(m[t], to[a(t),<cut>])
{beside}
<to_each>
z[a,e] = enter<counted>(i[a,k(e)], ez[e]<of_rows>) for route(a, e)
u[a,e] = act(z[a,e]) for route(a, e)
v[a,k(e)] += leave<counted>(pa[a,k(e)], u[a,e], ed[e]<of_rows>) for route(a, e)
<of_each>
{down}
b[t] += unseat<counted>(<home>[a(t),<cut>], to[a(t),<cut>])
x'[t] = y[t] + b[t]{shared}
"""
_TO_EACH = "pa[a,k] = replicate<counted>(pn[a,n(k)]<of_group>)\ni[a,k] = replicate<counted>(ni[a,n(k)]<of_group>)"
_OF_EACH = "nv[a,n(k)] += sum_parts<counted>(v[a,k]<of_group>)"


def router_formulas(grouped: bool, counted: bool) -> str:
    """Returns the formulas, with the names of functions in braces. grouped: whether each expert is cut over GPUs;
    counted: whether those seats alone are sent that have a token: then how many there are goes ahead, and what is of
    seats elsewhere reads it."""
    counts = "ct[a,k] = replicate_counts(cn[a,n(k)])\n" if counted and grouped else ""
    words = {
        "to_each": counts + _TO_EACH if grouped else "",
        "of_each": _OF_EACH if grouped else "",
        "numbers": f"{'cn' if grouped else 'ct'}[a,<cut>] = count(to[a,<cut>])" if counted else "",
        "shares": "pn" if grouped else "pa",
        "rows": "ni" if grouped else "i",
        "home": "nv" if grouped else "v",
        "cut": "n" if grouped else "k",
        "of_rows": ", ct[a,k(e)]" if counted else "",
        "of_group": ", cn[a,n(k)]" if counted else "",
        "counted": "_counted" if counted else "",
    }
    found = _FORMULAS
    for word, stands_for in words.items():
        found = found.replace(f"<{word}>", stands_for)
    return found
