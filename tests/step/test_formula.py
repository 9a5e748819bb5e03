"""Formulas: text that is parsed once and printed again, faults with their column, and transposition."""

import pytest

from zbench.step.formula import FormulaError, parse_formula, parse_formulas
from zbench.step.layers import (
    DENSE,
    DERIVATIVES,
    EMBEDDING,
    EMBEDDING_BACKWARD,
    USUAL_ROUTER,
    expert_layer,
    head,
    update,
)
from zbench.step.passes.recompute import made_again, with_recomputation
from zbench.step.transpose import transpose


def test_what_a_formula_says() -> None:
    found = parse_formula("o[t,h] += attend(q[t,h], kv[s,g(h)])  for visible(t, s)")
    assert found.slots == ("t", "h", "s")
    assert found.summed(found.results[0]) == ("s",)
    assert found.relation == ("visible", "t", "s")
    assert [str(one) for one in found.operands] == ["q[t,h]", "kv[s,g(h)]"]
    assert parse_formula("x'[t] = y[t] + d[t]").results[0].after


EXPERTS = expert_layer(False, False, USUAL_ROUTER)
TWO_LEVEL = expert_layer(True, True, USUAL_ROUTER)


@pytest.mark.parametrize(
    "text", [DENSE, EXPERTS, TWO_LEVEL, EMBEDDING, EMBEDDING_BACKWARD, update("wq", "j,z"), update("g")]
)
def test_formulas_print_as_they_are_read(text: str) -> None:
    for one in parse_formulas(text):
        assert parse_formula(str(one)) == one


@pytest.mark.parametrize(("kind", "table"), [("words", "wh"), ("tied", "we"), ("value", "vh")])
def test_a_head_is_of_its_table(kind: str, table: str) -> None:
    found = head(kind)
    assert [parse_formula(str(one)) for one in found] == list(found)
    tables = {"wh", "we", "vh"}
    assert {ref.tensor for one in found for ref in one.operands} & tables == {table}
    gradients = {f"d{one}" for one in tables}
    assert {ref.tensor for one in found for ref in one.results} & gradients == {f"d{table}"}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "column 1: has its end where it takes the name of a tensor"),
        ("q[t,h] = n[t] wq[h", "column 19: has its end where it takes , or ]"),
        ("q[t,h] == n[t]", "column 9: has '=' where it takes a tensor or a function"),
        ("q[t,h] n[t]", "column 8: has 'n' where it takes = or += or :="),
        ("a[t] = o[t,h] wo[h]", "column 6: a[t] = has no h, which the right side has; a sum over h is written +="),
        ("a[t] += o[t] + b[t]", "column 6: += takes one term; several contributions are several formulas"),
        (
            "a[t,k(e)] = b[t,e]",
            "column 11: a[t,k(e)] = has k(e), several of which are one part; a sum over these is written +=",
        ),
        ("a[t] = b[t,5]", "column 12: has '5', which no formula has"),
        ("a[t] = f(b[t]) for visible(t, s)", "column 1: for visible names slot s, which nothing else has"),
        ("a[t] = f(b[t]) for visible t", "column 28: has 't' where it takes ("),
        ("a[t,u,v] = b[t,u] c[v,w]", "column 1: has slots t, u, v, w; it takes 3 at most"),
        ("a[t] = b[t] )", "column 13: has ')' where it takes a tensor, + or the end"),
        ("a[t] = for", "column 8: has 'for' where it takes a tensor or a function"),
    ],
)
def test_a_fault_has_a_column(text: str, told: str) -> None:
    with pytest.raises(FormulaError) as error:
        parse_formula(text)
    assert str(error.value) == told


def test_a_fault_in_several_lines_has_its_line() -> None:
    with pytest.raises(ValueError, match=r"^line 3, column 5: has its end"):
        parse_formulas("a[t] = b[t]  # a copy\n\nb[t] ")


def test_the_backward_of_a_dense_layer() -> None:
    """As autograd would: a gradient of one use is written at once, those with a sum are added to, dy is read for da."""
    assert [str(one) for one in transpose(parse_formulas(DENSE), DERIVATIVES)] == [
        "du[t,f] = dx'[t] wd[f]",
        "dwd[f] += dx'[t] u[t,f]",
        "dz[t,f] = act_d0(du[t,f], z[t,f])",
        "dm[t] += dz[t,f] wz[f]",
        "dwz[f] += dz[t,f] m[t]",
        "dy[t] = dx'[t] + norm_d0(dm[t], y[t], g2)",
        "dg2 += norm_d1(dm[t], y[t])",
        "do[t,h] = dy[t] wo[h]",
        "dwo[h] += dy[t] o[t,h]",
        "e[t,h] = row_sums(o[t,h], do[t,h])",
        "dq[t,h], dkv[s,g(h)] += attend_d(q[t,h], kv[s,g(h)], do[t,h], e[t,h]) for visible(t, s)",
        "dn[t] += turn_keys_d0(dkv[t,g], wkv[g])",
        "dwkv[g] += turn_keys_d1(dkv[t,g], n[t])",
        "dn[t] += turn_d0(dq[t,h], wq[h])",
        "dwq[h] += turn_d1(dq[t,h], n[t])",
        "dx[t] = dy[t] + norm_d0(dn[t], x[t], g1)",
        "dg1 += norm_d1(dn[t], x[t])",
    ]


def test_the_backward_of_experts_keeps_to_the_slots_that_are_routed() -> None:
    found = [str(one) for one in transpose(parse_formulas(EXPERTS), DERIVATIVES)]
    assert "dv[t,k] = settle_d0(dx'[t]) for goes(t, k)" in found
    assert "du[t,e] = leave_d1(dv[t,k(e)], p[t,k(e)], ed[e]) for route(t, e)" in found
    assert "di[t,k(e)] += enter_d0(dz[t,e], ez[e]) for route(t, e)" in found  # a sum over the experts of a slice
    assert "dm[t] += pick_d0(di[t,k]) for goes(t, k)" in found
    assert "dm[t] += dr[t] wr" in found


def test_a_function_without_a_derivative_is_named() -> None:
    with pytest.raises(ValueError, match=r"function f of formula a\[t\] = f\(b\[t\]\) has no derivative"):
        transpose(parse_formulas("a[t] = f(b[t])"), DERIVATIVES)


def test_what_is_made_again_is_another_tensor() -> None:
    forward = parse_formulas(DENSE)
    backward = transpose(forward, DERIVATIVES)
    found = [str(one) for one in with_recomputation(forward, backward, made_again("selective", forward))]
    assert found[:3] == ["m~[t] = norm(y[t], g2)", "z~[t,f] = m~[t] wz[f]", "u~[t,f] = act(z~[t,f])"]
    assert "dwz[f] += dz[t,f] m~[t]" in found
    assert len(found) == 3 + len(backward)
    full = [str(one) for one in with_recomputation(forward, backward, made_again("full", forward))]
    assert "o~[t,h] += attend(q~[t,h], kv~[s,g(h)]) for visible(t, s)" in full
    assert not any(line.startswith(("x'", "b~")) for line in full)  # nothing reads them
    assert with_recomputation(forward, backward, ()) == backward
    with pytest.raises(ValueError, match="recompute is 'some'; it takes none, elementwise, selective, chunked, full"):
        made_again("some", forward)
