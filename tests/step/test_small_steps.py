"""Small steps as text, each with one idea of the language: versions, encodings, host memory, experts, counts."""

import re
from dataclasses import replace

import pytest

from tests.helpers.offload_step import offload_text
from zbench.step.proof.prove import StepError, prove_step
from zbench.step.reading.read import read_step


def rounds(order: str, seen: tuple[int, ...], stated: tuple[int, ...]) -> str:
    """Two workers train from the outer parameters p; a round's differences d update them.

    order: the templates, r for a round and o for an outer update. seen: how many updates each round says that it sees;
    stated: its age, 0 for the newest of a synchronous order, -1 for one update less.
    """
    count = len(seen)
    layout = """layout
  index r: 1 1
  index b of batch: 1
  tensor p: state, none, 4 bytes, home 0
  tensor w[r,b]: copy, none, 4 bytes, home 0 1
  tensor d[b]: sum add, none, 4 bytes, home 0
  formula w[r,b] = train(p)
  formula d[b] += difference(w[r,b])
  formula p := outer(p, d[*])
"""
    templates, plays = "", {}
    for at in range(count):
        version = f", version {stated[at]}" if stated[at] else ""
        templates += f"""template round{at} of layout {at}
  makes w d
  needs p at 0-1{version}
  leaves p at 0-1{version}
  leaves d[0] at 0-1, count 1
  compute: compute w[0,0] at 0{version}
  compute: compute w[1,0] at 1{version}
  compute: compute d[0,0] at 0
  compute: compute d[0,1] at 1
template outer{at} of layout {at}
  makes p
  needs p at 0-1
  needs d[0] at 0-1, count 1
  leaves p at 0-1, version 1
  gradients: move d[0] 1 -> 0
  compute: compute p at 0
  parameters: gather p to 0-1, version 1
"""
        plays["r", at] = f"play round{at} for layer 0, version {seen[at] - stated[at]}\n"
        plays["o", at] = f"play outer{at} for layer 0, version {at}\n"
    number = {"r": 0, "o": 0}
    lines = ""
    for kind in order:
        lines += plays[kind, number[kind]]
        number[kind] += 1
    begins = f"begins p at 0-1\nends p at 0-1, version {count}\n"
    return f"step of 0 layers on 2 GPUs and 0 host memories\n{layout * count}{templates}{lines}{begins}"


def test_rounds_in_step_are_accepted_with_age_0_alone() -> None:
    prove_step(read_step(rounds("rororo", (0, 1, 2), (0, 0, 0))))
    with pytest.raises(
        StepError, match=r"needs p of layer 0: p on GPU 0 has to be there after update -1 and is there after update 0"
    ):
        prove_step(read_step(rounds("rororo", (-1, 0, 1), (-1, -1, -1))))


def test_a_delayed_outer_update_is_accepted_with_its_age_stated() -> None:
    """The update of a round happens under the next one, which still sees the parameters before it."""
    prove_step(read_step(rounds("rroroo", (0, 0, 1), (0, -1, -1))))
    with pytest.raises(
        StepError, match=r"round1, layer 0\) needs p of layer 0: p on GPU 0 .* update 1 and is .* update 0"
    ):
        prove_step(read_step(rounds("rroroo", (0, 1, 1), (0, -1, -1))))


def test_a_delayed_update_without_its_age_is_rejected() -> None:
    """Round 1 says that it sees update 1, and sees update 0: the update is not there yet."""
    text = rounds("rroroo", (0, 1, 2), (0, 0, 0))
    with pytest.raises(
        StepError,
        match=r"template round1, layer 0\) needs p of layer 0: .* after update 1 and is there after update 0",
    ):
        prove_step(read_step(text))


def test_a_read_names_the_version_it_sees() -> None:
    """Equal, not at least: a copy that is fresher than the operation says is a fault inside a template, too."""
    text = rounds("rororo", (0, 1, 2), (0, 0, 0)).replace("compute w[1,0] at 1", "compute w[1,0] at 1, version -1", 1)
    with pytest.raises(StepError, match=r"operation 1 .* sees p on GPU 1 after update 0; it names update -1"):
        prove_step(read_step(text))
    text = rounds("rororo", (0, 1, 2), (0, 0, 0)).replace("gather p to 0-1, version 1", "gather p to 0-1")
    with pytest.raises(StepError, match=r"outer0, operation 2 .* sees p on GPU 0 after update 1; it names update 0"):
        prove_step(read_step(text))


HEAD = "step of 0 layers on 4 GPUs and 0 host memories\nencoding int8: 8 bits, lossy\nencoding plain: 16 bits\nlayout\n"
SUM = """  index t: 1 1 1 1
  tensor d: sum add, none, 4 bytes, home 0, hops {hops}
  tensor x[t]: copy, none, 4 bytes, home 0 1 2 3
  tensor y: copy, none, 4 bytes, home 0
  formula x[t] = draw(x0)
  formula d += part(x[t])
  formula y = use(d)
  tensor x0: copy, none, 4 bytes, home 0
template all of layout 0
  makes x d y
  needs x0 at 0-3
  compute: compute x[0] at 0
  compute: compute x[1] at 1
  compute: compute x[2] at 2
  compute: compute x[3] at 3
  compute: compute d[0] at 0
  compute: compute d[1] at 1
  compute: compute d[2] at 2
  compute: compute d[3] at 3
{moves}  compute: compute y at 0
play all for layer 0
begins x0 at 0-3
"""
RING, DIRECT, TWO_LEVELS = ((3, 2), (2, 1), (1, 0)), ((1, 0), (2, 0), (3, 0)), ((1, 0), (3, 2), (2, 0))


def reduction(moves: tuple[tuple[int, int], ...], hops: int, encoding: str = "int8") -> str:
    lines = "".join(f"  gradients: move d {src} -> {dst}, encoding {encoding}\n" for src, dst in moves)
    return HEAD + SUM.format(hops=hops, moves=lines)


@pytest.mark.parametrize(("moves", "hops"), [(RING, 3), (TWO_LEVELS, 2), (DIRECT, 1)])
def test_lossy_hops_of_a_sum_are_counted(moves: tuple[tuple[int, int], ...], hops: int) -> None:
    assert prove_step(read_step(reduction(moves, hops))).hops["d"] == hops
    for wrong in (hops - 1, hops + 1):
        with pytest.raises(
            StepError, match=f"tensor d has hops {wrong}; its values are encoded with loss {hops} times"
        ):
            prove_step(read_step(reduction(moves, wrong)))
    prove_step(read_step(reduction(moves, 0, "plain")))


def test_an_encoded_copy_is_forwarded_without_another_loss() -> None:
    text = """  index t: 1
  tensor x[t]: copy, none, 4 bytes, home 0, hops {hops}
  tensor y[t]: copy, none, 4 bytes, home 0
  formula x[t] = draw(y0)
  formula y[t] = use(x[t])
  tensor y0: copy, none, 4 bytes, home 0
template all of layout 0
  makes x y
  needs y0 at 0
  compute: compute x[0] at 0
  parameters: send x[0] 0 -> 1, encoding int8
  parameters: send x[0] 1 -> 2{second}
  parameters: send x[0] 2 -> 3, encoding int8
  compute: compute y[0] at 3
play all for layer 0
begins y0 at 0
"""
    prove_step(read_step(HEAD + text.format(hops=1, second=", encoding int8")))
    prove_step(read_step(HEAD + text.format(hops=2, second=", encoding plain")))  # decoded in between
    with pytest.raises(StepError, match="hops 1; its values are encoded with loss 2 times"):
        prove_step(read_step(HEAD + text.format(hops=1, second="")))


OFFLOAD = offload_text(4, 8, 8)


def test_activations_wait_in_host_memory() -> None:
    prove_step(read_step(OFFLOAD))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        (
            "  host: send u[0] 1 -> 0\n",
            "",
            "uses u[0] of the layer on GPU 0, which no earlier operation brought there",
        ),
        ("  host: send u[0] 0 -> 1\n", "", "leaves u[0] of the layer on host memory 0, which is not there at the end"),
        ("leaves u[0] at 1", "leaves u[0] at 0", "GPU 0 has to be absent and is there"),
        ("host: send u[0] 0 -> 1", "host: send u[0] 0 -> 2", "dst is 2; it takes another place, below 2"),
        (
            "host: send u[0] 0 -> 1",
            "stages: send u[0] 0 -> 1",
            "has u[0] of the layer on GPU 0 to or from a host memory in a queue between GPUs; it takes queue host; it ",
        ),
        (
            "host: send u[0] 0 -> 1",
            "parameters: gather u[0] to 0-1",
            "(gather u[0] to *) has u[0] of the layer on GPU 0 with a host memory as a member, which no queue serves",
        ),
    ],
)
def test_what_is_wrong_with_host_memory(old: str, new: str, told: str) -> None:
    with pytest.raises(StepError, match=re.escape(told)):
        prove_step(read_step(OFFLOAD.replace(old, new)))


def test_nothing_goes_from_host_memory_to_host_memory() -> None:
    text = OFFLOAD.replace("1 host memories", "2 host memories")
    text = text.replace("host: send u[0] 0 -> 1", "host: send u[0] 2 -> 1")
    with pytest.raises(StepError, match=r"on host memory 1 between two host memories, which no queue serves; it takes"):
        prove_step(read_step(text))


EXPERTS = """step of 0 layers on 2 GPUs and 0 host memories
layout
  index t: 5 3
  index e: 1 1 1
  relation route(t, e), groups 0 1 and 0 1 2: 0 2 | 2
  tensor m[t]: copy, none, 8 bytes, home 0 1
  tensor u[t,e]: copy, none, 8 bytes, home 0 0 1 0 0 1
  tensor b[t]: sum add, none, 8 bytes, home 0 1
  tensor y[t]: copy, none, 8 bytes, home 0 1
  formula u[t,e] = expert(m[t]) for route(t, e)
  formula b[t] += weigh(u[t,e]) for route(t, e)
  formula y[t] = use(b[t])
template all of layout 0
  makes u b y
  needs m[*] at home
  experts: send m[0] 0 -> 1
  compute: compute u[*,0-1] at 0
  compute: compute u[*,2] at 1
  compute: compute b[*,0-1] at 0
  compute: compute b[*,2] at 1
  experts: move b[0] 1 -> 0
  experts: move b[1] 0 -> 1
  compute: compute y[0] at 0
  compute: compute y[1] at 1
play all for layer 0
begins m[*] at home
"""


def test_experts_without_tokens_and_tokens_of_one_expert() -> None:
    """Expert 1 has no tokens; part 1 of the tokens goes to expert 2 alone, part 0 to experts 0 and 2."""
    text = EXPERTS.replace("compute u[*,0-1] at 0", "compute u[0,0-1] at 0").replace("b[*,0-1]", "b[0,0-1]")
    text = text.replace("  experts: move b[1] 0 -> 1\n", "")
    prove_step(read_step(text))
    with pytest.raises(StepError, match=r"uses m\[1\] on GPU 0, which no earlier operation brought there"):
        prove_step(read_step(EXPERTS))
    with pytest.raises(StepError, match=r"reads b\[0\] on GPU 0 with 1 of 2 contributions"):
        prove_step(read_step(text.replace("  experts: move b[0] 1 -> 0\n", "")))
    with pytest.raises(StepError, match="part 0 of t, part 2 of e of u is computed by no operation"):
        prove_step(read_step(text.replace("compute u[*,2] at 1", "compute u[1,2] at 1")))


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("move d 1 -> 0", "send d 1 -> 0", "reads d on GPU 1 with 1 of 4 contributions"),
        (
            "compute: compute d[1] at 1\n",
            "",
            "template all: part 1 of t of d is computed by no operation; d is at home on GPU 0; it is played for layer",
        ),
        (
            "compute: compute d[1] at 1",
            "attention: compute d[1] at 1",
            "operation 5 (compute d[1] at 1) has d on GPU 1 in a queue of transfers; what is computed takes queue comp",
        ),
        (
            "gradients: move d 2 -> 0",
            "compute: move d 2 -> 0",
            "(move d 2 -> 0) has d on GPU 2 in queue compute; what is transferred between GPUs takes attention, tens",
        ),
        ("gradients: move d 2 -> 0", "host: move d 2 -> 0", "d on GPU 2 between GPUs in queue host; it takes attent"),
        ("compute x[1] at 1", "compute x[1] at 2", "operation 5 (compute d[1] at 1) uses x[1] on GPU 1, which no"),
        (
            "compute d[3] at 3",
            "compute d[0] at 0",
            "d for part 0 of t a second time, after operation 4 on GPU 0; it is",
        ),
        ("move d 3 -> 0", "move d 3 -> 1", "reads d on GPU 0 with 3 of 4 contributions"),
        ("move d 3 -> 0", "move x[0] 3 -> 0", "moves x, which is no sum: copies and state are sent"),
        (
            "  compute: compute y at 0\n",
            "  compute: compute y at 0\n  gradients: move d 0 -> 1\n",
            "which was read already",
        ),
        ("move d 2 -> 0", "move d 1 -> 0", "moves d on GPU 1, to which nothing was added"),
        ("compute y at 0", "compute y at 1", "uses d on GPU 1, which no earlier operation brought there"),
    ],
)
def test_a_sum_is_taken_whole_and_read_complete(old: str, new: str, told: str) -> None:
    text = reduction(DIRECT, 0, "plain").replace(", encoding plain", "")
    assert old in text
    prove_step(read_step(text))
    with pytest.raises(StepError, match=re.escape(told)):
        prove_step(read_step(text.replace(old, new, 1)))


def test_a_list_of_another_index_is_refused() -> None:
    step = read_step(EXPERTS)
    (template,) = step.templates
    list1 = template.operations.list1.copy()
    list1[1] = template.operations.list0[1]
    changed = replace(template, operations=replace(template.operations, list1=list1))
    with pytest.raises(StepError, match=r"template all, operation 1: list1 is \d+; it takes a list of index e"):
        prove_step(replace(step, templates=(changed,)))
    lists = step.layouts[0].lists
    lists.parts[0] = 7
    with pytest.raises(StepError, match="names part 7 of index"):
        prove_step(step)
